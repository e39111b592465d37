"""Which events of a large trace a report shows one by one, and how the others are merged.

A report must open from a mail attachment. Up to `BUDGET` events all are kept. Beyond that they are
kept for as many steps as fit, from the first of the window on, and around the evidence of findings;
elsewhere the events of a lane that begin in the same two-thousandth of the time become one block,
which knows how many it stands for. Idle time needs no merging: the overview's bins are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from hostgap.trace.model import Bool, Int64

BUDGET = 300_000
BUCKETS = 2_000


@dataclass(frozen=True, slots=True)
class Detail:
    """Where events are shown one by one: the buckets of `[low, high)` that are marked, and all of
    `[first, last)`. With `everything`, no event is merged at all."""

    everything: bool
    low: int
    high: int
    first: int
    last: int
    marked: Bool

    def bucket(self, time: Int64) -> NDArray[np.int64]:
        """The bucket of n times."""
        span = max(1, self.high - self.low)
        return np.clip((time - self.low) * BUCKETS // span, 0, BUCKETS - 1)

    def keeps(self, start: Int64) -> Bool:
        """Whether events that begin at n times are shown one by one."""
        if self.everything:
            return np.ones(len(start), np.bool_)
        inside = (start >= self.first) & (start < self.last)
        return np.asarray(inside | self.marked[self.bucket(start)])


def choose(
    starts: list[Int64],
    boundaries: Int64,
    window: int,
    evidence: Int64,
    budget: int | None = None,
) -> Detail:
    """Decide what is shown one by one.

    Args:
        starts: of the events of each table, sorted.
        boundaries: of steps, sorted.
        window: where the steps that count begin.
        evidence: times around which events are wanted, wherever they are.
        budget: events to show one by one; `BUDGET` by default.
    """
    budget = BUDGET if budget is None else budget
    filled = [times for times in starts if len(times)]
    low = min((int(times[0]) for times in filled), default=0)
    high = max((int(times[-1]) for times in filled), default=0) + 1
    marked = np.zeros(BUCKETS, np.bool_)
    if sum(map(len, starts)) <= budget:
        return Detail(True, low, high, low, high, marked)
    first = min(max(window, low), high)

    def count(until: int) -> int:
        return sum(
            int(np.searchsorted(times, until) - np.searchsorted(times, first)) for times in starts
        )

    lower, upper = first, high  # the latest time up to which events fit
    while upper - lower > 1:
        middle = (lower + upper) // 2
        lower, upper = (middle, upper) if count(middle) <= budget * 3 // 4 else (lower, middle)
    whole = boundaries[(boundaries > first) & (boundaries <= lower)]
    last = int(whole[-1]) if len(whole) else lower
    detail = Detail(False, low, high, first, last, marked)
    marked[np.unique(detail.bucket(evidence))] = True
    return detail


@dataclass(frozen=True, slots=True)
class Thinned:
    """Events to show, sorted by start. `row` is that of the table, -1 for a block of `many`, whose
    events cover at most `busy` of it; 0 elsewhere."""

    row: NDArray[np.int64]
    start: Int64
    end: Int64
    lane: NDArray[np.int64]
    many: NDArray[np.int64]
    busy: Int64

    def take(self, rows: NDArray[np.generic]) -> Thinned:
        """Only some of them (a mask or indices)."""
        return Thinned(*(getattr(self, column.name)[rows] for column in fields(self)))


def thin(detail: Detail, start: Int64, end: Int64, lane: NDArray[np.signedinteger]) -> Thinned:
    """Keep some of n events, and merge the others of each lane.

    Args:
        start, end: n times; sorted by start.
        lane: n lanes; what has a lane below 0 is dropped.
    """
    shown = lane >= 0
    keep = detail.keeps(start) & shown
    kept = np.flatnonzero(keep)
    rest = np.flatnonzero(shown & ~keep)
    if len(rest) == 0:
        none = np.zeros(len(kept), np.int64)
        return Thinned(kept, start[kept], end[kept], lane[kept].astype(np.int64), none, none)
    bucket = detail.bucket(start[rest])
    key = lane[rest].astype(np.int64) * BUCKETS + bucket
    order = np.argsort(key, kind="stable")
    rest, key = rest[order], key[order]
    first = np.flatnonzero(np.concatenate(([True], np.diff(key) > 0)))
    size = np.diff(np.append(first, len(rest)))
    # a long event that encloses the others must not stretch the block over its neighbours
    limit = detail.low + (key[first] % BUCKETS + 1) * (detail.high - detail.low) // BUCKETS
    block_start = start[rest[first]]
    block_end = np.maximum.reduceat(end[rest], first)
    block_end = np.maximum(np.minimum(block_end, limit), block_start)
    length = np.add.reduceat(np.maximum(end[rest] - start[rest], 0), first)
    block_busy = np.where(size > 1, np.minimum(length, block_end - block_start), 0)
    row = np.concatenate((kept, np.where(size > 1, -1, rest[first])))
    begin = np.concatenate((start[kept], block_start))
    finish = np.concatenate((end[kept], np.where(size > 1, block_end, end[rest[first]])))
    where = np.concatenate((lane[kept], lane[rest[first]])).astype(np.int64)
    many = np.concatenate((np.zeros(len(kept), np.int64), np.where(size > 1, size, 0)))
    busy = np.concatenate((np.zeros(len(kept), np.int64), block_busy))
    thinned = Thinned(row, begin, finish, where, many, busy)
    return thinned.take(np.argsort(begin, kind="stable"))
