"""`hostgap compare` as a person meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hostgap.cli import run
from tests.gate.sides import write_run

SAMPLES = Path(__file__).parents[2] / "sample_traces"
EAGER, ITEM = SAMPLES / "eager.json.gz", SAMPLES / "eager_item.json.gz"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compare(*args: Any) -> int:
    return run(["compare", *map(str, args)])


def compared(capsys: pytest.CaptureFixture[str], *args: Any) -> dict[str, Any]:
    capsys.readouterr()
    assert compare(*args, "--format", "json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_two_traces(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(EAGER, ITEM) == 0
    out = capsys.readouterr().out
    assert out.startswith("Worse: sync_calls_per_step, blocking_syncs_per_step, copies_per_step")
    assert "0    1  record.py:67 decode_until_eos" in out
    assert max(len(line) for line in out.splitlines()) <= 80
    found = compared(capsys, EAGER, ITEM)
    assert found["schema"] == "hostgap.comparison/1"
    assert found["step_time"] is None
    rows = {row["metric"]: row for row in found["rows"]}
    assert rows["sync_calls_per_step"]["change"] == "worse"
    assert rows["launches_per_step"]["change"] == "same"
    assert rows["kernel_utilization"]["change"] == "varies"


def test_what_a_graph_replaces_is_better(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(EAGER, EAGER.with_name("cuda_graph.json.gz")) == 0
    out = capsys.readouterr().out
    first = " ".join(out.split("\nbase ")[0].split())
    assert first.startswith("Better: launches_per_step, copies_per_step; idle as recorded 33.1 ms")
    assert "new (in place of launches)" in out


def test_the_same_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(EAGER, EAGER) == 0
    assert capsys.readouterr().out.startswith("The same counts\n")


def test_results_and_traces_and_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", str(EAGER), "-o", "old.json"]) == 0
    assert compare("old.json", ITEM, "-o", "c.md", "-o", "c.txt", "-o", "c.json") == 0
    assert Path("c.md").read_text().startswith("### Worse")
    assert compare("old.json", ITEM, "-o", "c.md") == 2
    assert compare("old.json", ITEM, "-o", "old.json", "--force") == 2


def test_kineto_and_nsight(capsys: pytest.CaptureFixture[str]) -> None:
    found = compared(capsys, ITEM, SAMPLES / "eager_item.sqlite")
    assert "kernel_utilization" not in [row["metric"] for row in found["rows"]]
    assert {row["change"] for row in found["rows"]} == {"same"}
    assert found["idle"] == []
    assert any("times are not" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("times", "verdict"),
    [((108e6, 0.2e6), "slower"), ((92e6, 0.2e6), "faster"), ((100.1e6, 0.2e6), "alike")],
)
def test_sets_of_runs(
    folder: Path, capsys: pytest.CaptureFixture[str], times: tuple[float, float], verdict: str
) -> None:
    for i in range(6):
        write_run(folder / "base" / str(i), 100e6 + 0.2e6 * i)
        write_run(folder / "new" / str(i), times[0] + times[1] * i)
    found = compared(capsys, "base", "new")
    assert found["step_time"]["verdict"] == verdict
    assert found["step_time"]["times"]["low"] <= found["step_time"]["times"]["high"]
    assert found["rows"] == []
    assert compare("base", "new") == 0
    out = capsys.readouterr().out
    assert "6 and 6 processes" in out
    assert "step without a profiler: 100" in out.replace("101", "100")


def test_single_runs_are_only_indicative(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(folder / "a", 100e6)
    write_run(folder / "b", 108e6)
    found = compared(capsys, "a", "b")
    assert found["step_time"]["verdict"] == "inconclusive"
    assert found["step_time"]["times"]["runs_needed"] == 5
    assert compare("a", "b") == 0


def test_other_machines_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(folder / "a", 100e6)
    write_run(folder / "b", 100e6, gpu="NVIDIA A100")
    assert compare("a", "b") == 2
    assert "--allow-mismatch" in capsys.readouterr().err
    assert compare("a", "b", "--allow-mismatch") == 0


def test_nothing_in_common(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(folder / "a", 100e6)
    assert compare("a", EAGER) == 2
    assert "nothing in common" in capsys.readouterr().err


def test_loose_measurements_in_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side in ("base", "new"):
        (folder / side).mkdir()
        for i in range(5):
            made = write_run(folder / "made" / side / str(i), 100e6 + i)
            (made / "measurement.json").rename(folder / side / f"{i}.json")
    found = compared(capsys, "base", "new")
    assert (found["base"]["runs"], found["new"]["runs"]) == (5, 5)
    assert found["step_time"]["verdict"] == "alike"


def test_unreadable_and_unmeasurable(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare("gone.json", EAGER) == 2
    Path("empty").mkdir()
    assert compare("empty", EAGER) == 2
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    Path("cpu.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event] * 3}))
    assert compare("cpu.json", EAGER) == 3
    assert "supports no verdict" in capsys.readouterr().err
