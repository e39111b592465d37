"""Ranks whose recording shows other waits than there are: what was measured without it decides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from hostgap.profiling.rundir import read_measurement, write_measurement
from hostgap.ranks.diagnose import diagnose_set
from hostgap.ranks.engines import Local
from hostgap.ranks.model import DiagnosisSet, SetSummary
from hostgap.ranks.view import headline, straggler_lines
from tests.ranks.simulated import Loop, Simulated, write_runs

MS = 1_000_000
MODES = pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])


def observed(loop: Loop, slowed: int) -> Loop:
    """The loop as a recorder makes it: one rank's host half as slow again, its launches too."""
    slower = {rank: (1 + loop.slower.get(rank, 0)) * 1.2 - 1 for rank in range(loop.ranks)}
    slower[slowed] = (1 + loop.slower.get(slowed, 0)) * 1.8 - 1
    extra = dict.fromkeys(range(loop.ranks), 200000) | {slowed: 500_000}
    return replace(loop, slower=slower, launch_extra=extra)


def diagnosed(loop: Loop, folder: Path, slowed: int = 0) -> DiagnosisSet:
    write_runs(folder, Simulated(observed(loop, slowed)), Simulated(loop))
    return diagnose_set([str(folder)], engine=Local(1))


def loss(loop: Loop) -> float:
    even = replace(loop, work={}, upload={}, kernel_extra={}, slower={})
    return Simulated(loop).step_ns - Simulated(even).step_ns


def named(summary: SetSummary) -> tuple[int | None, str, str | None] | None:
    late = summary.straggler
    if late is None or not late.clear:
        return None
    return late.rank, late.cause, late.site.function if late.site is not None else None


@MODES
@pytest.mark.parametrize("slowed", [0, 1])
def test_even_ranks(tmp_path: Path, graph: bool, slowed: int) -> None:
    loop = Loop(graph, jitter=3_000, steps=16, layers=8)
    found = diagnosed(loop, tmp_path, slowed)
    assert named(found.summary) is None
    assert (found.summary.wait_cost_share or 0.0) < 0.02
    assert "no host falls behind" in straggler_lines(found)[0]
    assert not [f for f in found.summary.findings if f.code == "HG702"]


def test_even_ranks_without_that_measurement_look_uneven(tmp_path: Path) -> None:
    loop = Loop(graph=False, jitter=3_000)
    write_runs(tmp_path, Simulated(observed(loop, 0)), None)
    found = diagnose_set([str(tmp_path)], engine=Local(1))
    assert named(found.summary) == (0, "slower-host", None)
    assert found.summary.straggler is not None
    assert found.summary.straggler.pace == pytest.approx(0.5, abs=0.1)
    assert "it may be the recorder" in straggler_lines(found)[1]


@MODES
@pytest.mark.parametrize("slowed", [0, 1])
def test_python_in_one_rank(tmp_path: Path, graph: bool, slowed: int) -> None:
    loop = Loop(graph, work={1: MS}, jitter=3_000, steps=16, layers=8)
    found = diagnosed(loop, tmp_path, slowed)
    assert named(found.summary) == (1, "python", "check")
    late = found.summary.straggler
    assert late is not None
    assert late.cause_excess_ns == pytest.approx(MS, rel=0.05)
    assert late.late_ns == pytest.approx(MS, rel=0.1)
    assert found.summary.wait_cost_ns == pytest.approx(loss(loop), rel=0.1)
    waits = [one.figures.untraced_wait_ns for one in found.ranks if one.figures is not None]
    if graph:
        assert waits[0] == pytest.approx(loss(loop), rel=0.1)
    assert "without a profiler its host falls" in straggler_lines(found)[0]
    assert "Without a profiler they wait" in headline(found)
    severe = {f.code: f for f in found.summary.findings}
    share = loss(loop) / Simulated(loop).step_ns
    assert severe["HG702"].predicted_saving_share == pytest.approx(share, rel=0.1)


@MODES
@pytest.mark.parametrize("slowed", [0, 1])
def test_an_upload_in_one_rank(tmp_path: Path, graph: bool, slowed: int) -> None:
    loop = Loop(graph, upload={1: MS}, jitter=3_000, steps=16, layers=8)
    found = diagnosed(loop, tmp_path, slowed)
    assert named(found.summary) == (1, "copy_call", "upload")
    assert found.summary.wait_cost_ns == pytest.approx(loss(loop), rel=0.1)


