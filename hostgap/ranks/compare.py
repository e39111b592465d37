"""Ranks held against each other by their collectives: who waits, and for whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hostgap.analysis.causes import Cause
from hostgap.ranks.align import Team, teams
from hostgap.ranks.arrivals import Arrivals
from hostgap.ranks.model import CollectiveSummary
from hostgap.trace.model import Int64


@dataclass(slots=True)
class Waiting:
    """What one rank waits, and has others wait; ns over the collectives in its window.

    `rows` are those of gpu_ops of all its collectives, and `waits` what it waits in each.
    """

    wait_ns: int = 0
    exposed_ns: int = 0
    caused_ns: int = 0
    last: int = 0
    compared: int = 0
    rows: list[Int64] = field(default_factory=list)
    waits: list[Int64] = field(default_factory=list)


@dataclass(slots=True)
class Late:
    """Collectives that one rank was the last to start, and its time before them beyond others'."""

    excess_ns: int = 0
    idle_ns: int = 0
    by_cause: Int64 = field(default_factory=lambda: np.zeros(len(Cause), np.int64))


@dataclass(frozen=True, slots=True)
class Comparison:
    """All ranks against all.

    Attributes:
        waiting: index of a rank -> what it waits; only ranks that share collectives with others.
        collectives: a line per kernel and team, what was waited most in first.
        late: index of a rank -> what it did before the collectives that it was last at.
    """

    waiting: dict[int, Waiting]
    collectives: list[CollectiveSummary]
    late: dict[int, Late]


def compare(arrivals: Mapping[int, Arrivals], labels: Mapping[int, str]) -> Comparison:
    """Hold the collectives of ranks against each other.

    Args:
        arrivals: index of a rank -> its collectives.
        labels: index of a rank -> its name.
    """
    waiting: dict[int, Waiting] = {}
    late: dict[int, Late] = {}
    lines = []
    for team in teams(arrivals):
        _add_team(team, arrivals, waiting, late)
        middle = np.median(team.end, axis=0)
        lines.append(
            CollectiveSummary(
                kernel=team.kernel,
                labels=[labels[rank] for rank in team.ranks],
                count=team.start.shape[1],
                wait_ns=int(team.waits.sum()),
                spread_ns=round(float(np.median(np.abs(team.end - middle)))),
            )
        )
    lines.sort(key=lambda line: (-line.wait_ns, line.kernel))
    return Comparison(waiting, lines, late)


def _add_team(
    team: Team,
    arrivals: Mapping[int, Arrivals],
    waiting: dict[int, Waiting],
    late: dict[int, Late],
) -> None:
    waits = team.waits
    last = np.argmax(team.start, axis=0)
    ordered = np.sort(team.start, axis=0)
    delay = ordered[-1] - ordered[-2]  # that the others would have been spared
    delay[~team.together] = 0
    lines = list(enumerate(team.ranks))
    before = np.stack([arrivals[rank].before_ns[team.rows[at]] for at, rank in lines])
    idle = np.stack([arrivals[rank].idle_ns[team.rows[at]] for at, rank in lines])
    for at, rank in lines:
        mine, rows = arrivals[rank], team.rows[at]
        counted = mine.counted[rows]
        is_last = (last == at) & counted & (delay > 0)
        one = waiting.setdefault(rank, Waiting())
        one.rows.append(mine.row[rows])
        one.waits.append(waits[at])
        one.wait_ns += int(waits[at][counted].sum())
        beside = np.maximum(waits[at] - mine.covered_ns[rows], 0)
        one.exposed_ns += int(beside[counted].sum())
        one.caused_ns += int(delay[is_last].sum())
        one.last += int(np.count_nonzero(is_last))
        one.compared += int(np.count_nonzero(counted))
        if not is_last.any():
            continue
        others = np.arange(len(team.ranks)) != at
        more = before[at] - np.median(before[others], axis=0)
        more_idle = idle[at] - np.median(idle[others], axis=0)
        sums = late.setdefault(rank, Late())
        sums.excess_ns += round(float(more[is_last].sum()))
        sums.idle_ns += round(float(more_idle[is_last].sum()))
        known = is_last & (mine.cause[rows] >= 0)
        np.add.at(
            sums.by_cause,
            mine.cause[rows][known],
            np.rint(np.maximum(more_idle[known], 0)).astype(np.int64),
        )
