"""What waits for a straggler cost, and what it does more of: simulated loops of known truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hostgap.ranks.diagnose import diagnose_set
from hostgap.ranks.engines import Local
from hostgap.ranks.model import DiagnosisSet
from tests.ranks.simulated import Loop, Simulated

MS = 1_000_000


def diagnosed(loop: Loop, folder: Path) -> DiagnosisSet:
    Simulated(loop).write(folder)
    return diagnose_set([str(folder)], engine=Local(1))


def loss(loop: Loop) -> float:
    """What the loop's faults cost, ns a step."""
    even = replace(loop, work={}, upload={}, kernel_extra={}, slower={})
    return Simulated(loop).step_ns - Simulated(even).step_ns


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
def test_a_rank_held_up_by_python(tmp_path: Path, graph: bool) -> None:
    loop = Loop(graph, work={1: MS}, jitter=4_000)
    found = diagnosed(loop, tmp_path).summary
    assert found.straggler is not None
    assert (found.straggler.rank, found.straggler.clear) == (1, True)
    assert found.straggler.cause == "python"
    assert found.straggler.site is not None
    assert found.straggler.site.function == "check"
    assert found.straggler.cause_excess_ns == pytest.approx(MS, rel=0.05)
    assert found.wait_cost_ns == pytest.approx(loss(loop), rel=0.1)


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
def test_a_rank_with_a_blocking_upload(tmp_path: Path, graph: bool) -> None:
    loop = Loop(graph, upload={0: MS}, jitter=4_000)
    found = diagnosed(loop, tmp_path).summary
    assert found.straggler is not None
    assert (found.straggler.rank, found.straggler.clear) == (0, True)
    assert found.straggler.cause == "copy_call"
    assert found.straggler.site is not None
    assert found.straggler.site.function == "upload"
    assert found.wait_cost_ns == pytest.approx(loss(loop), rel=0.1)


def test_a_slow_gpu(tmp_path: Path) -> None:
    loop = Loop(graph=True, kernel_extra={1: 2_000})
    found = diagnosed(loop, tmp_path).summary
    assert found.straggler is not None
    assert (found.straggler.rank, found.straggler.cause) == (1, "gpu-work")
    assert found.wait_cost_ns == pytest.approx(loss(loop), rel=0.1)


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize("seed", range(3))
def test_even_ranks_that_jitter(tmp_path: Path, graph: bool, seed: int) -> None:
    found = diagnosed(Loop(graph, jitter=8_000, seed=seed), tmp_path).summary
    assert found.straggler is None or not found.straggler.clear
    assert (found.wait_cost_share or 0.0) < 0.02


def test_in_an_eager_loop_the_sum_of_waits_is_not_what_they_cost(tmp_path: Path) -> None:
    # the host of the rank that waits is ahead: its GPU would idle where it spins
    loop = Loop(graph=False, work={1: MS})
    found = diagnosed(loop, tmp_path)
    waits = [one.figures.rank_wait_ns or 0 for one in found.ranks if one.figures is not None]
    steps = loop.steps - 1
    assert waits[0] / steps > 1.5 * loss(loop)
    assert found.summary.wait_cost_ns == pytest.approx(loss(loop), rel=0.05)
