"""Which ranges of an Nsight export nest, and which cross others or lie in CUDA calls."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostgap.trace.model import Bool, Int32, Int64


def inside_calls(start: Int64, thread: Int32, calls: dict[str, NDArray[Any]]) -> Bool:
    """Per time and thread: is a call of that thread running?"""
    inside = np.zeros(len(start), np.bool_)
    for code in np.unique(thread).tolist():
        mine = np.flatnonzero(calls["thread"] == code)
        if len(mine) == 0:
            continue
        mine = mine[np.argsort(calls["start"][mine], kind="stable")]
        reach = np.maximum.accumulate(calls["end"][mine])
        rows = np.flatnonzero(thread == code)
        before = np.searchsorted(calls["start"][mine], start[rows], "right") - 1
        inside[rows] = (before >= 0) & (start[rows] < reach[before])
    return inside


def crossing(start: Int64, end: Int64, thread: Int64, free: Bool) -> Bool:
    """Which of the `free` ranges overlap another range of their thread without nesting in it."""
    found = np.zeros(len(start), np.bool_)
    for key in np.unique(thread[free]).tolist():
        rows = np.flatnonzero(thread == key)
        rows = rows[np.lexsort((-end[rows], start[rows]))]
        stack: list[int] = []
        for row in rows.tolist():
            while stack and end[stack[-1]] <= start[row]:
                stack.pop()
            # whoever is free gives way
            while stack and end[row] > end[stack[-1]]:
                found[row if free[row] else stack[-1]] = True
                if free[row] or not free[stack[-1]]:
                    break
                stack.pop()
            if not found[row]:
                stack.append(row)
    return found & free
