"""Interval algebra on numpy arrays.

An interval is half-open, `[start, end)`, in int64 ns; a set of them is a pair of arrays. "Merged"
means sorted, disjoint, not touching, none empty.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hostgap.trace.model import Bool, Int64


class Intervals(NamedTuple):
    """n intervals: n starts and n ends, ns."""

    start: Int64
    end: Int64

    @property
    def total(self) -> int:
        """Sum of the lengths, ns."""
        return int((self.end - self.start).sum())


EMPTY = Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))
_FAR = np.array([np.iinfo(np.int64).max])  # a boundary behind everything


def union(start: Int64, end: Int64) -> Intervals:
    """The time covered by any of n intervals, merged. Empty intervals cover nothing.

    Args:
        start: n starts, in any order.
        end: n ends, not before their starts.
    """
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if len(start) == 0:
        return EMPTY
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    del end
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return Intervals(start[first], reach[last])


def complement(covered: Intervals, low: int, high: int) -> Intervals:
    """The time of `[low, high)` that merged intervals leave free, merged."""
    inside = clip(covered, low, high)
    start = np.concatenate(([low], inside.end)).astype(np.int64)
    end = np.concatenate((inside.start, [high])).astype(np.int64)
    keep = end > start
    return Intervals(start[keep], end[keep])


def clip(intervals: Intervals, low: int, high: int) -> Intervals:
    """The parts of n intervals inside `[low, high)`; what lies outside is dropped."""
    start = np.maximum(intervals.start, low)
    end = np.minimum(intervals.end, high)
    keep = end > start
    return Intervals(start[keep], end[keep])


class Pieces(NamedTuple):
    """m pieces of n intervals cut at boundaries."""

    start: Int64
    end: Int64
    interval: NDArray[np.intp]  # which of the n intervals the piece is of
    cell: NDArray[np.intp]  # which cell it lies in: boundaries[cell] <= start < boundaries[cell+1]


def cut(intervals: Intervals, boundaries: Int64) -> Pieces:
    """Cut intervals at sorted boundaries. Cell -1 is before the first boundary.

    The pieces of an interval add up to it exactly, and are in order. None is empty: an empty
    interval has no pieces, and a boundary given twice cuts once.

    Args:
        intervals: n intervals, in any order.
        boundaries: k sorted times.
    """
    if len(boundaries) == 0:
        boundaries = _FAR
    first = np.searchsorted(boundaries, intervals.start, "right") - 1
    last = np.searchsorted(boundaries, intervals.end, "left") - 1
    count = np.maximum(last - first + 1, 0)  # an empty interval may lie on several boundaries
    interval = np.repeat(np.arange(len(count)), count)
    behind = np.cumsum(count)
    cell = np.arange(len(interval)) + np.repeat(first - behind + count, count)
    # a piece reaches from boundary to boundary, but the first and the last of an interval
    start = boundaries[cell]
    end = boundaries[np.minimum(cell + 1, len(boundaries) - 1)]
    some = count > 0
    start[(behind - count)[some]] = intervals.start[some]
    end[behind[some] - 1] = intervals.end[some]
    keep = end > start
    if keep.all():
        return Pieces(start, end, interval, cell)
    return Pieces(start[keep], end[keep], interval[keep], cell[keep])


def edges(merged: Intervals) -> Int64:
    """All starts and ends of a merged set, which are sorted and distinct by themselves."""
    return np.column_stack(merged).ravel()


def overlap(intervals: Intervals, merged: Intervals) -> Int64:
    """How much of each of n intervals a merged set covers, n lengths in ns."""
    if len(merged.start) == 0 or len(intervals.start) == 0:
        return np.zeros(len(intervals.start), np.int64)
    done = np.concatenate(([0], np.cumsum(merged.end - merged.start)))

    def covered_until(time: Int64) -> Int64:
        index = np.searchsorted(merged.start, time, "right")
        before = np.maximum(index - 1, 0)
        partial = np.minimum(time, merged.end[before]) - merged.start[before]
        return np.where(index > 0, done[before] + partial, 0)

    return covered_until(intervals.end) - covered_until(intervals.start)


def covers(merged: Intervals, time: Int64) -> Bool:
    """Whether each of n times lies inside a merged set."""
    if len(merged.start) == 0:
        return np.zeros(len(time), np.bool_)
    index = np.searchsorted(merged.start, time, "right") - 1
    return (index >= 0) & (time < merged.end[np.maximum(index, 0)])
