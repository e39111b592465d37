"""What each unit of GPU work had to wait for, as a trace shows it: its stream, another stream."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hostgap.trace.model import Int64

NEVER = -(1 << 62)  # ns: before all there is
NEAR = 64  # ops back to look for the one that an op waited for


def prior_on_stream(stream: NDArray[np.int32]) -> NDArray[np.intp]:
    """Per unit: the one before it on its stream, -1 for none."""
    prior = np.full(len(stream), -1, np.intp)
    for code in np.unique(stream).tolist():
        mine = np.flatnonzero(stream == code)
        prior[mine[1:]] = mine[:-1]
    return prior


def waited_for(start: Int64, end: Int64, call: Int64, prior: NDArray[np.intp]) -> NDArray[np.intp]:
    """Per unit: the one that had to end first, and did so last; -1 for none.

    That is the one before it on its stream; where another stream's ended later and still before
    this one began, that one (an event, or the stream's order, held it back). Only what had been
    ordered by then can be waited for.
    """
    n = len(start)
    by_end = np.argsort(end, kind="stable")
    found = np.searchsorted(end[by_end], start, "right") - 1
    for _ in range(NEAR):
        at = np.maximum(found, 0)
        ordered_later = (found >= 0) & (call >= 0) & (call[by_end[at]] > call)
        if not ordered_later.any():
            break
        found = found - ordered_later
    other = np.where(found >= 0, by_end[np.maximum(found, 0)], -1)
    own_end = np.where(prior >= 0, end[prior], NEVER)
    later = (other >= 0) & (other < np.arange(n)) & (end[other] > own_end)
    later &= (call < 0) | (call[other] <= call)
    return np.where(later, other, prior)
