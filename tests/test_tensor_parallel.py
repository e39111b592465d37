"""The benchmark of real ranks: recorded on a CPU as far as that goes, scored on simulated ranks."""

from __future__ import annotations

import gzip
import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hostgap.errors import FixFailed
from hostgap.profiling.rundir import read_measurement
from hostgap.ranks.inputs import find_inputs
from hostgap.trace.load import load_trace
from tests.profiling import cpu_child
from tests.ranks.simulated import Loop, Simulated, write_runs

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
MS = 1_000_000
FUNCTIONS = {"host_work": "check", "table_upload": "upload"}  # as the simulation calls them


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("tensor_parallel")
    sys.modules.pop("tensor_parallel", None)


def invoke(bench: Any, *args: object) -> str:
    done = CliRunner().invoke(bench.main, [str(arg) for arg in args], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def recorded(folder: Path, mode: str, *, observed: bool = False) -> None:
    """A folder as `record` leaves it, of simulated ranks; or as it was before waits were measured
    without a profiler, and of a recorder that slows all hosts alike."""
    even = Loop(graph=mode == "graph", jitter=3_000)
    truth = {}
    for fault, loop in (
        ("even", even),
        ("host_work", replace(even, work={1: MS})),
        ("table_upload", replace(even, upload={1: MS})),
    ):
        done = Simulated(loop)
        case = folder / f"{mode}-{fault}"
        case.mkdir(parents=True)
        slowed = replace(loop, slower={0: 0.5}, launch_extra={0: 300_000}) if observed else loop
        write_runs(case, Simulated(slowed), done if observed else None)
        truth[f"{mode}-{fault}"] = [done.step_ns] * 5
    text = json.dumps({"ranks": 2, "preset": "shallow", "step_ns": truth})
    (folder / "truth.json").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_simulated_ranks_are_scored(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, observed: bool
) -> None:
    recorded(tmp_path, mode, observed=observed)
    monkeypatch.setattr(bench, "PLACES", FUNCTIONS)
    output = invoke(bench, "score", tmp_path)
    assert "3 of 3 right" in output
    rows = json.loads((tmp_path / "score.json").read_text(encoding="utf-8"))["rows"]
    for row in rows[1:]:
        assert row["loss_us"] == pytest.approx(1000, rel=0.1)
        assert abs(row["off"]) < 0.1
        assert row["straggler"]["rank"] == 1
        assert row["utilization"][0] > row["without_collectives"][0]
        assert len(row["untraced_wait_us"]) == (2 if observed else 0)
    assert f"| {mode}-host_work |" in output


def test_a_wrong_answer_is_no_point(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path, "graph")
    monkeypatch.setattr(bench, "PLACES", FUNCTIONS | {"host_work": "elsewhere"})
    assert "2 of 3 right" in invoke(bench, "score", tmp_path)
    even, faulty = tmp_path / "graph-even", tmp_path / "graph-host_work"
    even.rename(tmp_path / "kept")
    faulty.rename(even)  # a straggler among ranks that are called even
    monkeypatch.setattr(bench, "PLACES", FUNCTIONS)
    assert "1 of 2 right" in invoke(bench, "score", tmp_path)


def test_samples_are_short_and_listed(bench: Any, tmp_path: Path) -> None:
    recorded(tmp_path / "out", "eager")
    dest = tmp_path / "dest"
    for _ in range(2):  # again: an entry is replaced, and not added twice
        invoke(bench, "samples", tmp_path / "out", dest, "--pairs", "eager-host_work", "--steps", 3)
    entries = json.loads((dest / "samples.json").read_text(encoding="utf-8"))
    assert [entry["name"] for entry in entries] == [
        "tp_eager_host_work_rank0",
        "tp_eager_host_work_rank1",
    ]
    assert entries[1]["steps"] == 3
    found = find_inputs([str(dest / "*.gz")])
    assert [one.said.rank for one in found.traces] == [0, 1]
    whole = load_trace(str(tmp_path / "out" / "eager-host_work" / "rank1" / "stacks.json.gz"))
    short = load_trace(found.traces[1].name)
    assert len(short.gpu_ops) * 12 == len(whole.gpu_ops) * 3
    assert (short.gpu_ops.call >= 0).all()
    document = json.loads(gzip.decompress(Path(found.traces[1].name).read_bytes()))
    assert document["distributedInfo"]["rank"] == 1


def test_record_on_a_cpu(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hostgap.profiling.worker._BEGIN", cpu_child.BEGIN)
    monkeypatch.setattr(bench, "FAULTS", ("host_work",))
    size = (
        "--steps",
        3,
        "--repeats",
        2,
        "--rounds",
        2,
        "--traced",
        3,
        "--device",
        "0,1",
        "--only",
        "eager",
    )
    output = invoke(bench, "record", tmp_path, "--preset", "tiny", *size)
    assert "done, 0 problems" in output, output
    assert json.loads((tmp_path / "problems.json").read_text(encoding="utf-8")) == []
    truth = json.loads((tmp_path / "truth.json").read_text(encoding="utf-8"))["step_ns"]
    assert set(truth) == {"eager-even", "eager-host_work"}
    assert all(len(each) == 2 for each in truth.values())
    for rank in range(2):
        one = read_measurement(tmp_path / "eager-host_work" / f"rank{rank}")
        assert [each.mode for each in one.passes] == ["cpu+cuda", "stacks"]
        assert one.options["ranks"] == 2
        assert one.waits is not None
        assert one.waits.ranks == 2
        assert len(one.timing.blocks_ns) == 4


def test_what_fails_is_noted_and_the_rest_goes_on(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Group:
        """Processes that end at the first thing that they cannot do."""

        opened = closed = 0
        welcomes: tuple[Any, ...] = ()

        def __init__(self, *_: Any, **__: Any) -> None:
            Group.opened += 1

        def ask(self, request: str, _: Any) -> list[str]:
            if request == "capture":
                raise FixFailed("cuda-graph: the step reads from the GPU", "in step at job.py:7")
            return [request] * 2

        def close(self) -> None:
            Group.closed += 1

    monkeypatch.setattr(bench, "RankGroup", Group)
    run = bench.Recorder(None, [None, None])
    with run.processes():
        assert run.ask("one", "one", str) == ["one", "one"]
        assert run.ask("two", "capture", str) is None
        assert run.ask("three", "three", str) == ["three", "three"]
    assert (Group.opened, Group.closed) == (2, 2)
    assert run.problems == ["two: cuda-graph: the step reads from the GPU (in step at job.py:7)"]
    for index in range(3):
        assert run.ask(f"graph-{index}", "capture", str) is None
    assert Group.opened == 4  # the third is not tried
    assert run.problems[-1] == "graph-2: not tried, after 2 failures"
