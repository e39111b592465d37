"""Pieces of gaps: kept in blocks, and given back as they were."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostgap.analysis.causes import Cause
from hostgap.analysis.intervals import Intervals
from hostgap.analysis.parts import Parts, Pieces, together

FAR = 1_706_850_122_865_498_123  # ns, as Kineto's times are
# lengths of the pieces of each gap; between two gaps lies one op
GAPS = st.lists(
    st.lists(st.one_of(st.integers(1, 9), st.integers(1, 2**40)), min_size=1, max_size=4),
    min_size=1,
    max_size=6,
)


def tiled(lengths: list[list[int]], seed: int) -> tuple[Intervals, list[Parts]]:
    """Gaps with pieces of these lengths, and the parts of each gap."""
    random = np.random.default_rng(seed)
    time, gaps, parts = FAR, [], []
    for number, pieces in enumerate(lengths):
        edges = time + np.cumsum([0, *pieces])
        n = len(pieces)

        def codes(n: int = n) -> np.ndarray:
            return random.integers(-1, random.choice([0, 300, 2**30]), n).astype(np.int32)

        columns = (codes() for _ in range(4))
        cause, table = random.integers(0, len(Cause), n), random.integers(-1, 3, n)
        thread, row, site, op = columns
        parts.append(
            Parts(
                np.full(n, number, np.int32),
                edges[:-1],
                edges[1:],
                cause.astype(np.int8),
                thread,
                table.astype(np.int8),
                row,
                site,
                op,
                codes(),
            )
        )
        gaps.append((int(edges[0]), int(edges[-1])))
        time = int(edges[-1]) + 5
    start, end = np.array(gaps, np.int64).T
    return Intervals(start, end), parts


@settings(deadline=None)
@given(GAPS, st.integers(1, 3), st.integers(0, 2**32), st.integers(0, 9))
def test_blocks_come_back_as_they_were(
    lengths: list[list[int]], size: int, seed: int, unpacked: int
) -> None:
    gaps, parts = tiled(lengths, seed)
    pieces = Pieces(gaps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hostgap.analysis.parts._UNPACKED", unpacked)
        for first in range(0, len(parts), size):
            pieces.add(together(parts[first : first + size]))
    whole, expected = pieces.whole(), together(parts)
    for column in fields(Parts):
        found, wanted = getattr(whole, column.name), getattr(expected, column.name)
        assert found.dtype == wanted.dtype
        assert found.tolist() == wanted.tolist()
    assert len(pieces) == len(expected)
    assert pieces.total == gaps.total == sum(pieces.by_cause().values())


def test_no_pieces() -> None:
    pieces = Pieces(Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64)))
    assert len(pieces.whole()) == 0
    assert list(pieces) == []
    assert pieces.by_cause() == {}


@pytest.mark.parametrize("lost", range(4))
def test_what_does_not_tile_its_gap_is_refused(lost: int) -> None:
    gaps, parts = tiled([[3, 4], [5, 6]], 0)
    every = together(parts)
    with pytest.raises(AssertionError, match="misses the idle time by"):
        Pieces(gaps).add(every.take(np.arange(len(every)) != lost))
