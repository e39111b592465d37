"""Whatever recordings hold: teams are sound, waits are bounded, nothing fails."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hostgap.ranks.align import MOST_DRIFT, _offset, teams
from hostgap.ranks.arrivals import Arrivals
from hostgap.ranks.compare import compare

TIMES = st.lists(
    st.tuples(st.integers(0, 10**9), st.integers(0, 10**7), st.integers(0, 2)), max_size=40
)


def arrivals(events: list[tuple[int, int, int]], shift: int) -> Arrivals:
    events = sorted(events)
    start = np.array([event[0] for event in events], np.int64) + shift
    n = len(events)
    return Arrivals(
        keys=(("a", ""), ("b", "[0, 1]"), ("c", "")),
        device=0,
        row=np.arange(n),
        key=np.array([event[2] for event in events], np.int32),
        start=start,
        end=start + np.array([event[1] for event in events], np.int64),
        counted=np.ones(n, np.bool_),
        covered_ns=np.zeros(n, np.int64),
        before_ns=np.diff(start, prepend=start[:1]),
        idle_ns=np.zeros(n, np.int64),
        cause=np.full(n, -1, np.int8),
        left_out=0,
    )


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(TIMES, st.integers(-(2**61), 2**61)), min_size=2, max_size=5))
def test_anything_can_be_compared(
    recordings: list[tuple[list[tuple[int, int, int]], int]],
) -> None:
    ranks = {i: arrivals(events, shift) for i, (events, shift) in enumerate(recordings)}
    for team in teams(ranks):
        assert len(set(team.ranks)) == len(team.ranks) >= 2
        for line, rank in enumerate(team.ranks):
            rows = team.rows[line]
            assert (np.diff(rows) > 0).all()
            length = ranks[rank].end[rows] - ranks[rank].start[rows]
            assert (team.waits[line] >= 0).all()
            assert (team.waits[line] <= length).all()
        # whoever starts last waits for nobody
        assert (team.waits.min(axis=0) == 0).all()
    found = compare(ranks, {i: str(i) for i in ranks})
    for one in found.waiting.values():
        assert 0 <= one.exposed_ns <= one.wait_ns
        assert one.last <= one.compared


@settings(max_examples=100, deadline=None)
@given(
    st.integers(24, 200), st.integers(-(2**61), 2**61), st.floats(-MOST_DRIFT / 2, MOST_DRIFT / 2)
)
def test_a_clock_is_found_again(n: int, ahead: int, drift: float) -> None:
    times = np.cumsum(np.random.default_rng(n).integers(10**4, 10**7, n)).astype(np.int64)
    other = times + ahead + np.rint(times * drift).astype(np.int64)
    assert np.abs(_offset(times, other) - (other - times)).max() <= 2 + n * 10**7 * 1e-9
