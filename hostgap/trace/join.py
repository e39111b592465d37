"""Joining GPU ops to the calls that launched them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hostgap.trace.model import Int8, Int64, Role

NONE = -1


def match_calls(correlation: Int64, call_id: Int64, role: Int8) -> tuple[NDArray[np.int32], int]:
    """The API call that launched each GPU op, by correlation id.

    Calls that can launch work (launches, copies) come first; another call (a library's own) only
    where no such call has the id. An id that several such calls share joins nothing.

    Args:
        correlation: n ids of GPU ops; 0 and less means none.
        call_id, role: ids and roles of m API calls.

    Returns:
        n calls (-1: none), and the number of ambiguous ids.
    """
    call = np.full(len(correlation), NONE, np.int32)
    if not len(call_id) or not len(correlation):
        return call, 0
    launching = np.isin(role, (Role.LAUNCH, Role.GRAPH_LAUNCH, Role.COPY))
    ambiguous = 0
    ops = np.flatnonzero(correlation > 0)  # that have no call yet
    for candidates in (np.flatnonzero(launching), np.flatnonzero(~launching)):
        ids = call_id[candidates]
        order = np.argsort(ids, kind="stable")
        ids, candidates = ids[order], candidates[order]
        wanted = correlation[ops]
        first = np.searchsorted(ids, wanted, "left")
        count = np.searchsorted(ids, wanted, "right") - first
        found = count == 1
        call[ops[found]] = candidates[first[found]]
        if candidates.size and launching[candidates[0]]:
            ambiguous = len(np.unique(wanted[count > 1]))
        # an id that is ambiguous among launches must not fall to an unrelated call
        ops = ops[count == 0]
    return call, ambiguous
