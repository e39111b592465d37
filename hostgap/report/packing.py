"""Columns of integers, small enough to be mailed.

A report carries 100,000 events and more inside one HTML file. Each column is stored as the lowest
bytes of all values, then the next higher bytes, and so on, as many planes as its largest value
needs: the high planes are nearly all zeros, so deflate makes little of them. All columns of a run
form one block: deflate, then base64. `timeline_data.js` takes it apart again.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST = 2**53  # the integers that a script's numbers hold exactly


class Packer:
    """Collects columns; `specs` of the calls and `blob` together are what the page holds."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._size = 0

    def add(self, values: NDArray[Any]) -> list[int]:
        """Store n integers from 0 to 2^53; returns [offset in the block, byte planes, n]."""
        column = np.ascontiguousarray(values, dtype="<u8")
        if len(column) and int(column.max()) > LARGEST:
            raise ValueError("a value beyond 2^53")
        top = int(column.max()) if len(column) else 0
        planes = max(1, (top.bit_length() + 7) // 8)
        data = column.view(np.uint8).reshape(-1, 8)[:, :planes].T.tobytes()
        spec = [self._size, planes, len(column)]
        self._chunks.append(data)
        self._size += len(data)
        return spec

    def sorted(self, values: NDArray[Any]) -> list[int]:
        """Store n sorted integers as their differences."""
        column = np.asarray(values, np.int64)
        return self.add(np.diff(column, prepend=np.int64(0)))

    def blob(self) -> str:
        """Everything added so far, as base64 of a zlib stream."""
        return base64.b64encode(zlib.compress(b"".join(self._chunks), 9)).decode("ascii")
