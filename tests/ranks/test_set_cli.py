"""`hostgap analyze` with several traces: what it prints, writes and returns."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from hostgap.cli import run
from hostgap.profiling.measurement import Estimate, Pass
from hostgap.ranks import render
from tests.ranks.build import Job, document, write
from tests.rules.check import measurement

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_traces"
CPU = {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": 1, "dur": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    traces = tmp_path / "traces"
    traces.mkdir()
    write(Job(3, host_us={1: 320}), traces)
    return traces


def result(capsys: pytest.CaptureFixture[str], *args: object, code: int = 0) -> dict[str, Any]:
    assert run(["analyze", *map(str, args), "--jobs", "1", "--format", "json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_json_of_a_set(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = result(capsys, folder)
    assert found["schema"] == "hostgap.diagnosis-set/1"
    assert [one["rank"] for one in found["ranks"]] == [0, 1, 2]
    assert all(one["diagnosis"]["schema"] == "hostgap.diagnosis/1" for one in found["ranks"])
    assert found["summary"]["straggler"]["label"] == "rank 1"
    jsonschema.validate(found, json.loads(render.shipped_schema()))


def test_the_shipped_schema_is_that_of_the_types() -> None:
    assert json.loads(render.shipped_schema()) == json.loads(json.dumps(render.schema()))


def test_text_and_markdown_say_who_is_waited_for(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / "r.md", tmp_path / "r.txt", tmp_path / "r.json"]
    outputs = [word for file in files for word in ("-o", str(file))]
    assert run(["analyze", str(folder), "--jobs", "1", "--format", "text", *outputs]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("Wrote ") == 3
    text = captured.out
    assert text == files[1].read_text()
    assert text.splitlines()[0].startswith("3 ranks: GPUs idle ")
    assert "The others wait for rank 1: last at 11 of 11 collectives" in text
    assert "mostly dispatch, at aten::load" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100
    markdown = files[0].read_text()
    assert markdown.startswith("### 3 ranks: GPUs idle")
    assert "| **rank 1** |" in markdown


def test_a_single_file_stays_a_single_diagnosis(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert result(capsys, folder / "rank0.json.gz")["schema"] == "hostgap.diagnosis/1"
    # a pattern says that a set is wanted, whatever it matches
    assert result(capsys, folder / "rank0*")["schema"] == "hostgap.diagnosis-set/1"


def test_an_unmeasurable_or_unreadable_rank_is_3_with_its_json(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "rank3.json").write_text(json.dumps({"traceEvents": [CPU]}))
    found = result(capsys, folder, code=3)
    assert [one["status"] for one in found["ranks"]] == ["ok", "ok", "ok", "unmeasurable"]
    (folder / "rank3.json").write_bytes(b"\x1f\x8b\x08\x00damaged")
    found = result(capsys, folder, code=3)
    assert found["ranks"][3]["status"] == "failed"
    assert found["summary"]["compared"] == 3
    for path in folder.iterdir():
        path.write_bytes(b"\x1f\x8b\x08\x00damaged")
    assert run(["analyze", str(folder), "--jobs", "1"]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) <= 2
    assert "and 3 more" in error


def test_ranks_of_which_none_supports_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their collectives were recorded all the same; most kernels were not."""
    for rank in range(3):
        events = document(Job(3, host_us={1: 320}), rank)["traceEvents"]
        for event in [e for e in events if e["name"] == "cudaLaunchKernel"]:
            args = {**event["args"], "correlation": event["args"]["correlation"] + 100_000}
            start = f"{float(event['ts']) + 0.2:.3f}"
            events.append({**event, "ts": start, "dur": "0.1", "args": args})
        kept = [event for event in events if event["name"] != "gemm"]
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"traceEvents": kept}))
    found = result(capsys, tmp_path, code=3)
    assert [one["status"] for one in found["ranks"]] == ["unmeasurable"] * 3


def test_names_that_say_other_ranks_than_the_traces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document(Job(2), 0)))
    notes = result(capsys, tmp_path)["summary"]["notes"]
    assert notes == ["ranks are as the files' names say; the traces say of themselves: 0, 0"]


def test_a_frontend_is_no_rank(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "APIServer"}}
    (folder / "host.json").write_text(json.dumps({"traceEvents": [CPU, name]}))
    (folder / "host_12.async_llm.17.pt.trace.json").write_text(json.dumps({"traceEvents": [CPU]}))
    found = result(capsys, folder)
    assert (found["summary"]["ranks"], found["summary"]["frontends"]) == (3, 2)
    ends = [(one["role"], one["rank"], one["status"]) for one in found["ranks"][-2:]]
    assert ends == [("frontend", None, "not read"), ("frontend", None, "unmeasurable")]
    assert found["summary"]["not_compared"] is None


