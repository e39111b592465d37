"""Columns that grow, and dictionaries that hand out codes."""

from __future__ import annotations

import mmap
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

Key = TypeVar("Key", bound=Hashable)
MAX_NAME = 64 << 10  # characters of an event's name that are kept
_FIRST = 4096  # rows a column has room for at first
_MAPPED = 1 << 20  # bytes from which on a column is a mapping of its own
_CLOSE = 1 << 22  # ids this close together are told apart by a table


class Interner(dict[Key, int], Generic[Key]):
    """value -> code, new values numbered as they come: `codes[value]`."""

    def __missing__(self, key: Key) -> int:
        code = len(self)
        self[key] = code
        return code


class Names(Interner[str]):
    """Codes of texts; one longer than `limit` characters is cut, and counted in `cut`."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.cut = 0

    def __missing__(self, key: str) -> int:
        if len(key) <= self.limit:
            return super().__missing__(key)
        self.cut += 1
        return self[key[: self.limit]]


class Column:
    """One column that grows in place.

    Its room doubles, and costs memory only as it is filled: large rooms are anonymous mappings, of
    which the system holds the pages that were written, and takes them all back with the column.
    """

    __slots__ = ("_room", "length")

    def __init__(self, dtype: DTypeLike) -> None:
        self._room: NDArray[Any] = np.zeros(0, dtype)
        self.length = 0

    def extend(self, values: Sequence[Any] | NDArray[Any] | int, count: int) -> None:
        """Append `count` values, or one int as often."""
        end = self.length + count
        if end > len(self._room):
            room = _room(max(end, 2 * len(self._room), _FIRST), self._room.dtype)
            room[: self.length] = self._room[: self.length]
            self._room = room
        self._room[self.length : end] = values
        self.length = end

    @property
    def values(self) -> NDArray[Any]:
        """The column so far, not a copy."""
        return self._room[: self.length]


def _room(rows: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    size = rows * dtype.itemsize
    if size < _MAPPED:
        return np.empty(rows, dtype)
    return np.frombuffer(mmap.mmap(-1, size), dtype)


class Columns:
    """Named columns filled block by block.

    Args:
        dtypes: column name -> numpy dtype.
    """

    def __init__(self, dtypes: Mapping[str, DTypeLike]) -> None:
        self._columns = {name: Column(dtype) for name, dtype in dtypes.items()}

    def __len__(self) -> int:
        """How many rows there are."""
        return min((column.length for column in self._columns.values()), default=0)

    def append(self, **block: Sequence[Any] | NDArray[Any] | int) -> None:
        """Add one block: for every column a sequence of one length, or an int for all its rows."""
        length = len(block["start"])  # type: ignore[arg-type]
        for name, column in self._columns.items():
            column.extend(block[name], length)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """The column as it is; not to be kept beyond `pop`."""
        return self._columns[name].values

    def pop(self, name: str) -> NDArray[Any]:
        """The whole column, which is then the caller's."""
        return self._columns.pop(name).values


def distinct(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """The distinct values of a column that holds few, and for each row which of them it is.

    `np.unique` sorts the whole column for it; ids that lie close together need no sorting.
    """
    if len(values) == 0:
        return values, np.zeros(0, np.intp)
    low, high = int(values.min()), int(values.max())
    if low == high:
        return values[:1], np.zeros(len(values), np.intp)
    if high - low >= _CLOSE:
        found, which = np.unique(values, return_inverse=True)
        return found, which.astype(np.intp)
    seen = np.zeros(high - low + 1, np.bool_)
    seen[values - low] = True
    rank = np.cumsum(seen, dtype=np.int32) - 1
    return np.flatnonzero(seen) + low, rank[values - low].astype(np.intp)


def distinct_codes(codes: NDArray[np.signedinteger]) -> NDArray[np.intp]:
    """The distinct codes of a column, in order; none below 0.

    `np.unique` takes ten times as long: codes of a dictionary are small. Often there is only one.
    """
    if len(codes) and (codes == codes[0]).all():
        return np.array([codes[0]], np.intp)
    return np.flatnonzero(np.bincount(codes))


def by_start(columns: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Columns (start and end first) in order of start, longer intervals first.

    Takes the columns out of the list that it is given where it has to sort them.
    """
    start, end = columns[0], columns[1]
    step = np.diff(start)
    if (step > 0).all() or ((step >= 0).all() and (np.diff(end)[step == 0] <= 0).all()):
        return columns
    order = np.lexsort((-end, start)).astype(_index(len(start)))
    columns[:] = columns[::-1]
    return [columns.pop()[order] for _ in range(len(columns))]  # so that none stands twice


def _index(rows: int) -> type[np.int32 | np.int64]:
    """The smaller type that numbers so many rows."""
    return np.int32 if rows < 2**31 else np.int64
