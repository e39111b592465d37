"""Exports that are damaged, unfinished, odd or something else: a clear line, the file untouched."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from hostgap.analysis.analyze import analyze
from hostgap.trace.load import load_trace
from tests.trace.nsys_build import (
    GRAPH_LAUNCH,
    KERNEL,
    LAUNCH,
    MEMCPY,
    RUNTIME,
    SYNC,
    Export,
    hostgap,
    refusal,
    step_loop,
    untouched,
)


def reasons(export: Export, folder: Path) -> dict[str, str]:
    """Integrity codes and texts of an export that can be read."""
    path = export.write(folder / "x.sqlite")
    with untouched(path):
        integrity = analyze(load_trace(path)).trace.integrity
    return {reason.code: reason.text for reason in integrity.reasons}


def sql(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)
    return path


# --- what is no export ---------------------------------------------------------------------------


@pytest.mark.parametrize("rest", [b"", b"\0" * 84, b"\xff" * 4096, b"not really a database"])
def test_no_database(tmp_path: Path, rest: bytes) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(b"SQLite format 3\0" + rest)
    assert "database" in refusal(path)


def test_a_text_called_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    path.write_text("hello")
    refusal(path)


def test_somebody_elses_database(tmp_path: Path) -> None:
    path = sql(
        tmp_path / "places.sqlite", "CREATE TABLE moz_places (url)", "CREATE TABLE moz_hosts (h)"
    )
    message = refusal(path)
    assert "no Nsight Systems export (tables: moz_hosts, moz_places)" in message
    assert "nsys export --type sqlite" in message


def test_no_tables(tmp_path: Path) -> None:
    path = sql(tmp_path / "x.sqlite", "CREATE TABLE t (a)", "DROP TABLE t")
    assert "no tables" in refusal(path)


@pytest.mark.parametrize("table", [KERNEL, RUNTIME, MEMCPY])
@pytest.mark.parametrize("column", ["start", "end"])
def test_a_schema_of_long_ago(tmp_path: Path, table: str, column: str) -> None:
    export = step_loop()
    for row in export.tables[table]:
        row[f"{column}Ts"] = row.pop(column)
    message = refusal(export.write(tmp_path / "x.sqlite"))
    assert f"table {table} has no column {column}" in message
    assert "nsys of 2020 or later" in message


# --- unfinished and damaged ----------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_killed_export(tmp_path: Path, share: float) -> None:
    path = step_loop(200).write(tmp_path / "x.sqlite")
    data = path.read_bytes()
    assert len(data) > 10 * 4096
    path.write_bytes(data[: int(len(data) * share) // 4096 * 4096])
    assert "the database is damaged" in refusal(path)


def test_pages_overwritten(tmp_path: Path) -> None:
    path = step_loop(200).write(tmp_path / "x.sqlite")
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xa5" * (len(data) - 4096))
    assert "the database is damaged" in refusal(path)


def left_with(mode: str, path: Path) -> None:
    """Writes an export and dies in the middle of a transaction."""
    step_loop(50).write(path)
    script = (
        "import os, sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "db.execute('PRAGMA journal_mode=' + sys.argv[2])\n"
        "db.execute('PRAGMA cache_size=1')\n"
        "db.execute('BEGIN')\n"
        f"db.execute('UPDATE {RUNTIME} SET start = start + 1')\n"
        f"db.execute('INSERT INTO {RUNTIME} SELECT * FROM {RUNTIME}')\n"
        "db.execute('COMMIT') if sys.argv[2] == 'WAL' else None\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(path), mode], check=True, timeout=60)


@pytest.mark.parametrize(("mode", "suffix"), [("WAL", "-wal"), ("DELETE", "-journal")])
def test_a_log_left_beside_it(tmp_path: Path, mode: str, suffix: str) -> None:
    path = tmp_path / "x.sqlite"
    left_with(mode, path)
    beside = tmp_path / f"x.sqlite{suffix}"
    before = beside.read_bytes()
    assert before
    message = refusal(path)
    assert f"x.sqlite{suffix} lies beside it" in message
    assert beside.read_bytes() == before


@pytest.mark.parametrize("mode", ["DELETE", "TRUNCATE", "PERSIST"])
def test_a_locked_file(tmp_path: Path, mode: str) -> None:
    path = step_loop().write(tmp_path / "x.sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute(f"PRAGMA journal_mode={mode}")
        writer.execute("BEGIN EXCLUSIVE")
        assert "the database is locked" in refusal(path)
        writer.execute("ROLLBACK")
    assert len(load_trace(path).gpu_ops) == 15


# --- places that cannot be written to ------------------------------------------------------------


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_a_folder_without_permission_to_write(tmp_path: Path, mode: str) -> None:
    if not hasattr(os, "geteuid") or os.geteuid() == 0:
        pytest.skip("permissions do not bind root")
    folder = tmp_path / "folder"
    folder.mkdir()
    path = sql(step_loop().write(folder / "x.sqlite"), f"PRAGMA journal_mode={mode}")
    path.chmod(0o444)
    folder.chmod(0o555)
    try:
        with untouched(path):
            assert len(load_trace(path).gpu_ops) == 15
    finally:
        folder.chmod(0o755)


# --- what was not recorded -----------------------------------------------------------------------


def test_no_cuda_tables(tmp_path: Path) -> None:
    export = Export()
    export.nvtx("step", 0, 10)
    export.osrt("poll", 0, 10)
    text = reasons(export, tmp_path)["HG910"]
    assert f"no {KERNEL} table and no {RUNTIME} table" in text
    assert "--trace=cuda,nvtx" in text


@pytest.mark.parametrize(
    ("call", "option"),
    [
        (LAUNCH, "--trace-fork-before-exec=true"),
        (GRAPH_LAUNCH, "--cuda-graph-trace=node"),
        (SYNC, "--trace=cuda"),
    ],
)
@pytest.mark.parametrize("empty", [False, True])
def test_calls_without_kernels(tmp_path: Path, call: str, option: str, empty: bool) -> None:
    export = Export()
    export.call(call, 0, 10, 1)
    if empty:
        export.kernel(0, 5)
    path = export.write(tmp_path / "x.sqlite")
    if empty:
        sql(path, f"DELETE FROM {KERNEL}")
    with untouched(path):
        integrity = analyze(load_trace(path)).trace.integrity
    assert integrity.verdict == "unmeasurable"
    text = {reason.code: reason.text for reason in integrity.reasons}["HG910"]
    assert (f"no usable row in {KERNEL}" if empty else f"no {KERNEL} table") in text
    assert option in text
    done = hostgap("analyze", path)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert KERNEL in done.stdout


def test_kernels_without_calls(tmp_path: Path) -> None:
    export = Export()
    for i in range(3):
        export.kernel(1000 * i, 1000 * i + 500, i + 1)
    path = export.write(tmp_path / "x.sqlite")
    with untouched(path):
        trace = load_trace(path)
    assert f"no {RUNTIME} table" in trace.report.missing
    assert "--trace=cuda" in trace.report.missing
    assert trace.gpu_ops.call.tolist() == [-1] * 3
    assert analyze(trace).devices[0].idle_by_cause["unattributable"] == 1000


# --- odd rows ------------------------------------------------------------------------------------


def test_rows_without_usable_times(tmp_path: Path) -> None:
    export = step_loop()
    export.kernel(50, None, 9)
    export.kernel(None, 60, 9)  # type: ignore[arg-type]
    export.kernel(2**62, 2**63 - 1, 9)
    export.kernel(-(2**63) + 1, 70, 9)
    export.kernel(90, 80, 9)
    export.nvtx("backwards", 90, 80)
    trace = load_trace(export.write(tmp_path / "x.sqlite"))
    assert len(trace.gpu_ops) == 15
    report = trace.report
    assert (report.unreadable_times, report.negative, report.negative_host) == (4, 1, 1)
    texts = [r.text for r in analyze(trace).trace.integrity.reasons if r.code == "HG923"]
    assert len(texts) == 2


def test_no_usable_time_at_all(tmp_path: Path) -> None:
    export = Export()
    export.call(LAUNCH, 0, 5, 1)
    export.kernel(10, None, 1)
    found = reasons(export, tmp_path)
    assert found.keys() == {"HG910", "HG923"}
    assert f"no usable row in {KERNEL}" in found["HG910"]


def test_a_call_that_never_returned_counts(tmp_path: Path) -> None:
    export = Export()
    export.call(LAUNCH, 0, None, 1)
    export.kernel(10, 20, 1)
    trace = load_trace(export.write(tmp_path / "x.sqlite"))
    assert trace.gpu_ops.call.tolist() == [0]
    assert (trace.api_calls.start[0], trace.api_calls.end[0]) == (0, 0)


@pytest.mark.parametrize("strings", [True, False])
def test_ids_of_strings_that_are_not_there(tmp_path: Path, strings: bool) -> None:
    export = Export()
    export.kernel(10, 20, 1, demangledName=77)
    export.kernel(30, 40, 1, demangledName=None)
    export.call(LAUNCH, 0, 5, 1, nameId=78)
    path = export.write(tmp_path / "x.sqlite", strings=strings)
    with untouched(path):
        trace = load_trace(path)
    assert [trace.names[code] for code in trace.gpu_ops.name] == ["[string 77]", ""]
    assert [trace.names[code] for code in trace.api_calls.name] == ["[string 78]"]


def test_words_where_numbers_are_due(tmp_path: Path) -> None:
    export = step_loop()
    export.kernel("soon", "later", "x", deviceId="cuda")  # type: ignore[arg-type]
    trace = load_trace(export.write(tmp_path / "x.sqlite"))
    assert len(trace.gpu_ops) == 15
    assert trace.report.unreadable_times == 1
