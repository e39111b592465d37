"""Columns that grow: chunks of numpy arrays, and dictionaries that hand out codes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

Key = TypeVar("Key", bound=Hashable)
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


class Columns:
    """Named columns filled block by block; joined once, at the end.

    Args:
        dtypes: column name -> numpy dtype.
    """

    def __init__(self, dtypes: Mapping[str, DTypeLike]) -> None:
        self._dtypes = dtypes
        self._chunks: dict[str, list[NDArray[Any]]] = {name: [] for name in dtypes}

    def append(self, **block: Sequence[Any] | NDArray[Any] | int) -> None:
        """Add one block: for every column a sequence of one length, or an int for all its rows."""
        length = len(block["start"])  # type: ignore[arg-type]
        for name, dtype in self._dtypes.items():
            values = block[name]
            if isinstance(values, int):
                self._chunks[name].append(np.full(length, values, dtype))
            else:
                self._chunks[name].append(np.asarray(values, dtype))

    def pop(self, name: str) -> NDArray[Any]:
        """The whole column; its chunks are freed, so that at most one column stands twice."""
        chunks = self._chunks.pop(name)
        return np.concatenate(chunks) if chunks else np.zeros(0, self._dtypes[name])


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


def by_start(columns: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Columns (start and end first) in order of start, longer intervals first."""
    start, end = columns[0], columns[1]
    step = np.diff(start)
    if (step > 0).all() or ((step >= 0).all() and (np.diff(end)[step == 0] <= 0).all()):
        return columns
    order = np.lexsort((-end, start))
    return [column[order] for column in columns]
