"""Interval algebra against sets of integer moments."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hostgap.analysis.intervals import (
    EMPTY,
    Intervals,
    clip,
    complement,
    covers,
    cut,
    overlap,
    union,
)

TIME = st.integers(-12, 12)
SPANS = st.lists(st.tuples(TIME, st.integers(0, 6)).map(lambda s: (s[0], s[0] + s[1])), max_size=8)
FAR = 2**62  # times near the ends of int64, where float64 steps by hundreds of ns

Spans = list[tuple[int, int]]


def arrays(spans: Spans) -> Intervals:
    return Intervals(
        np.array([s for s, _ in spans], np.int64), np.array([e for _, e in spans], np.int64)
    )


def moments(spans: Spans) -> set[int]:
    return {t for start, end in spans for t in range(start, end)}


def spans_of(intervals: Intervals) -> Spans:
    return list(zip(intervals.start.tolist(), intervals.end.tolist(), strict=True))


def merged(spans: Spans) -> Intervals:
    return union(*arrays(spans))


def is_merged(intervals: Intervals) -> bool:
    flat = [t for span in spans_of(intervals) for t in span]
    return all(a < b for a, b in itertools.pairwise(flat))


@settings(deadline=None)
@given(SPANS)
def test_union_covers_the_same_moments_and_is_merged(spans: Spans) -> None:
    result = merged(spans)
    assert is_merged(result)
    assert moments(spans_of(result)) == moments(spans)
    assert result.total == len(moments(spans))


def test_union_joins_what_touches_and_drops_what_is_empty() -> None:
    assert spans_of(merged([(5, 9), (0, 5), (20, 20), (12, 12)])) == [(0, 9)]
    assert spans_of(union(*EMPTY)) == []


def test_union_is_exact_where_floats_are_not() -> None:
    result = merged([(FAR, FAR + 3), (FAR + 2, FAR + 7)])
    assert spans_of(result) == [(FAR, FAR + 7)]
    assert result.total == 7


def test_union_leaves_its_input_alone() -> None:
    given_ = arrays([(5, 9), (0, 6)])
    union(*given_)
    assert spans_of(given_) == [(5, 9), (0, 6)]


@settings(deadline=None)
@given(SPANS, TIME, TIME)
def test_complement_is_what_is_left(spans: Spans, low: int, high: int) -> None:
    result = complement(merged(spans), low, high)
    assert is_merged(result)
    assert moments(spans_of(result)) == set(range(low, high)) - moments(spans)


@settings(deadline=None)
@given(SPANS, TIME, TIME)
def test_clip_keeps_every_interval_inside(spans: Spans, low: int, high: int) -> None:
    result = spans_of(clip(arrays(spans), low, high))
    expected = [(max(s, low), min(e, high)) for s, e in spans]
    assert result == [(s, e) for s, e in expected if e > s]


@settings(deadline=None)
@given(SPANS, st.lists(TIME, max_size=8).map(sorted))
def test_cut_adds_up_and_names_the_cells(spans: Spans, boundaries: list[int]) -> None:
    pieces = cut(arrays(spans), np.array(boundaries, np.int64))
    rows = list(
        zip(
            pieces.start.tolist(),
            pieces.end.tolist(),
            pieces.interval.tolist(),
            pieces.cell.tolist(),
            strict=True,
        )
    )
    for i, (start, end) in enumerate(spans):
        mine = [row for row in rows if row[2] == i]
        # one after the other, from end to end
        assert [row[0] for row in mine] == ([start, *(row[1] for row in mine)][: len(mine)])
        assert [row[1] for row in mine[-1:]] == ([end] if end > start else [])
    assert [row[2] for row in rows] == sorted(row[2] for row in rows)
    for start, end, _, cell in rows:
        assert start < end
        for moment in range(start, end):
            assert cell == sum(b <= moment for b in boundaries) - 1


@settings(deadline=None)
@given(SPANS, SPANS)
def test_overlap_counts_shared_moments(spans: Spans, others: Spans) -> None:
    result = overlap(arrays(spans), merged(others))
    assert result.tolist() == [len(moments([span]) & moments(others)) for span in spans]


@settings(deadline=None)
@given(SPANS, st.lists(st.integers(-14, 20), max_size=10))
def test_covers_is_half_open(spans: Spans, times: list[int]) -> None:
    result = covers(merged(spans), np.array(times, np.int64))
    assert result.tolist() == [t in moments(spans) for t in times]