def test_other_documents_in_a_folder_are_left_out(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "settings.json").write_text('{"a": 1}')
    found = result(capsys, folder)
    assert found["summary"]["ranks"] == 3
    assert "left out: no trace" in found["summary"]["notes"][0]
    # named itself, it is asked for
    found = result(capsys, folder / "rank0.json.gz", folder / "settings.json", code=3)
    assert found["ranks"][1]["status"] == "failed"


def test_fail_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", str(folder), "--jobs", "1", "--fail-on", "error"]) == 1
    assert "HG702" in capsys.readouterr().err


def test_batches_over_several_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for at, (batch, kernel) in enumerate(((1, 20), (64, 4000))):
        write(Job(1, kernel_us={0: kernel}, usual_us=100), tmp_path, name=f"{at}.json")
        path = tmp_path / f"{at}.json"
        text = path.read_text()
        for step in reversed(range(12)):
            text = text.replace(f"ProfilerStep#{step}", f"step[DECODE bs={batch}]")
        path.write_text(text)
    found = result(capsys, tmp_path)
    batches = found["summary"]["batches"]
    assert [point["batch"] for point in batches["points"]] == [1, 64]
    assert batches["host_bound_below"] == 64
    assert run(["analyze", str(tmp_path), "--jobs", "1"]) == 0
    assert "Below 64 the host limits the step." in capsys.readouterr().out


def test_run_directories_keep_their_own_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = SAMPLES / "gpu_bound.json.gz"
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(SAMPLES / "eager_item.json.gz", folder / "cpu_cuda.json.gz")
    step = Estimate(median_ns=35e6, low_ns=35e6, high_ns=35e6)
    passes = [Pass(mode="cpu+cuda", file="cpu_cuda.json.gz", step=step)]
    written = measurement(step_ns=20e6, passes=passes)
    (folder / "measurement.json").write_bytes(msgspec.json.encode(written))
    found = result(capsys, plain, folder)
    bases = [one["diagnosis"]["saving_basis"] for one in found["ranks"]]
    assert sorted(bases) == ["calibrated", "upper_bound"]
    assert run(["analyze", str(plain), str(folder), "--unprofiled-step-ms", "3"]) == 2
    assert f"{folder} holds the step that was measured" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["--engine", "dask"], "--scheduler"),
        (["--scheduler", "tcp://x:1"], "--engine dask"),
        (["--engine", "dask", "--scheduler", "tcp://x:1", "--jobs", "2"], "--jobs"),
        (["--jobs", "0"], "--jobs"),
    ],
)
def test_options_that_do_not_fit(
    folder: Path, args: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["analyze", str(folder), *args]) == 2
    error = capsys.readouterr().err
    assert word in error
    assert len(error.splitlines()) <= 2


def test_names_from_outside_are_shown_escaped(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "rank0.json.gz").rename(folder / "evil\x1b[31m|`rank0.json.gz")
    assert run(["analyze", str(folder), "--jobs", "1", "--format", "markdown"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    (folder / "bad\x1b[2J.json").write_text("nope")
    assert run(["analyze", str(folder), "--jobs", "1"]) == 3
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err


def test_a_url_without_fsspec(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert run(["analyze", "s3://bucket/rank0.json"]) == 2
    assert "pip install 'hostgap[remote]'" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["traces", "traces/*"])
@pytest.mark.parametrize("run_dirs", [False, True])
def test_no_output_replaces_what_is_read(
    given: str,
    run_dirs: bool,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder.parent)
    if run_dirs:
        kept = folder / "rank9" / "measurement.json"
        kept.parent.mkdir()
        kept.write_bytes(msgspec.json.encode(measurement()))
    else:
        kept = folder / "rank9.json"
        kept.write_text(json.dumps({"traceEvents": [CPU]}))
    before = kept.read_bytes()
    output = str(kept.relative_to(folder.parent))
    assert run(["analyze", given, "-o", output, "--force"]) == 2
    assert f"-o {output}: that is" in capsys.readouterr().err
    assert kept.read_bytes() == before


def test_a_label_is_of_the_rank_that_the_trace_says(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "rank0.json.gz").rename(folder / "x")
    (folder / "rank1.json.gz").rename(folder / "rank0.json.gz")
    (folder / "x").rename(folder / "rank1.json.gz")
    found = result(capsys, folder)
    assert [(one["rank"], one["label"]) for one in found["ranks"]] == [
        (0, "rank 0"),
        (1, "rank 1"),
        (2, "rank 2"),
    ]
    assert found["summary"]["straggler"]["label"] == "rank 1"
    assert found["ranks"][1]["file"].endswith("rank0.json.gz")
