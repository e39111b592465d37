"""Pieces of gaps: the unit of attribution, as columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.causes import Cause
from hostgap.analysis.intervals import Intervals, cut
from hostgap.trace.columns import distinct
from hostgap.trace.model import Int8, Int32, Int64

NONE = -1
_BLOCK = 1 << 18
_BYTE = np.iinfo(np.uint8).max
_CODES = 1 << 16  # codes of names lie this close together, rows and times do not
_EXACT = 2**53 // _BLOCK  # so many values of this size, 34 s, add up exactly as floats


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


class _Packed(NamedTuple):
    """A column of integers as what it is above the least of them, in the smallest type for that;
    or, where that takes more than a byte and there are few, as which of its values it is."""

    least: int
    above: NDArray[Any]
    dtype: np.dtype[Any]
    values: NDArray[Any] | None = None

    def column(self) -> NDArray[Any]:
        """The column as it was, not to be written to."""
        least = self.dtype.type(self.least)
        if self.above.strides == (0,):
            return np.broadcast_to(least, len(self.above))
        column: NDArray[Any]
        if self.values is not None:
            column = self.values[self.above]
        else:
            column = self.above.astype(self.dtype)
            column += least
        return column


def _packed(column: NDArray[Any]) -> _Packed:
    least, most = int(column.min()), int(column.max())
    if least == most:
        return _Packed(least, np.broadcast_to(np.uint8(0), len(column)), column.dtype)
    if _BYTE < most - least < _CODES:
        values, which = distinct(column)
        if len(values) <= _BYTE + 1:
            return _Packed(0, which.astype(np.uint8), column.dtype, values.astype(column.dtype))
    above = column - column.dtype.type(least)
    return _Packed(least, above.astype(np.min_scalar_type(most - least)), column.dtype)


class _Block(NamedTuple):
    """Pieces of consecutive gaps. They tile the gaps, so that ends need not be kept."""

    first_gap: int
    per_gap: NDArray[Any]  # how many pieces each has
    columns: dict[str, _Packed]  # all but the gap and the end
    first_row: Int32  # per table, from NONE on: its least row; rows are kept as above that


_UNPACKED = 1_250_000  # pieces up to which they stay as they are, for every rule walks over them
_KEPT = [column.name for column in fields(Parts) if column.name not in ("gap", "end")]


class _BlockParts(Parts):
    """The pieces of a block. A column is unpacked when it is first asked for.

    Most of those who walk over all pieces choose some by cause, and look at no more of a block
    in which there are none.
    """

    __slots__ = ("_block", "_gaps")
    _block: _Block
    _gaps: Intervals

    @classmethod
    def of(cls, block: _Block, gaps: Intervals) -> _BlockParts:
        """Without any column so far."""
        parts = cls.__new__(cls)
        object.__setattr__(parts, "_block", block)
        object.__setattr__(parts, "_gaps", gaps)
        return parts

    def __len__(self) -> int:
        return len(self._block.columns["start"].above)

    def __getattr__(self, name: str) -> NDArray[Any]:
        """A column that is not there yet."""
        if name in ("start", "end"):
            first_gap, per_gap, columns, _ = self._block
            start, end = _tiles(self._gaps, first_gap, per_gap, columns["start"].column())
            object.__setattr__(self, "start", start)
            object.__setattr__(self, "end", end)
            return start if name == "start" else end
        if name == "gap":
            per_gap = self._block.per_gap
            number = np.arange(len(per_gap), dtype=np.int32) + np.int32(self._block.first_gap)
            column = np.repeat(number, per_gap)
        elif name == "row":
            column = self._block.columns[name].column() + self._block.first_row[self.table - NONE]
        elif name in _KEPT:
            column = self._block.columns[name].column()
        else:
            raise AttributeError(name)
        object.__setattr__(self, name, column)
        return column


def _block(parts: Parts) -> _Block:
    """Pieces of consecutive gaps, packed."""
    first_gap = int(parts.gap[0])
    per_gap = np.bincount(parts.gap - first_gap)
    tables = parts.table - NONE
    first_row = np.full(int(tables.max()) + 1, np.iinfo(np.int32).max, np.int32)
    np.minimum.at(first_row, tables, parts.row)
    columns = {name: getattr(parts, name) for name in _KEPT}
    columns["row"] = parts.row - first_row[tables]
    return _Block(
        first_gap,
        per_gap.astype(np.min_scalar_type(int(per_gap.max()))),
        {name: _packed(column) for name, column in columns.items()},
        first_row,
    )


def _tiles(
    gaps: Intervals, first_gap: int, per_gap: NDArray[Any], start: Int64
) -> tuple[Int64, Int64]:
    """Starts and ends of pieces that begin at these times, as they tile their gaps."""
    mine = slice(first_gap, first_gap + len(per_gap))
    behind = np.cumsum(per_gap, dtype=np.intp)
    start, end = start.copy(), np.empty_like(start)
    end[:-1] = start[1:]
    some = per_gap > 0
    start[(behind - per_gap)[some]] = gaps.start[mine][some]
    end[behind[some] - 1] = gaps.end[mine][some]
    return start, end


class Pieces:
    """The pieces of all gaps of a device's window: blocks of `Parts`, in order of start.

    A long trace has more of them than anything else. Where there are many they are packed: within a
    block most columns span little, and take a quarter of the memory.

    Args:
        gaps: of the window.
    """

    def __init__(self, gaps: Intervals) -> None:
        self.gaps = gaps
        self._parts: list[Parts] = []  # all of them, or
        self._blocks: list[_Block] = []  # all of them
        self._length = 0
        self._ns = np.zeros(len(Cause), np.int64)

    def add(self, parts: Parts) -> None:
        """Append all pieces of the next gaps.

        Args:
            parts: in order of start; of which gap they are need not be right.

        Raises:
            AssertionError: they do not tile the gaps.
        """
        if len(parts) == 0:
            return
        low, high = np.searchsorted(self.gaps.start, parts.start[[0, -1]], "right")
        first = max(int(low) - 1, 0)
        begins = np.searchsorted(parts.start, self.gaps.start[first:high])
        per_gap = np.diff(begins, append=len(parts))
        start, end = _tiles(self.gaps, first, per_gap, parts.start)
        if not (np.array_equal(start, parts.start) and np.array_equal(end, parts.end)):
            missing = int((end - start).sum()) - int(parts.length.sum())
            raise AssertionError(f"idle time by cause misses the idle time by {missing} ns")
        gap = np.repeat(np.arange(first, first + len(per_gap), dtype=np.int32), per_gap)
        self._parts.append(replace(parts, gap=gap))
        self._length += len(parts)
        self._ns += sum_by(parts.cause, parts.length, len(Cause))
        if self._length > _UNPACKED:
            self._blocks += map(_block, self._parts)
            self._parts.clear()

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Parts]:
        if self._blocks:
            return (_BlockParts.of(block, self.gaps) for block in self._blocks)
        return iter(self._parts)

    def whole(self) -> Parts:
        """All in one table: 42 bytes each."""
        return together(list(self)) if self._length else NO_PARTS

    @property
    def total(self) -> int:
        """Sum of the lengths, ns."""
        return int(self._ns.sum())

    def by_cause(self) -> dict[Cause, int]:
        """Total ns per cause; causes that do not occur are left out."""
        return {Cause(code): int(ns) for code, ns in enumerate(self._ns) if ns}


def sum_by(key: NDArray[np.signedinteger], values: Int64, n: int) -> Int64:
    """Exact integer sums per key 0..n-1.

    bincount is far faster than add.at but sums in float64: values so large that a sum may not be
    exact go in as two halves. A block at a time, as it copies what it is given.
    """
    total = np.zeros(n, np.int64)
    for first in range(0, len(key), _BLOCK):
        keys, block = key[first : first + _BLOCK], values[first : first + _BLOCK]
        if int(block.min()) > -_EXACT and int(block.max()) < _EXACT:
            total += np.bincount(keys, block, n).astype(np.int64)
            continue
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
    """All pieces in one table, in order of start."""
    every = together(parts)
    return every.take(np.argsort(every.start, kind="stable"))


_NO_TIME = np.zeros(0, np.int64)
NO_PARTS = bare(np.zeros(0, np.intp), _NO_TIME, _NO_TIME, Cause.UNTRACED)
