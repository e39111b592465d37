"""Nested host events of one thread: who encloses whom, and who is innermost when."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.intervals import covers, union
from hostgap.trace.model import Bool, Int32, Int64

_ROUNDS = 8  # of clipping whole threads at once, before the crossings are taken one by one


@dataclass(frozen=True, slots=True)
class Nest:
    """n properly nested intervals, sorted by start, the longer first; none empty.

    `end` may be earlier than recorded: a child that outlasts its parent by a rounding error (or a
    generator's frame by more) is clipped, so that every moment has one innermost interval.
    """

    start: Int64
    end: Int64
    parent: Int32  # index, -1 at the top
    levels: tuple[NDArray[np.intp], ...]  # indices by depth, each sorted


def nest(start: Int64, end: Int64) -> Nest:
    """Find every interval's parent.

    Args:
        start: n starts, sorted.
        end: n ends, after their starts; for equal starts the longest first.
    """
    for _ in range(_ROUNDS):
        nested, wrong = _nest(start, end)
        if not wrong.any():
            return nested
        end = _clipped(nested, np.flatnonzero(wrong))
    return _nest_overlapping(start, end)


def _nest(start: Int64, end: Int64) -> tuple[Nest, Bool]:
    """Parents, if all intervals nest; and which of them outlast their parent."""
    n = len(start)
    if n == 0:
        return Nest(start, end, np.zeros(0, np.int32), ()), np.zeros(0, np.bool_)
    # Open at a start: those that began before it, less those that ended by then.
    depth = np.arange(n) - np.searchsorted(np.sort(end), start, "right")
    levels = _levels(depth)
    parent = np.full(n, -1, np.int32)
    for upper, lower in itertools.pairwise(levels):
        parent[lower] = upper[np.searchsorted(upper, lower) - 1]
    wrong = (parent >= 0) & (end > end[parent])
    return Nest(start, end, parent, levels), wrong


def _clipped(nested: Nest, wrong: NDArray[np.intp]) -> Int64:
    """The ends, of those that cross their parent's end clipped to it, and of all inside them.

    Where an interval reaches beyond its parent, the parents of what begins there are not yet
    certain: those wait for the next round.
    """
    start, end, parent = nested.start, nested.end.copy(), nested.parent
    uncertain = covers(union(end[parent[wrong]], end[wrong]), start)
    clip = wrong[~uncertain[wrong]]
    end[clip] = end[parent[clip]]
    for level in nested.levels[1:]:
        sure = level[~uncertain[level]]
        end[sure] = np.minimum(end[sure], end[parent[sure]])
    return end


def _levels(depth: NDArray[np.intp]) -> tuple[NDArray[np.intp], ...]:
    narrow = depth.astype(np.uint16) if depth.max() < 2**16 else depth
    order = np.argsort(narrow, kind="stable")
    counts = np.bincount(depth)
    return tuple(np.split(order, np.cumsum(counts)[:-1]))


def _nest_overlapping(start: Int64, end: Int64) -> Nest:
    """The same where some intervals only overlap: one pass with a stack, clipping them."""
    starts, ends = start.tolist(), end.tolist()
    parent = [-1] * len(starts)
    depth = [0] * len(starts)
    stack: list[int] = []
    for i, begin in enumerate(starts):
        while stack and ends[stack[-1]] <= begin:
            stack.pop()
        if stack:
            top = stack[-1]
            parent[i] = top
            depth[i] = depth[top] + 1
            if ends[i] > ends[top]:
                ends[i] = ends[top]
        stack.append(i)
    return Nest(
        start,
        np.array(ends, np.int64),
        np.array(parent, np.int32),
        _levels(np.array(depth, np.intp)),
    )


@dataclass(frozen=True, slots=True)
class Innermost:
    """Who is innermost when: from `time[i]` to `time[i + 1]` it is interval `who[i]` (-1: none).

    Before `time[0]` and after the last time it is none.
    """

    time: Int64
    who: Int32


def innermost(nested: Nest) -> Innermost:
    """The timeline of the innermost interval: 2n boundaries, sorted.

    At a start the interval itself takes over, at an end its parent does. Of several ends at one
    moment the inner ones come first, and an end comes before a start.
    """
    n = len(nested.start)
    time = np.empty(2 * n, np.int64)
    who = np.empty(2 * n, np.int32)
    # inner intervals have higher indices: reversed, a stable sort puts them first among equals
    by_end = n - 1 - np.argsort(nested.end[::-1], kind="stable")
    ends = nested.end[by_end]
    at_start = np.arange(n) + np.searchsorted(ends, nested.start, "right")
    at_end = np.arange(n) + np.searchsorted(nested.start, ends, "left")
    time[at_start] = nested.start
    who[at_start] = np.arange(n, dtype=np.int32)
    time[at_end] = ends
    who[at_end] = nested.parent[by_end]
    return Innermost(time, who)


def trim(frames: Nest, start: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Ranges opened and closed by Python calls, trimmed so that they nest with Python's frames.

    `with record_function(...)` begins inside the frame of `__enter__` and ends inside that of
    `__exit__`: such a range crosses both. It is taken to begin when the frames it outlasts have
    returned, and to end when those that outlast it are called.

    Args:
        frames: the frames of the thread.
        start, end: n ranges of the same thread.

    Returns:
        n starts and n ends; a range that would vanish stays as it is.
    """
    if len(frames.start) == 0 or len(start) == 0:
        return start, end
    begin, finish = start.copy(), end.copy()
    frame = _around(frames, start)
    rows = np.flatnonzero((frame >= 0) & (frames.end[frame] < end))
    while len(rows):
        begin[rows] = np.maximum(begin[rows], frames.end[frame[rows]])
        frame[rows] = frames.parent[frame[rows]]
        rows = rows[frame[rows] >= 0]
        rows = rows[frames.end[frame[rows]] < end[rows]]
    frame = _around(frames, end - 1)
    rows = np.flatnonzero((frame >= 0) & (frames.start[frame] > start))
    while len(rows):
        outlasts = rows[frames.end[frame[rows]] > end[rows]]
        finish[outlasts] = np.minimum(finish[outlasts], frames.start[frame[outlasts]])
        frame[rows] = frames.parent[frame[rows]]
        rows = rows[frame[rows] >= 0]
        rows = rows[frames.start[frame[rows]] > start[rows]]
    vanishes = begin >= finish
    return np.where(vanishes, start, begin), np.where(vanishes, end, finish)


def _around(frames: Nest, time: Int64) -> Int32:
    """The innermost frame around each of n times, -1 without one."""
    frame = (np.searchsorted(frames.start, time, "right") - 1).astype(np.int32)
    rows = np.flatnonzero((frame >= 0) & (frames.end[frame] <= time))
    while len(rows):  # it had returned by then: its parent may not have
        frame[rows] = frames.parent[frame[rows]]
        rows = rows[frame[rows] >= 0]
        rows = rows[frames.end[frame[rows]] <= time[rows]]
    return frame
