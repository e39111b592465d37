"""Pieces of gaps: the unit of attribution, as columns."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.causes import Cause
from hostgap.analysis.intervals import Intervals, cut
from hostgap.trace.model import Int8, Int32, Int64

NONE = -1
_BLOCK = 1 << 18


@dataclass(frozen=True, slots=True)
class Parts:
    """Pieces of gaps with one cause each, in order of start. Times are on the GPU's clock.

    `table` and `row` name the host event under which the piece lies (host.FRAME, OP or CALL; -1
    for none); `site` is its user frame and `op` its outermost framework op (codes in Trace.names,
    -1); `blame` the blocking call (row of api_calls) in whose shadow the piece lies, -1.
    """

    gap: Int32
    start: Int64
    end: Int64
    cause: Int8
    thread: Int32
    table: Int8
    row: Int32
    site: Int32
    op: Int32
    blame: Int32

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: NDArray[np.generic]) -> Parts:
        """Only some rows (a mask or indices)."""
        return Parts(*(getattr(self, column.name)[rows] for column in fields(self)))

    @property
    def length(self) -> Int64:
        """Lengths, ns."""
        return self.end - self.start

    def clip(self, low: int, high: int) -> Parts:
        """The parts inside `[low, high)`, of pieces in order. Shadows keep their blame."""
        first = np.searchsorted(self.end, low, "right")
        last = np.searchsorted(self.start, high, "left") if low < high else first
        inside = Parts(*(getattr(self, column.name)[first:last] for column in fields(self)))
        return replace(
            inside, start=np.maximum(inside.start, low), end=np.minimum(inside.end, high)
        )

    def cut(self, boundaries: Int64) -> tuple[Parts, NDArray[np.intp]]:
        """The same pieces cut at sorted boundaries, and the cell each new piece lies in."""
        pieces = cut(Intervals(self.start, self.end), boundaries)
        rows = self.take(pieces.interval)
        return replace(rows, start=pieces.start, end=pieces.end), pieces.cell

    def by_cause(self) -> dict[Cause, int]:
        """Total ns per cause; causes that do not occur are left out."""
        total = sum_by(self.cause, self.length, len(Cause))
        return {Cause(code): int(ns) for code, ns in enumerate(total) if ns}


def sum_by(key: NDArray[np.signedinteger], values: Int64, n: int) -> Int64:
    """Exact integer sums per key 0..n-1.

    bincount is far faster than add.at but sums in float64: the values go in as two halves, each of
    which stays exact. A block at a time, as it copies what it is given.
    """
    total = np.zeros(n, np.int64)
    for first in range(0, len(key), _BLOCK):
        keys, block = key[first : first + _BLOCK], values[first : first + _BLOCK]
        total += np.bincount(keys, block & 0xFFFFF, n).astype(np.int64)
        total += np.bincount(keys, block >> 20, n).astype(np.int64) << 20
    return total


def bare(gap: NDArray[np.intp], start: Int64, end: Int64, cause: Cause | Int8) -> Parts:
    """n pieces without a host event.

    Args:
        gap: which gap each is of.
        start, end: ns.
        cause: one for all, or n codes.
    """
    n = len(start)
    fill = np.full(n, NONE, np.int32)
    code = np.full(n, cause, np.int8) if isinstance(cause, Cause) else cause
    return Parts(
        gap.astype(np.int32), start, end, code, fill, fill.astype(np.int8), fill, fill, fill, fill
    )


def together(parts: list[Parts]) -> Parts:
    """All pieces in one table, in the order given."""
    if len(parts) == 1:
        return parts[0]
    return Parts(
        *(np.concatenate([getattr(p, column.name) for p in parts]) for column in fields(Parts))
    )


def in_order(parts: list[Parts]) -> Parts:
    """All pieces in one table, in order of start. Empties the list: see below."""
    order = np.argsort(np.concatenate([p.start for p in parts]), kind="stable")
    names = [column.name for column in fields(Parts)]
    chunks = [[getattr(p, name) for p in parts] for name in names]
    parts.clear()
    columns = []
    while chunks:  # so that no column stands twice for longer than it takes to sort it
        columns.append(np.concatenate(chunks.pop(0))[order])
    return Parts(*columns)
