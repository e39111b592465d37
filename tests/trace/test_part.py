"""Some steps of a large trace: the same figures as of the whole, from a part of it."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import hostgap
from hostgap.analysis import part as module
from hostgap.analysis.part import load_part
from hostgap.cli import run
from hostgap.diagnosis.judge import Judging
from hostgap.ranks.job import Job, run_job

SAMPLES = Path(__file__).parents[2] / "sample_traces"
CASES = Path(__file__).parents[3] / "shared" / "cases" / "kineto"


@pytest.fixture(autouse=True)
def _everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGE", 0)
    monkeypatch.setattr(module, "LARGE_COMPRESSED", 0)


def figures(diagnosis: hostgap.Diagnosis) -> dict[str, Any]:
    """All but rows of tables, of which a part has fewer, and what is said of the whole file."""
    found = msgspec.to_builtins(diagnosis)
    for finding in found["findings"]:
        del finding["evidence"]
    return found


@pytest.mark.parametrize("steps", [(0, 1), (1, 2), (2, 4), (3, None), (-1, None), (None, None)])
@pytest.mark.parametrize("name", ["eager_item", "cuda_graph", "compile", "gpu_bound"])
def test_figures_of_a_part_are_those_of_the_whole(
    name: str, steps: tuple[int | None, int | None]
) -> None:
    path = SAMPLES / f"{name}.json.gz"
    options = hostgap.Options(steps=steps)
    whole = hostgap.load_trace(path)
    part = load_part(path, options)
    assert part is not None
    assert len(part.trace.gpu_ops) <= len(whole.gpu_ops)
    found = part.renumbered(hostgap.analyze(part.trace, part.options))
    assert figures(found) == figures(hostgap.analyze(whole, options))


def test_a_part_is_a_part() -> None:
    part = load_part(SAMPLES / "eager_item.json.gz", hostgap.Options(steps=(0, 1)))
    assert part is not None
    whole = hostgap.load_trace(SAMPLES / "eager_item.json.gz")
    assert len(part.trace.gpu_ops) < 0.5 * len(whole.gpu_ops)
    assert len(part.trace.frames) < 0.6 * len(whole.frames)


def test_the_command_numbers_steps_as_the_whole_trace(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(SAMPLES / "eager_item.json.gz")
    shown = []
    for size in (0, 1 << 40):
        monkeypatch.setattr(module, "LARGE_COMPRESSED", size)
        assert run(["analyze", path, "--steps", "3:5", "--format", "json"]) == 0
        found = json.loads(capsys.readouterr().out)
        for finding in found["findings"]:
            del finding["evidence"]
        shown.append(found)
    assert shown[0] == shown[1]
    assert (shown[0]["steps"]["first"], shown[0]["steps"]["total"]) == (3, 5)


def test_a_rank_of_a_set_is_read_in_part_too() -> None:
    options = hostgap.Options(steps=(3, 4))
    path = SAMPLES / "eager.json.gz"
    outcome = run_job(Job(0, str(path), 1, options, Judging()))
    assert outcome.diagnosis is not None
    whole = hostgap.analyze(hostgap.load_trace(path), options)
    assert figures(outcome.diagnosis) == figures(whole)


def test_where_the_whole_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = hostgap.Options(steps=(1, 2))
    assert load_part(SAMPLES / "eager.json.gz", hostgap.Options()) is None
    assert load_part("-", steps) is None
    assert load_part(tmp_path / "none.json", steps) is None
    assert load_part(SAMPLES / "eager_item.sqlite", steps) is None
    assert load_part(SAMPLES / "compile_graphs.json.gz", hostgap.Options(steps=(90, None))) is None
    bad = hostgap.Options(steps=(1, 2), step_marker="(")
    with pytest.raises(hostgap.HostgapError, match="not a regular expression"):
        load_part(SAMPLES / "eager.json.gz", bad)
    # no annotation marks its steps
    text = gzip.decompress((SAMPLES / "cuda_graph.json.gz").read_bytes())
    (tmp_path / "bare.json").write_bytes(re.sub(rb"ProfilerStep#\d+", b"work", text))
    assert load_part(tmp_path / "bare.json", steps) is None
    monkeypatch.setattr(module, "LARGE", 1 << 40)
    assert load_part(tmp_path / "bare.json", steps) is None


def test_steps_by_a_marker() -> None:
    options = hostgap.Options(steps=(1, 3), step_marker=r"ProfilerStep#")
    path = SAMPLES / "cuda_graph.json.gz"
    part = load_part(path, options)
    assert part is not None
    found = part.renumbered(hostgap.analyze(part.trace, part.options))
    assert figures(found) == figures(hostgap.analyze(hostgap.load_trace(path), options))


@pytest.mark.skipif(not CASES.is_dir(), reason="needs the shared cases")
@pytest.mark.parametrize(
    "name",
    [
        "amd_mi300_vllm_graph_capture.pt.trace.json.gz",
        "nv_v100_2021_resnet50_noschema.pt.trace.json.gz",
    ],
)
def test_public_traces(name: str) -> None:
    options = hostgap.Options(steps=(2, 4))
    part = load_part(CASES / name, options)
    if part is None:
        pytest.skip("its steps are not marked")
    found = part.renumbered(hostgap.analyze(part.trace, part.options))
    whole = hostgap.analyze(hostgap.load_trace(CASES / name), options)
    mine, theirs = figures(found), figures(whole)
    for key in ("devices", "counts"):
        assert mine[key] == theirs[key]
    assert mine["steps"]["durations_ns"] == theirs["steps"]["durations_ns"]
