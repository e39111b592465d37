"""`hostgap gate` as a CI job meets it: the rows of docs/exit-codes.md, formats and files."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from hostgap.cli import run
from tests.gate.sides import write_run

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_traces"
EAGER, ITEM = SAMPLES / "eager.json.gz", SAMPLES / "eager_item.json.gz"
GRAPH = SAMPLES / "cuda_graph.json.gz"
NO_SYNC = ("--budget", "sync_calls_per_step=0")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the current one, and no CI around it."""
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def gate(*args: Any) -> int:
    return run(["gate", *map(str, args)])


def config(text: str) -> None:
    Path("hostgap.toml").write_text(text)


def baseline_of(trace: Path) -> None:
    assert gate(trace, "--update-baseline") == 0


def result_of(capsys: pytest.CaptureFixture[str], *args: Any, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert gate(*args, "--format", "json") == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


# --- exit codes, a row each ------------------------------------------------------------------


def test_0_clean() -> None:
    assert gate(EAGER, *NO_SYNC) == 0
    baseline_of(EAGER)
    assert gate(EAGER) == 0


def test_0_a_warning() -> None:
    config('gate = { sync_calls_per_step = { max = 0, level = "warning" } }')
    assert gate(ITEM) == 0


def test_0_inconclusive_and_1_when_strict(folder: Path) -> None:
    for i in range(3):
        write_run(folder / "base" / str(i), 100e6 + i)
        write_run(folder / "new" / str(i), 120e6 + i)
    assert gate("new", "--base", "base") == 0
    assert gate("new", "--base", "base", "--strict") == 1


def test_0_skipped_even_when_strict() -> None:
    assert gate(EAGER, *NO_SYNC, "--budget", "step_time=5%", "--strict") == 0


def test_1_a_budget() -> None:
    assert gate(ITEM, *NO_SYNC) == 1


def test_1_a_regression() -> None:
    baseline_of(EAGER)
    assert gate(ITEM) == 1


def test_1_slower_processes(folder: Path) -> None:
    for i in range(5):
        write_run(folder / "base" / str(i), 100e6 + 1e5 * i)
        write_run(folder / "new" / str(i), 108e6 + 1e5 * i)
    assert gate("new", "--base", "base") == 1
    assert gate("base", "--base", "new") == 0


def test_1_a_canary_that_is_not_noticed() -> None:
    assert gate(EAGER, "--budget", "launches_per_step=2000", "--canary") == 1
    assert gate(EAGER, *NO_SYNC, "--canary") == 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("missing.json", *NO_SYNC), "missing.json"),
        ((ROOT / "README.md", *NO_SYNC), "README.md"),
        ((EAGER, "--budget", "sync_call=0"), "did you mean 'sync_calls_per_step'"),
        ((EAGER, "--baseline", "gone.json"), "no such baseline"),
        ((EAGER,), "nothing to gate on"),
        ((EAGER, "--budget", "launches_per_step=5%"), "no baseline"),
        ((EAGER, *NO_SYNC, "-o", "x.doc"), "known: .json"),
        ((EAGER, *NO_SYNC, "--base", "gone"), "gone"),
        ((EAGER, *NO_SYNC, "--steps", "90:99"), "no such steps"),
        ((EAGER, "--update-baseline", "--canary"), "judges nothing"),
        ((EAGER, "--update-baseline", "-o", "r.json"), "writes the baseline"),
    ],
)
def test_2_what_cannot_be_done(
    args: tuple[Any, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gate(*args) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) <= 2


def test_2_a_corrupt_baseline_and_another_schema(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text, said in (("{", "not JSON"), ('{"schema": "hostgap.baseline/9"}', "baseline/9")):
        Path("hostgap.json").write_text(text)
        assert gate(EAGER) == 2
        assert said in capsys.readouterr().err
        assert gate(EAGER, "--update-baseline") == 2  # nor is it written over
        assert Path("hostgap.json").read_text() == text


def test_2_another_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    baseline_of(EAGER)
    path = Path("hostgap.json")
    path.write_text(path.read_text().replace("NVIDIA H200", "NVIDIA A100"))
    assert gate(EAGER) == 2
    assert "NVIDIA A100" in capsys.readouterr().err
    assert gate(EAGER, "--allow-mismatch") == 0


def test_a_canary_is_held_against_base_runs_too() -> None:
    assert gate(EAGER, "--base", str(EAGER)) == 0
    assert gate(EAGER, "--base", str(EAGER), "--canary") == 0


def test_folders_of_a_configuration_lie_beside_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("hostgap.toml").write_text('source-roots = ["src"]\n')
    assert gate(EAGER, *NO_SYNC) == 2
    error = capsys.readouterr().err
    assert "hostgap.toml: source-roots: " in error
    assert "no such folder" in error
    Path("src/deep").mkdir(parents=True)
    assert gate(EAGER, *NO_SYNC) == 0
    monkeypatch.chdir("src/deep")
    assert gate(EAGER, *NO_SYNC) == 0


@pytest.mark.parametrize("schema", ["hostgap.diagnosis/2", "hostgap.diagnosis-set/1"])
def test_2_a_result_of_another_schema(schema: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("r.json").write_text(json.dumps({"schema": schema}))
    assert gate("r.json", *NO_SYNC) == 2
    assert schema in capsys.readouterr().err


def test_2_a_broken_result(capsys: pytest.CaptureFixture[str]) -> None:
    Path("r.json").write_text('{"schema": "hostgap.diagnosis/1", "tool": 3}')
    assert gate("r.json", *NO_SYNC) == 2
    Path("r.json").write_text('{"schema": "hostgap.diagnosis/1", ')
    assert gate("r.json", *NO_SYNC) == 2


def test_2_a_result_cannot_choose_steps() -> None:
    assert run(["analyze", str(EAGER), "-o", "r.json"]) == 0
    assert gate("r.json", *NO_SYNC) == 0
    assert gate("r.json", *NO_SYNC, "--steps", "1:2") == 2


def test_3_nothing_to_measure(capsys: pytest.CaptureFixture[str]) -> None:
    """A run without a GPU; and the JSON says so."""
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    Path("cpu.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event] * 3}))
    result = result_of(capsys, "cpu.json", *NO_SYNC, code=3)
    assert result["outcome"] == "unmeasurable"
    assert gate("cpu.json", *NO_SYNC, "-o", "r.json") == 3
    assert Path("r.json").is_file()
    assert gate("cpu.json", "--update-baseline") == 3
    assert not Path("hostgap.json").exists()


def test_3_a_truncated_file(capsys: pytest.CaptureFixture[str]) -> None:
    text = gzip.decompress(ITEM.read_bytes())
    Path("cut.json").write_bytes(text[: len(text) * 9 // 10])
    result = result_of(capsys, "cut.json", *NO_SYNC, code=3)
    assert "truncated" in result["checks"][0]["text"]
    assert gate("cut.json", "--update-baseline") == 3


def test_3_no_steps(capsys: pytest.CaptureFixture[str]) -> None:
    trace = json.loads(gzip.decompress(GRAPH.read_bytes()))
    events = [e for e in trace["traceEvents"] if not e["name"].startswith("ProfilerStep")]
    kernels = [e for e in events if e.get("cat") == "kernel"][:1]
    Path("one.json").write_text(json.dumps(trace | {"traceEvents": kernels}))
    assert gate("one.json", *NO_SYNC) == 3


def test_3_beats_1(capsys: pytest.CaptureFixture[str]) -> None:
    text = gzip.decompress(ITEM.read_bytes())
    Path("cut.json").write_bytes(text[: len(text) * 9 // 10])
    baseline_of(EAGER)
    assert gate("cut.json", "--budget", "launches_per_step=1") == 3


# --- formats and files -----------------------------------------------------------------------


def test_files_by_extension_and_nothing_overwritten(folder: Path) -> None:
    names = ["r.json", "r.md", "r.txt", "r.sarif", "r.xml"]
    outputs = [option for name in names for option in ("-o", name)]
    assert gate(ITEM, *NO_SYNC, *outputs) == 1
    assert json.loads(Path("r.json").read_text())["schema"] == "hostgap.gate/1"
    assert Path("r.md").read_text().startswith("### Gate failed")
    assert Path("r.txt").read_text().startswith("Gate failed")
    assert json.loads(Path("r.sarif").read_text())["version"] == "2.1.0"
    assert Path("r.xml").read_text().startswith("<?xml")
    assert gate(ITEM, *NO_SYNC, "-o", "r.json") == 2
    assert gate(ITEM, *NO_SYNC, "-o", "r.json", "--force") == 1


def test_the_step_summary_is_added_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("summary.md").write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    assert gate(ITEM, *NO_SYNC, "--format", "github") == 1
    written = Path("summary.md").read_text()
    assert written.startswith("before\n### Gate failed")
    assert capsys.readouterr().out.startswith("::error ")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pipe", "not a regular file"),
        (os.devnull, "not a regular file"),
        ("none/summary.md", "cannot be written: No such file or directory"),
    ],
)
def test_a_step_summary_that_is_no_file_is_named(
    name: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo("pipe")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", name)
    assert gate(EAGER, *NO_SYNC, "--format", "github") == 2
    assert f"GITHUB_STEP_SUMMARY: {name}: {said}" in capsys.readouterr().err


def test_text_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    baseline_of(EAGER)
    capsys.readouterr()
    assert gate(ITEM, "--budget", "kernel_utilization=95%", "--canary") == 1
    out = capsys.readouterr().out
    assert out.startswith("Gate failed: kernel_utilization, sync_calls_per_step")
    assert "record.py:67 decode_until_eos" in out
    assert "canary: an .item() put into every step is caught by" in out
    assert max(len(line) for line in out.splitlines()) <= 80


def test_a_result_and_its_trace_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", str(ITEM), "-o", "r.json"]) == 0
    of_trace = result_of(capsys, ITEM, *NO_SYNC, code=1)
    of_result = result_of(capsys, "r.json", *NO_SYNC, code=1)
    assert of_trace["checks"] == of_result["checks"]
    assert gate("r.json", *NO_SYNC, "--canary") == 2  # a result has no calls


def test_configuration(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("pyproject.toml").write_text(
        "[tool.hostgap.gate]\n"
        "sync_calls_per_step = { max = 0 }\n"
        'baseline = "ci/base.json"\n'
        "[[tool.hostgap.gate.allow]]\n"
        'function = "decode_until_eos"\nowner = "me"\nreason = "ends there"\n'
    )
    assert gate(ITEM) == 2  # it names a baseline that is not there
    assert "ci/base.json" in capsys.readouterr().err
    Path("ci").mkdir()
    baseline_of(EAGER)
    assert Path("ci/base.json").is_file()
    assert gate(ITEM) == 0
    capsys.readouterr()
    assert gate(EAGER) == 0
    assert "stale, allowed and no longer there: decode_until_eos" in capsys.readouterr().out
    assert gate(ITEM, "--budget", "copies_per_step=3") == 1
    config('gate = { basline = "x" }')
    assert gate(ITEM) == 2


def test_analyze_takes_a_configuration_with_a_gate() -> None:
    config("gate = { sync_calls_per_step = { max = 0 } }")
    assert run(["analyze", str(EAGER), "-o", "r.txt"]) == 0


def test_a_run_directory(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = write_run(folder / "run", 20e6)
    text = json.loads((made / "measurement.json").read_text())
    step = text["timing"]["step"]
    text["passes"] = [{"mode": "cpu+cuda", "file": "t.json.gz", "step": step}]
    (made / "measurement.json").write_text(json.dumps(text))
    shutil.copy(ITEM, made / "t.json.gz")
    result = result_of(capsys, made, *NO_SYNC, "--budget", "step_time=25ms", code=1)
    assert result["key"]["torch"] == "2.11.0"
    statuses = {check["metric"]: check["status"] for check in result["checks"]}
    assert statuses == {"sync_calls_per_step": "failed", "step_time": "passed"}
    assert gate(made, "--budget", "step_time=10ms") == 0  # one process decides nothing
    assert gate(made, "--budget", "step_time=10ms", "--strict") == 1


def test_runs_without_a_trace_have_no_counts(folder: Path) -> None:
    write_run(folder / "runs" / "1", 20e6)
    assert gate("runs", *NO_SYNC) == 3
    assert gate("runs", "--update-baseline") == 2


def test_runs_of_one_side_must_be_alike(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(folder / "runs" / "1", 20e6)
    write_run(folder / "runs" / "2", 20e6, torch="2.9")
    assert gate("runs", "--budget", "step_time=25ms") == 2
    assert "differ in torch" in capsys.readouterr().err


def test_update_baseline_says_what_changed(capsys: pytest.CaptureFixture[str]) -> None:
    baseline_of(EAGER)
    capsys.readouterr()
    baseline_of(ITEM)
    out = capsys.readouterr().out
    assert "sync_calls_per_step 1 (was 0)" in out
    assert out.startswith("Updated: NVIDIA H200")
    assert gate(ITEM) == 0
