"""`hostgap tables`: exact tables, whole or not at all, as documented."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

import hostgap
from hostgap.cli import run
from hostgap.output.parquet import COLUMNS, write_tables

pq = pytest.importorskip("pyarrow.parquet")

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "sample_traces" / "eager_item.json.gz"
OP = '{"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": 1, "dur": 2}'
EMPTY = f'{{"traceEvents": [{OP}]}}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tables") / "deep" / "tables"
    assert run(["tables", str(TRACE), "-o", str(out)]) == 0
    return out


def test_every_table_is_what_the_library_gives(folder: Path) -> None:
    analysis = hostgap.examine(hostgap.load_trace(TRACE))
    assert sorted(path.stem for path in folder.iterdir()) == sorted(COLUMNS)
    for name in COLUMNS:
        read = pq.read_table(folder / f"{name}.parquet").to_pandas()
        table = analysis.table(name)
        table = table.reset_index(drop=name != "sites")
        assert len(read) == len(table)
        for column in table.columns:
            mine, theirs = read[column], table[column]
            if mine.dtype == "category":
                mine, theirs = mine.astype(object), theirs.astype(object)
            same = (mine == theirs) | (mine.isna() & theirs.isna())
            assert same.all(), f"{name}.{column}"


def test_columns_types_and_meanings_are_the_documented_ones(folder: Path) -> None:
    text = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
    for name, columns in COLUMNS.items():
        section = text.split(f"### {name}\n")[1].split("\n### ")[0]
        rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*) \|$", section, re.MULTILINE)
        assert {column: (kind, meaning) for column, kind, meaning in rows} == columns
        schema = pq.read_schema(folder / f"{name}.parquet")
        assert schema.names == list(columns)
        assert schema.metadata[b"hostgap.schema"] == b"hostgap.tables/1"
        for column, (kind, meaning) in columns.items():
            field = schema.field(column)
            shown = "name" if str(field.type).startswith("dictionary") else str(field.type)
            assert shown == kind
            assert field.metadata[b"meaning"].decode() == meaning


def test_idle_time_by_cause_adds_up(folder: Path) -> None:
    parts = pd.read_parquet(folder / "gap_parts.parquet")
    gaps = pd.read_parquet(folder / "gaps.parquet")
    by_gap = (parts["end"] - parts["start"]).groupby(parts["gap"]).sum()
    assert (by_gap == (gaps["end"] - gaps["start"]).set_axis(gaps["row"])).all()
    joined = parts.merge(pd.read_parquet(folder / "sites.parquet"), on="site", how="left")
    assert len(joined) == len(parts)


def test_the_documented_query_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
    code = text.split("<!-- tested")[1].split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(folder.parent)
    exec(compile(code, "tables.md", "exec"), {"print": lambda table: shown.append(table)})
    assert len(shown[0]) == 4


shown: list[pd.DataFrame] = []


def test_nothing_is_overwritten_without_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "syncs.parquet").write_text("mine")
    assert run(["tables", str(TRACE), "-o", str(tmp_path)]) == 2
    assert "--force" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["syncs.parquet"]
    assert run(["tables", str(TRACE), "-o", str(tmp_path), "--force"]) == 0
    assert pq.read_table(tmp_path / "syncs.parquet").num_rows > 0
    assert len(list(tmp_path.iterdir())) == len(COLUMNS)


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def full(*args: object, **_: object) -> None:
        written.append(args)
        if len(written) == 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    assert run(["tables", str(TRACE), "-o", str(tmp_path / "out")]) == 2
    assert list(tmp_path.iterdir()) == []


def test_bad_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for out in (str(file), str(file / "below"), ""):
        assert run(["tables", str(TRACE), "-o", out]) == 2
        assert len(capsys.readouterr().err.splitlines()) <= 2
    assert run(["tables", str(tmp_path / "no.json"), "-o", str(tmp_path / "o")]) == 2
    assert run(["tables", str(TRACE), "-o", str(tmp_path / "o"), "--steps", "99:"]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_an_unmeasurable_trace_has_its_tables(tmp_path: Path) -> None:
    trace = tmp_path / "cpu.json"
    trace.write_text(EMPTY)
    assert run(["tables", str(trace), "-o", str(tmp_path / "out")]) == 3
    for name, columns in COLUMNS.items():
        table = pq.read_table(tmp_path / "out" / f"{name}.parquet")
        assert table.column_names == list(columns)
    assert pq.read_table(tmp_path / "out" / "host_ops.parquet").num_rows == 1


def test_without_pyarrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    assert run(["tables", str(TRACE), "-o", str(tmp_path / "out")]) == 2
    assert "pip install 'hostgap[tables]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_steps_choose_the_gaps(tmp_path: Path) -> None:
    analysis = hostgap.examine(hostgap.load_trace(TRACE), hostgap.Options(steps=(2, 3)))
    rows = write_tables(analysis, tmp_path)
    steps = pd.read_parquet(tmp_path / "steps.parquet")
    gaps = pd.read_parquet(tmp_path / "gaps.parquet")
    assert steps["chosen"].tolist() == [False, False, True, False, False]
    assert rows["gaps"] == len(gaps)
    assert gaps["step"].unique().tolist() == [2]