@pytest.mark.parametrize("slowed", [0, 1])
def test_a_slower_gpu_in_a_graph_is_not_late_when_it_comes_there(
    tmp_path: Path, slowed: int
) -> None:
    loop = Loop(graph=True, kernel_extra={1: 2_000}, steps=16, layers=8)
    found = diagnosed(loop, tmp_path, slowed)
    assert named(found.summary) == (1, "gpu-work", None)
    assert "its GPU works" in straggler_lines(found)[0]
    assert found.summary.wait_cost_ns == pytest.approx(loss(loop), rel=0.1)


def test_a_host_that_is_slower_at_everything(tmp_path: Path) -> None:
    loop = Loop(graph=False, slower={1: 0.3}, jitter=3_000, steps=16, layers=8)
    # recorded, the other one is nearly as slow
    recorded = replace(loop, slower={0: 0.9, 1: 1.3})
    write_runs(tmp_path, Simulated(recorded), Simulated(loop))
    found = diagnose_set([str(tmp_path)], engine=Local(1))
    assert named(found.summary) == (1, "slower-host", None)
    assert "slower at everything" in straggler_lines(found)[1]


def test_what_a_recording_does_not_explain_may_be_chance(tmp_path: Path) -> None:
    even = Loop(graph=False, jitter=3_000, steps=16, layers=8)
    write_runs(tmp_path, Simulated(even), Simulated(replace(even, work={1: MS})))
    found = diagnose_set([str(tmp_path)], engine=Local(1))
    assert named(found.summary) is None
    late = found.summary.straggler
    assert late is not None
    assert (late.rank, late.cause) == (1, "unattributable")
    assert late.late_ns == pytest.approx(MS, rel=0.1)
    assert "Without a profiler rank 1's host fell" in straggler_lines(found)[0]
    assert "measure again" in straggler_lines(found)[1]
    assert not [f for f in found.summary.findings if f.code == "HG702"]


def test_one_run_without_that_measurement_is_judged_by_the_recording(tmp_path: Path) -> None:
    loop = Loop(graph=True, work={1: MS}, jitter=3_000)
    write_runs(tmp_path, Simulated(loop), Simulated(loop))
    again = tmp_path / "before"
    again.mkdir()
    write_runs(again, Simulated(loop), None)
    (tmp_path / "rank0" / "measurement.json").write_bytes(
        (again / "rank0" / "measurement.json").read_bytes()
    )
    paths = [str(tmp_path / "rank0"), str(tmp_path / "rank1")]
    found = diagnose_set(paths, engine=Local(1))
    assert named(found.summary) == (1, "python", "check")
    assert found.summary.straggler is not None
    assert found.summary.straggler.late_ns is None
    assert found.summary.untraced_wait_share is None


@pytest.mark.parametrize(
    ("graph", "note"),
    [
        (True, "its graph replays were not seen"),
        (False, "1 of 8 collectives a step were seen"),
    ],
    ids=["graph", "eager"],
)
def test_collectives_that_were_not_seen(tmp_path: Path, graph: bool, note: str) -> None:
    # most of them lie in compiled code: those that were seen say nothing of the others
    loop = Loop(graph, work={1: MS}, jitter=3_000, steps=16, layers=8)
    even = replace(loop, work={})
    write_runs(tmp_path, Simulated(loop), Simulated(even))
    assert named(diagnose_set([str(tmp_path)], engine=Local(1)).summary) is None
    for rank in range(2):
        run = tmp_path / f"rank{rank}"
        one = read_measurement(run)
        assert one.waits is not None
        assert (one.waits.collectives, one.waits.replays) == (0, 1) if graph else (8, 0)
        seen = 0.0 if graph else 1.0
        waits = msgspec.structs.replace(one.waits, collectives=seen, replays=0.0)
        write_measurement(run, msgspec.structs.replace(one, waits=waits))
    found = diagnose_set([str(tmp_path)], engine=Local(1)).summary
    assert named(found) == (1, "python", "check")
    assert found.straggler is not None
    assert found.straggler.late_ns is None
    assert note in found.notes[0]


@pytest.mark.parametrize(("slower", "named_rank"), [(0.06, None), (0.2, 1)])
def test_a_host_slower_by_no_more_than_chance_is_not_named(
    tmp_path: Path, slower: float, named_rank: int | None
) -> None:
    loop = Loop(graph=False, slower={1: slower}, jitter=1_000, steps=16, layers=8)
    write_runs(tmp_path, Simulated(replace(loop, jitter=8_000)), Simulated(loop))
    late = diagnose_set([str(tmp_path)], engine=Local(1)).summary.straggler
    assert late is not None
    assert late.rank == 1
    assert (late.late_low_ns or 0) > 0.02 * Simulated(loop).step_ns
    assert late.clear == (named_rank is not None)
