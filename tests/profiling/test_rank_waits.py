"""Waits without a profiler: what is seen of collectives, and what it says of ranks."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hostgap.profiling import requests as r
from hostgap.profiling.bench import Variant
from hostgap.profiling.measurement import GraphTimes
from hostgap.profiling.rank_group import RankGroup
from hostgap.profiling.rank_waits import rank_waits
from hostgap.profiling.ranked import waits_of
from hostgap.profiling.requests import REPLAY, Stop, WatchedStep
from hostgap.profiling.target import TargetSpec
from tests.profiling import cpu_child

torch = pytest.importorskip("torch", reason="torch is not installed")

BOTH = (0, 1)
TARGET = """
import os, time
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

rank = int(os.environ["RANK"])
alone = [dist.new_group([each]) for each in (0, 1)][rank]

def step():
    if rank == 1:
        time.sleep(0.03)
    total = torch.ones(3)
    dist.all_reduce(total)
    parts = [torch.empty(3) for _ in range(2)]
    distributed_c10d.all_gather(parts, total, dist.group.WORLD)
    dist.all_reduce(total, group=alone)
    later = dist.all_reduce(total, dist.ReduceOp.SUM, None, True)
    later.wait()
    dist.broadcast(total, 0)
    return total
"""


def blocks(
    rank: int,
    late: Callable[[int, int], int],
    inside: Callable[[int, int], float],
    *,
    what: tuple[str, ...] = ("all_reduce",) * 4,
    ranks: tuple[int, ...] = BOTH,
    n: int = 8,
) -> list[list[WatchedStep]]:
    """Blocks of 5 steps that begin every 2 ms, with stops every 400 us.

    Args:
        rank: whose.
        late: rank and stop -> by how much later its host is there, ns.
        inside: rank and stop -> what its GPU spends there, ns.
        what: the stops.
        ranks: that meet.
        n: blocks.
    """
    found = []
    for number in range(n):
        steps = []
        for index in range(5):
            begun = (number * 5 + index) * 2_000_000
            stops = [
                Stop(kind, ranks, begun + 400_000 * (at + 1) + late(rank, at), inside(rank, at))
                for at, kind in enumerate(what)
            ]
            steps.append(WatchedStep(begun, stops, 0))
        found.append(steps)
    return found


def test_a_host_that_is_late_from_the_second_stop_on() -> None:
    def late(rank: int, at: int) -> int:
        return 300_000 if rank == 1 and at >= 1 else 0

    def inside(rank: int, at: int) -> float:
        return 320_000.0 if rank == 0 and at >= 1 else 20_000.0

    watched = [blocks(rank, late, inside) for rank in BOTH]
    first, second = rank_waits(watched, [[], []])
    assert first is not None
    assert second is not None
    assert first.wait.median_ns == second.caused.median_ns == 900_000  # three times
    assert first.caused.median_ns == second.wait.median_ns == 0
    assert first.lost.median_ns == second.late.median_ns == 300_000  # and late once
    assert second.lost.median_ns == 0
    assert first.late.median_ns == -300_000
    assert first.wait_by_stop_ns == [0, 300_000, 300_000, 300_000]
    assert (first.ranks, first.collectives, first.replays) == (2, 4, 0)
    assert first.step_ns == 2_000_000
    assert first.inside.median_ns == 20_000 + 3 * 320_000


def test_a_host_that_is_late_where_no_gpu_waits_is_late_at_no_cost() -> None:
    watched = [blocks(rank, lambda rank, _: 500_000 * rank, lambda *_: 20_000.0) for rank in BOTH]
    first, second = rank_waits(watched, [[], []])
    assert first is not None
    assert second is not None
    assert first.lost.median_ns == second.late.median_ns == 0


def test_even_ranks_of_noisy_hosts() -> None:
    chance = random.Random(1)
    watched: list[list[list[WatchedStep]]] = [[], []]
    for _ in range(20):
        for block in watched:
            block.append([])
        for index in range(5):
            calls = []
            for _ in BOTH:
                # what a host lost at one stop it has not made up for at the next
                lost = [chance.randint(0, 60_000) for _ in range(8)]
                calls.append([200_000 * at + sum(lost[:at]) for at in range(1, 9)])
            for rank, own in enumerate(calls):
                stops = [
                    Stop("all_reduce", BOTH, call, 2e4 + max(pair) - call)
                    for call, pair in zip(own, zip(*calls, strict=True), strict=True)
                ]
                begun = index * 2_000_000
                stops = [Stop(s.what, BOTH, begun + s.called_ns, s.inside_ns) for s in stops]
                watched[rank][-1].append(WatchedStep(begun, stops, 0))
    found = rank_waits(watched, [[], []])
    for one in found:
        assert one is not None
        assert abs(one.late.median_ns) < 0.01 * one.step_ns
        assert one.wait.median_ns > 0.04 * one.step_ns  # though each waits for the other


def test_a_slower_gpu_in_graphs_without_collectives_is_no_wait() -> None:
    # rank 1 takes longer for the graph; rank 0 waits for that in the collective after it
    what = (REPLAY, "all_reduce")

    def inside(rank: int, at: int) -> float:
        return [[500_000.0, 120_000.0], [600_000.0, 20_000.0]][rank][at]

    watched = [blocks(rank, lambda *_: 0, inside, what=what) for rank in BOTH]
    graphs = [[GraphTimes(call_ns=1e4, span_ns=ns)] for ns in (500_000.0, 600_000.0)]
    first, second = rank_waits(watched, graphs)
    assert first is not None
    assert second is not None
    assert (first.wait.median_ns, second.wait.median_ns) == (100_000, 0)
    guessed, _ = rank_waits(watched, [[], []])
    assert guessed is not None
    assert guessed.wait.median_ns == 100_000


def test_a_graph_is_longer_by_the_wait_in_it() -> None:
    def inside(rank: int, _: int) -> float:
        return [1_640_000.0, 640_000.0][rank]

    what = (REPLAY,)
    late = lambda rank, _: 1_000_000 * rank  # noqa: E731
    watched = [blocks(rank, late, inside, what=what) for rank in BOTH]
    graphs = [[GraphTimes(call_ns=1e4, span_ns=635_000.0)]] * 2
    first, second = rank_waits(watched, graphs)
    assert first is not None
    assert second is not None
    assert first.wait.median_ns == first.lost.median_ns == second.late.median_ns == 1_000_000


def test_groups_are_held_against_each_other_each_for_itself() -> None:
    def late(rank: int, _: int) -> int:
        return {0: 0, 1: 200_000, 2: 700_000, 3: 500_000}[rank]

    def inside(rank: int, _: int) -> float:
        return {0: 220_000.0, 1: 20_000.0, 2: 20_000.0, 3: 220_000.0}[rank]

    groups = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
    watched = [blocks(rank, late, inside, ranks=groups[rank]) for rank in range(4)]
    found = rank_waits(watched, [[]] * 4)
    waits = [one.wait.median_ns for one in found if one is not None]
    assert waits == [800_000, 0, 0, 800_000]
    lost = [one.lost.median_ns for one in found if one is not None]
    assert lost == [200_000, 0, 0, 200_000]


def test_a_step_that_meets_otherwise_is_left_out() -> None:
    watched = [blocks(rank, lambda *_: 0, lambda *_: 2e4) for rank in BOTH]
    watched[0][0][0].stops.pop()
    watched[0][1][1].stops[0] = Stop("all_gather", BOTH, 0, 9e9)
    first, _ = rank_waits(watched, [[], []])
    assert first is not None
    assert first.wait.high_ns == 0


def test_ranks_that_never_meet() -> None:
    nothing = [[[WatchedStep(0, [], 0)]]] * 2
    assert rank_waits(nothing, [[], []]) == [None, None]
    one_sided = [blocks(0, lambda *_: 0, lambda *_: 2e4), [[WatchedStep(0, [], 0)]]]
    assert rank_waits(one_sided, [[], []]) == [None, None]


def test_what_is_seen_of_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hostgap.profiling.worker._BEGIN", cpu_child.BEGIN)
    path = tmp_path / "job.py"
    path.write_text(TARGET, encoding="utf-8")
    spec = TargetSpec(target=f"{path}:step", ranks=2)
    with RankGroup(spec, [None, None], timeout_s=60) as group:
        measured: list[r.Measured] = group.ask(r.Measure(Variant(), 5, 5, 3), r.Measured)
    for one in measured:
        assert [len(block) for block in one.watched] == [5, 5, 5]
        for step in one.watched[0]:
            # neither what one rank does alone, nor a broadcast, whose root may leave early
            assert [(s.what, s.ranks) for s in step.stops] == [
                ("all_reduce", BOTH),
                ("all_gather", BOTH),
            ]
            assert step.unwatched == 1
    first, second = waits_of(measured)
    assert first is not None
    assert second is not None
    assert 25e6 < second.late.median_ns < 45e6
    assert 25e6 < first.lost.median_ns < 45e6
    assert first.wait_by_stop_ns[0] > 25e6
    assert second.lost.median_ns < 5e6


def test_functions_of_torch_are_put_back() -> None:
    import torch.distributed as dist

    from hostgap.profiling.watch import COLLECTIVES, _calling

    seen: list[tuple[str, Any, bool]] = []

    def around(name: str, group: Any, later: bool, _: Callable[[], Any]) -> str:
        seen.append((name, group, later))
        return "done"

    before = [getattr(dist, name) for name in COLLECTIVES]
    reduce: Any = dist.all_reduce
    with pytest.raises(ValueError, match="no such"), _calling(around):
        hooked: Any = dist.all_reduce
        assert hooked is not reduce
        assert hooked(1, "sum", "group", True) == "done"
        assert hooked(1, async_op=False, group="other") == "done"
        raise ValueError("no such")
    assert seen == [("all_reduce", "group", True), ("all_reduce", "other", False)]
    assert [getattr(dist, name) for name in COLLECTIVES] == before


def test_compiled_code_is_compiled_once_more_and_stays_whole() -> None:
    import torch.distributed as dist

    from hostgap.profiling.watch import _calling

    graphs: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(len(graph.graph.nodes))
        return graph

    @torch.compile(backend=backend)
    def step(value: Any) -> Any:
        doubled = value * 2
        dist.all_reduce(doubled)
        return doubled + 1

    store: Any = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        step(torch.ones(3))
        with _calling(lambda *_: pytest.fail("a call in compiled code")):
            for _ in range(3):
                assert step(torch.ones(3)).tolist() == [3.0] * 3
    finally:
        dist.destroy_process_group()
    assert len(graphs) == 2
    assert graphs[0] == graphs[1]
