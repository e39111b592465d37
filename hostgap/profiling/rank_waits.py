"""Who waits for whom without a profiler: what each rank saw (`hostgap.profiling.watch`), compared.

All ranks leave a collective together, so whoever stays in it least came last, and the others wait
by how much longer they stay. A graph with collectives is lengthened by that wait. What the waits
cost is not their sum: a rank whose host is ahead waits in every collective where its GPU would else
idle. It is by how much further the host of the last falls behind within a step, and no more than
the waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hostgap.profiling.measurement import GraphTimes, Waits
from hostgap.profiling.requests import REPLAY, Stop, WatchedStep
from hostgap.profiling.statistics import estimate

Array = NDArray[np.float64]
Blocks = Sequence[Sequence[WatchedStep]]


def rank_waits(
    watched: Sequence[Blocks], graphs: Sequence[Sequence[GraphTimes]]
) -> list[Waits | None]:
    """What each rank waits for the others, and has them wait.

    Args:
        watched: per rank, its blocks of steps; as many on each.
        graphs: per rank, the replays of a step, measured with all ranks lined up.

    Returns:
        Per rank; None for one that has no collective or replay in common with others.
    """
    members = dict.fromkeys(
        stop.ranks
        for blocks in watched
        for block in blocks
        for step in block
        for stop in step.stops
    )
    teams = [
        team
        for ranks in members
        if len(ranks) > 1 and max(ranks) < len(watched)
        if (team := _team(ranks, watched, graphs)) is not None
    ]
    return [_of_rank(rank, teams, watched[rank]) for rank in range(len(watched))]


@dataclass(frozen=True, slots=True)
class _Team:
    """Ranks that meet: m of them, at n stops of a step, in b blocks of equal steps; ns a step.

    `inside`, `wait`, `caused`, `late` and `lost` are m lines of b means over the steps of a block;
    `by_stop` is m lines of n medians of `wait`. `numbers` are the b blocks' own.
    """

    ranks: tuple[int, ...]
    numbers: NDArray[np.int64]
    inside: Array
    wait: Array
    caused: Array
    late: Array
    lost: Array
    by_stop: Array


def _team(
    ranks: tuple[int, ...], watched: Sequence[Blocks], graphs: Sequence[Sequence[GraphTimes]]
) -> _Team | None:
    """Ranks held against each other in the steps in which they meet as usual; None without any."""
    steps: list[tuple[int, list[WatchedStep], list[list[Stop]]]] = []
    for number in range(min(len(watched[rank]) for rank in ranks)):
        for each in zip(*(watched[rank][number] for rank in ranks), strict=False):
            own = [[stop for stop in step.stops if stop.ranks == ranks] for step in each]
            steps.append((number, list(each), own))
    kinds = Counter(
        tuple(stop.what for stop in stops) for _, _, own in steps for stops in own if stops
    )
    if not kinds:
        return None
    usual = kinds.most_common(1)[0][0]
    steps = [
        one for one in steps if all(tuple(stop.what for stop in own) == usual for own in one[2])
    ]
    if not steps:
        return None
    block = np.array([number for number, _, _ in steps])
    inside = np.array([[[s.inside_ns for s in stops] for stops in own] for _, _, own in steps])
    # host times: the step's beginning, and each call; from the first of all, to stay exact
    origin = min(step.begun_ns for step in steps[0][1])
    host = np.array(
        [
            [
                [step.begun_ns - origin, *(stop.called_ns - origin for stop in stops)]
                for step, stops in zip(each, own, strict=True)
            ]
            for _, each, own in steps
        ],
        np.float64,
    )
    waits = _waits(inside, usual, [graphs[rank] for rank in ranks])
    numbers = np.unique(block)

    def blockwise(values: Array) -> Array:
        return np.stack([values[block == number].mean(axis=0) for number in numbers], axis=1)

    wait, caused = blockwise(waits.sum(axis=2)), blockwise(_caused(waits, inside).sum(axis=2))
    behind = np.stack([_behind(host, at) for at in range(len(ranks))], axis=1)
    return _Team(
        ranks,
        numbers,
        blockwise(inside.sum(axis=2)),
        wait,
        caused,
        np.minimum(blockwise(behind), caused),
        np.minimum(blockwise(np.maximum(-behind, 0)), wait),
        np.median(waits, axis=0),
    )


def _waits(inside: Array, kinds: Sequence[str], graphs: Sequence[Sequence[GraphTimes]]) -> Array:
    """What is waited at n stops of s steps by m ranks, [s, m, n], ns.

    A replay may have no collective in it, and last longer on one rank as its GPU is slower: no more
    is waited in it than it lasts longer than on that rank with all lined up.
    """
    waits: Array = inside - inside.min(axis=1, keepdims=True)
    replays = [at for at, kind in enumerate(kinds) if kind == REPLAY]
    for member, spans in enumerate(graphs):
        if len(spans) != len(replays):
            continue
        for at, span in zip(replays, spans, strict=True):
            longer = np.maximum(inside[:, member, at] - span.span_ns, 0)
            waits[:, member, at] = np.minimum(waits[:, member, at], longer)
    return waits


def _caused(waits: Array, inside: Array) -> Array:
    """What the others would have been spared by the last of them, [s, m, n], ns."""
    found = np.zeros_like(waits)
    last = inside.argmin(axis=1)
    for member in range(waits.shape[1]):
        others = np.delete(waits, member, axis=1).min(axis=1)
        found[:, member] = np.where(last == member, others, 0)
    return found


def _behind(host: Array, member: int) -> Array:
    """How much further a rank's host falls behind all others' within a step.

    Hosts meet where they wait for their GPUs. So it counts from where they usually are closest to
    where they usually are furthest apart, whatever else makes them wait there.

    Args:
        host: when s steps begin and their n stops are called, of m ranks, [s, m, 1 + n], ns.
        member: which rank; it is held against the last of the others.

    Returns:
        Of s steps, ns; negative where others fall behind it.
    """
    others = np.delete(host, member, axis=1).max(axis=1)
    apart = host[:, member] - others
    usual = np.abs(np.median(apart, axis=0))
    found: Array = apart[:, int(usual.argmax())] - apart[:, int(usual.argmin())]
    return found


def _of_rank(rank: int, teams: Sequence[_Team], blocks: Blocks) -> Waits | None:
    """All teams of a rank together; how late it is, in the one in which most is waited."""
    mine = [(team, team.ranks.index(rank)) for team in teams if rank in team.ranks]
    if not mine:
        return None
    main, at = max(mine, key=lambda pair: float(np.median(pair[0].wait.sum(axis=0))))
    common = [n for n in main.numbers if all(n in team.numbers for team, _ in mine)]
    if not common:
        mine, common = [(main, at)], list(main.numbers)

    def total(name: str) -> list[float]:
        rows = [getattr(team, name)[i][np.isin(team.numbers, common)] for team, i in mine]
        return [float(value) for value in np.sum(rows, axis=0)]

    steps = [step for block in blocks for step in block]
    stops = [stop for step in steps for stop in step.stops]
    replays = sum(stop.what == REPLAY for stop in stops) / len(steps)
    begun = [np.diff([step.begun_ns for step in block]) for block in blocks if len(block) > 1]
    return Waits(
        ranks=len(main.ranks),
        step_ns=float(np.median(np.concatenate(begun))) if begun else 0.0,
        collectives=len(stops) / len(steps) - replays,
        replays=replays,
        unwatched=sum(step.unwatched for step in steps) / len(steps),
        inside=estimate(total("inside")),
        wait=estimate(total("wait")),
        caused=estimate(total("caused")),
        late=estimate([float(value) for value in main.late[at]]),
        lost=estimate([float(value) for value in main.lost[at]]),
        wait_by_stop_ns=[round(float(value), 1) for value in main.by_stop[at]],
    )
