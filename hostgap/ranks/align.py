"""Whose collectives are the same, and how long each rank waits in them for the last.

All ranks leave a collective together (their kernels' ends differ by microseconds), so the ends tell
both which collectives belong together and how the ranks' clocks differ: by a constant and a drift
per pair of ranks, fitted to the ends. A rank waits from its own start to the last rank's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hostgap.ranks.arrivals import Arrivals
from hostgap.trace.model import Bool, Int64

TOGETHER_NS = 100_000  # by which ends of one collective may differ between ranks
MOST_OF = 90  # percent of the collectives of two ranks that must end so
FEWEST = 3  # collectives of which the times tell who runs them together
FITTED = 8  # collectives from which on a clock is fitted; fewer are aligned one by one
DRIFTING = 24  # from which on it may drift
MOST_DRIFT = 500e-6  # of a clock against another; a quartz stays below a fifth of that
SHIFTS = 4  # collectives that one recording may have begun before another


@dataclass(frozen=True, slots=True)
class Team:
    """Ranks that run the same n collectives.

    Attributes:
        kernel: their name.
        ranks: indices of the ranks, m of them.
        rows: m lines of n rows of each rank's `Arrivals`.
        start, end: m lines of n times on the clock of the first of the ranks, ns.
    """

    kernel: str
    ranks: tuple[int, ...]
    rows: Int64
    start: Int64
    end: Int64

    @property
    def waits(self) -> Int64:
        """How long each rank waits in each collective for the last to start, m lines, ns."""
        late = self.start.max(axis=0) - self.start
        late[:, ~self.together] = 0
        return np.asarray(np.clip(late, 0, np.maximum(self.end - self.start, 0)))

    @property
    def together(self) -> Bool:
        """Which of the collectives all ranks leave together: of the others nothing can be said."""
        return np.asarray(np.ptp(self.end, axis=0) <= 2 * TOGETHER_NS)


def teams(ranks: Mapping[int, Arrivals]) -> list[Team]:
    """The collectives that several ranks run together.

    Ranks that run a kernel for the same process group, as often, and leave it at the same times,
    are a team; where a trace names no groups, the times alone tell the teams apart.

    Args:
        ranks: index of a rank -> its collectives.
    """
    by_key: dict[tuple[str, str], dict[int, Int64]] = {}
    for rank, arrivals in ranks.items():
        if len(arrivals) == 0:
            continue
        order = np.argsort(arrivals.key, kind="stable")
        codes, first = np.unique(arrivals.key[order], return_index=True)
        for code, rows in zip(codes.tolist(), np.split(order, first[1:]), strict=True):
            by_key.setdefault(arrivals.keys[code], {})[rank] = rows.astype(np.int64)
    found: list[Team] = []
    for (kernel, group), members in by_key.items():
        # without a group to go by, one or two ends that agree say nothing
        found += _teams_of(kernel, members, ranks, fewest=1 if group else FEWEST)
    return found


def _teams_of(
    kernel: str, members: dict[int, Int64], ranks: Mapping[int, Arrivals], *, fewest: int
) -> list[Team]:
    """Ranks whose ends of one kernel agree, put together one after another."""
    members = {rank: rows for rank, rows in members.items() if len(rows) >= fewest}
    clusters: list[dict[int, Int64]] = []
    for rank, rows in members.items():
        for cluster in clusters:
            first = next(iter(cluster))
            shared = _matched(ranks[first].end[cluster[first]], ranks[rank].end[rows])
            if shared is not None:
                low, high, begin = shared
                for other in cluster:
                    cluster[other] = cluster[other][low:high]
                cluster[rank] = rows[begin : begin + high - low]
                break
        else:
            clusters.append({rank: rows})
    return [_team(kernel, cluster, ranks) for cluster in clusters if len(cluster) > 1]


def _matched(one: Int64, other: Int64) -> tuple[int, int, int] | None:
    """Which ends of two ranks are those of the same collectives.

    Returns:
        The range of the first's, and where the second's begins; None where their times disagree.
    """
    best: tuple[float, tuple[int, int, int]] | None = None
    for shift in sorted(range(-SHIFTS, SHIFTS + 1), key=abs):
        low, begin = max(0, shift), max(0, -shift)
        n = min(len(one) - low, len(other) - begin)
        if n < 1 or (shift and n < FITTED):
            continue
        spread = _spread(one[low : low + n], other[begin : begin + n])
        if shift == 0 and len(one) == len(other) and spread <= TOGETHER_NS:
            return 0, n, 0
        if best is None or spread < best[0]:
            best = spread, (low, low + n, begin)
    if best is None or best[0] > TOGETHER_NS:
        return None
    return best[1]


def _spread(one: Int64, other: Int64) -> float:
    """How far most of the ends disagree once the clocks are aligned, ns."""
    rest = other - one - _offset(one, other, fewest=2)
    return float(np.percentile(np.abs(rest), MOST_OF))


def _offset(one: Int64, other: Int64, *, fewest: int = FITTED) -> Int64:
    """What the second clock is ahead of the first at each of n common ends, ns.

    Differences from their own median stay small, so that no time passes through a float whole.
    """
    ahead = other - one
    n = len(ahead)
    if n < fewest:
        return ahead
    middle = int(np.median(ahead - ahead[0])) + int(ahead[0])
    if n < DRIFTING:
        return np.full(n, middle, np.int64)
    third = n // 3
    rest = (ahead - middle).astype(np.float64)
    time = (one - one[0]).astype(np.float64)
    run = float(np.median(time[-third:]) - np.median(time[:third]))
    slope = float(np.median(rest[-third:]) - np.median(rest[:third])) / run if run > 0 else 0.0
    if abs(slope) > MOST_DRIFT:  # two loops of different lengths, and no clocks
        slope = 0.0
    level = float(np.median(rest - slope * time))
    return np.asarray(middle + np.rint(level + slope * time).astype(np.int64))


def _team(kernel: str, cluster: dict[int, Int64], ranks: Mapping[int, Arrivals]) -> Team:
    first = next(iter(cluster))
    reference = ranks[first].end[cluster[first]]
    starts, ends = [], []
    for rank, rows in cluster.items():
        offset = _offset(reference, ranks[rank].end[rows])
        starts.append(ranks[rank].start[rows] - offset)
        ends.append(ranks[rank].end[rows] - offset)
    return Team(
        kernel, tuple(cluster), np.stack(list(cluster.values())), np.stack(starts), np.stack(ends)
    )
