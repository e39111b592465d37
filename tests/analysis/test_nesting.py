"""Nests against a pass with a stack, written out plainly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostgap.analysis import nesting
from hostgap.analysis.intervals import covers
from hostgap.analysis.nesting import Innermost, Nest, innermost, nest, trim, when

Spans = list[tuple[int, int]]


def outermost_first(spans: Spans) -> Spans:
    return sorted(spans, key=lambda s: (s[0], -s[1]))


SPANS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 12)).map(lambda s: (s[0], s[0] + s[1])),
    max_size=12,
).map(outermost_first)


@st.composite
def proper(draw: st.DrawFn) -> Spans:
    """Spans that nest, from parentheses: shared starts, shared ends and equal spans are common."""
    spans: Spans = []

    def inside(low: int, high: int, depth: int) -> None:
        at = low
        while at < high and depth < 4 and draw(st.booleans()):
            start = draw(st.integers(at, high - 1))
            end = draw(st.integers(start + 1, high))
            spans.append((start, end))
            inside(start, end, depth + 1)
            at = end

    inside(0, draw(st.integers(1, 25)), 0)
    return outermost_first(spans)


def plain(spans: Spans) -> tuple[list[int], list[int]]:
    """Parent and clipped end of each span: O(n^2), by the definition.

    The parent is the latest span begun before that is still open; whoever outlasts its parent is
    clipped to it.
    """
    parents, ends = [], []
    for i, (start, end) in enumerate(spans):
        open_now = [j for j in range(i) if ends[j] > start]
        parent = open_now[-1] if open_now else -1
        parents.append(parent)
        ends.append(min(end, ends[parent]) if parent >= 0 else end)
    return parents, ends


def nested(spans: Spans) -> Nest:
    return nest(
        np.array([s for s, _ in spans], np.int64), np.array([e for _, e in spans], np.int64)
    )


def check(spans: Spans) -> None:
    result = nested(spans)
    parents, ends = plain(spans)
    assert result.parent.tolist() == parents
    assert result.end.tolist() == ends
    assert result.start.tolist() == [s for s, _ in spans]
    depth = [0] * len(spans)
    for i, parent in enumerate(parents):
        depth[i] = depth[parent] + 1 if parent >= 0 else 0
    assert [level.tolist() for level in result.levels] == [
        [i for i, d in enumerate(depth) if d == wanted]
        for wanted in range(max(depth, default=-1) + 1)
    ]
    check_moments(result, spans)


def check_moments(result: Nest, spans: Spans) -> None:
    timeline = innermost(result)
    time, who = timeline.time.tolist(), timeline.who.tolist()
    assert len(time) == len(who) == 2 * len(spans)
    assert time == sorted(time)
    assert not who or who[-1] == -1
    ends = result.end.tolist()
    for moment in range(-1, 45):
        # children come after their parents, so the innermost is the last one open
        open_now = [i for i, (s, _) in enumerate(spans) if s <= moment < ends[i]]
        index = sum(t <= moment for t in time) - 1
        assert (who[index] if index >= 0 else -1) == (open_now[-1] if open_now else -1)


@settings(deadline=None)
@given(proper())
def test_properly_nested(spans: Spans) -> None:
    assert plain(spans)[1] == [end for _, end in spans]  # nothing to clip
    check(spans)


@settings(deadline=None)
@given(SPANS, st.integers(-1, 45), st.integers(1, 20))
def test_the_timeline_of_a_part(spans: Spans, low: int, length: int) -> None:
    result = nested(spans)
    whole, part = innermost(result), innermost(result, low, low + length)
    for moment in range(low, low + length):
        assert who_is_at(part, moment) == who_is_at(whole, moment)


def who_is_at(timeline: Innermost, moment: int) -> int:
    index = int(np.searchsorted(timeline.time, moment, "right")) - 1
    return int(timeline.who[index]) if index >= 0 else -1


@settings(deadline=None)
@given(SPANS)
def test_who_is_around_a_moment(spans: Spans) -> None:
    result, moments = nested(spans), np.arange(-1, 45)
    timeline = innermost(result)
    expected = [who_is_at(timeline, moment) for moment in moments.tolist()]
    assert result.around(moments).tolist() == expected


@settings(deadline=None)
@given(SPANS, st.lists(st.booleans(), min_size=12, max_size=12), st.integers(1, 5))
def test_when_some_are_innermost(spans: Spans, mine: list[bool], block: int) -> None:
    result, mask = nested(spans), np.array(mine[: len(spans)], np.bool_)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nesting, "BLOCK", block)
        found = when(result, mask)
    moments = np.arange(-1, 45)
    who = result.around(moments)
    expected = (who >= 0) & np.append(mask, False)[who]
    assert covers(found, moments).tolist() == expected.tolist()


@settings(deadline=None)
@given(SPANS)
def test_overlapping_ones_are_clipped(spans: Spans) -> None:
    check(spans)


@settings(deadline=None)
@given(proper(), SPANS, st.integers(0, 60))
def test_a_crossing_far_from_the_rest(spans: Spans, others: Spans, shift: int) -> None:
    """Only the crossings are repaired: what stands before, around and after keeps its parents."""
    both = [*spans, *((s + shift, e + shift) for s, e in others), (0, 120)]
    check_parents(outermost_first(both))


def check_parents(spans: Spans) -> None:
    result = nested(spans)
    assert (result.parent.tolist(), result.end.tolist()) == plain(spans)


def test_ties() -> None:
    spans = [(0, 10), (0, 10), (0, 5), (5, 10), (5, 10), (10, 12)]
    assert nested(spans).parent.tolist() == [-1, 0, 1, 1, 3, -1]


def test_a_child_that_outlasts_its_parent() -> None:
    result = nested([(0, 10), (5, 15), (12, 13)])
    assert result.end.tolist() == [10, 10, 13]
    assert result.parent.tolist() == [-1, 0, -1]


def test_the_timeline_of_shared_ends() -> None:
    timeline = innermost(nested([(0, 10), (4, 10), (6, 10), (10, 12)]))
    assert timeline.time.tolist() == [0, 4, 6, 10, 10, 10, 10, 12]
    assert timeline.who.tolist() == [0, 1, 2, 1, 0, -1, 3, -1]


def trimmed(frames: Spans, ranges: Spans) -> Spans:
    start, end = np.array(ranges, np.int64).reshape(-1, 2).T
    found = trim(nested(frames), start, end)
    return list(zip(*(column.tolist() for column in found), strict=True))


@settings(deadline=None)
@given(proper(), SPANS)
def test_ranges_are_trimmed_to_the_frames_they_cross(frames: Spans, ranges: Spans) -> None:
    """`__enter__` and `__exit__` are left out; what would leave nothing stays."""
    for (start, end), found in zip(ranges, trimmed(frames, ranges), strict=True):
        entered = [e for s, e in frames if s <= start < e < end]
        left = [s for s, e in frames if start < s < end < e]
        expected = (max([start, *entered]), min([end, *left]))
        assert found == (expected if expected[0] < expected[1] else (start, end))


def test_a_range_between_its_enter_and_its_exit() -> None:
    step, enter, exit_ = (0, 100), (10, 20), (80, 90)
    assert trimmed([step, enter, (12, 16), exit_], [(14, 85)]) == [(20, 80)]
    assert trimmed([step, enter], [(10, 20), (0, 100), (15, 18)]) == [(10, 20), (0, 100), (15, 18)]
    assert trimmed([(0, 20), (18, 20), (20, 40)], [(19, 21)]) == [(19, 21)]  # nothing between
    assert trimmed([], [(1, 2)]) == [(1, 2)]


def test_deep_nests() -> None:
    """Deeper than the narrow integers that levels are sorted by."""
    n = 70_000
    depth = np.arange(n, dtype=np.int64)
    result = nest(depth, 2 * n - depth)
    assert result.parent.tolist() == list(range(-1, n - 1))
    assert len(result.levels) == n


def test_nothing() -> None:
    assert nested([]).levels == ()
    assert len(innermost(nested([])).time) == 0
