"""Columns that grow: chunks of numpy arrays, and dictionaries that hand out codes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

Key = TypeVar("Key", bound=Hashable)


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
