"""Nested host events of one thread: who encloses whom, and who is innermost when."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.intervals import EMPTY, Intervals, clip, covers, union
from hostgap.trace.model import Bool, Int32, Int64

BLOCK = 1 << 16  # intervals whose timeline is made at once: they fit in the cache
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
    levels: tuple[Int32, ...]  # indices by depth, each sorted

    def around(self, time: Int64) -> Int32:
        """The innermost interval around each of n times, -1 without one."""
        at = (np.searchsorted(self.start, time, "right") - 1).astype(np.int32)
        rows = np.flatnonzero(at >= 0)
        rows = rows[self.end[at[rows]] <= time[rows]]
        while len(rows):  # it had ended by then: its parent may not have
            at[rows] = self.parent[at[rows]]
            rows = rows[at[rows] >= 0]
            rows = rows[self.end[at[rows]] <= time[rows]]
        return at


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
    # (Ends are nearly in order as they are, which a stable sort makes use of.)
    ends = np.sort(end, kind="stable")
    depth = np.empty(n, np.int32)
    for first in range(0, n, BLOCK):
        block = slice(first, first + BLOCK)
        ended = np.searchsorted(ends, start[block], "right")
        depth[block] = np.arange(first, first + len(ended)) - ended
    del ends
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


def _levels(depth: Int32) -> tuple[Int32, ...]:
    deepest = int(depth.max())
    narrow = depth.astype(np.uint16) if deepest < 2**16 else depth
    order = np.argsort(narrow, kind="stable").astype(np.int32)
    first = np.searchsorted(narrow[order], np.arange(1, deepest + 1))
    return tuple(np.split(order, first))


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
        _levels(np.array(depth, np.int32)),
    )


@dataclass(frozen=True, slots=True)
class Innermost:
    """Who is innermost when: from `time[i]` to `time[i + 1]` it is interval `who[i]` (-1: none).

    Before `time[0]` and after the last time it is none.
    """

    time: Int64
    who: Int32


def innermost(nested: Nest, low: int | None = None, high: int | None = None) -> Innermost:
    """The timeline of the innermost interval, sorted.

    At a start the interval itself takes over, at an end its parent does. Of several ends at one
    moment the inner ones come first, and an end comes before a start.

    Args:
        low, high: it need only be right in `[low, high)`; by default everywhere. Of a part it costs
            no more than what lies in that part.
    """
    first = 0 if low is None else int(np.searchsorted(nested.start, low))
    last = len(nested.start) if high is None else int(np.searchsorted(nested.start, high))
    # what is still open there: ancestors of the first, and of nobody else
    above: list[int] = []
    if low is not None and first:
        at = int(nested.around(np.array([low], np.int64))[0])
        while at >= 0:
            if at < first:
                above.append(at)
            at = int(nested.parent[at])
    index = np.concatenate((np.array(above[::-1], np.intp), np.arange(first, last)))
    start, end = nested.start[index], nested.end[index]
    n = len(index)
    time = np.empty(2 * n, np.int64)
    who = np.empty(2 * n, np.int32)
    # inner intervals have higher indices: reversed, a stable sort puts them first among equals
    by_end = n - 1 - np.argsort(end[::-1], kind="stable")
    ends = end[by_end]
    at_start = np.arange(n) + np.searchsorted(ends, start, "right")
    is_end = np.ones(2 * n, np.bool_)
    is_end[at_start] = False
    at_end = np.flatnonzero(is_end)
    time[at_start] = start
    who[at_start] = index
    time[at_end] = ends
    who[at_end] = nested.parent[index[by_end]]
    return Innermost(time, who)


def when(nested: Nest, mine: Bool) -> Intervals:
    """The time in which one of some intervals is innermost, merged.

    Args:
        mine: mask over the intervals.
    """
    starts, ends = [EMPTY.start], [EMPTY.end]
    n = len(nested.start)
    for first in range(0, n, BLOCK) if mine.any() else ():
        low = int(nested.start[first])
        high = int(nested.start[first + BLOCK]) if first + BLOCK < n else int(nested.end.max())
        timeline = innermost(nested, low, high)
        who = timeline.who[:-1]
        at = np.flatnonzero((who >= 0) & mine[who])
        piece = clip(Intervals(timeline.time[at], timeline.time[at + 1]), low, high)
        starts.append(piece.start)
        ends.append(piece.end)
    return union(np.concatenate(starts), np.concatenate(ends))


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
    frame = frames.around(start)
    rows = np.flatnonzero(frame >= 0)
    rows = rows[frames.end[frame[rows]] < end[rows]]
    while len(rows):
        begin[rows] = np.maximum(begin[rows], frames.end[frame[rows]])
        frame[rows] = frames.parent[frame[rows]]
        rows = rows[frame[rows] >= 0]
        rows = rows[frames.end[frame[rows]] < end[rows]]
    # a frame that a range does not outlast began in it, if it is another than around its start
    begun = np.searchsorted(frames.start, start, "right")
    rows = np.flatnonzero(begun < np.searchsorted(frames.start, end - 1, "right"))
    del begun
    frame[rows] = frames.around(end[rows] - 1)
    rows = rows[frame[rows] >= 0]
    rows = rows[frames.start[frame[rows]] > start[rows]]
    while len(rows):
        outlasts = rows[frames.end[frame[rows]] > end[rows]]
        finish[outlasts] = np.minimum(finish[outlasts], frames.start[frame[outlasts]])
        frame[rows] = frames.parent[frame[rows]]
        rows = rows[frame[rows] >= 0]
        rows = rows[frames.start[frame[rows]] > start[rows]]
    vanishes = begin >= finish
    begin[vanishes], finish[vanishes] = start[vanishes], end[vanishes]
    return begin, finish
