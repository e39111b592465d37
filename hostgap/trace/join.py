"""Joining GPU ops to the calls that launched them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hostgap.trace.columns import distinct
from hostgap.trace.model import Int8, Int64, Role
from hostgap.trace.sqlite import NULL

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
    for candidates in (np.flatnonzero(launching), np.flatnonzero(~launching)):
        ids = call_id[candidates]
        order = np.argsort(ids, kind="stable")
        ids, candidates = ids[order], candidates[order]
        first = np.searchsorted(ids, correlation, "left")
        count = np.searchsorted(ids, correlation, "right") - first
        open_ops = (call == NONE) & (correlation > 0)
        found = open_ops & (count == 1)
        call[found] = candidates[first[found]]
        if candidates.size and launching[candidates[0]]:
            ambiguous = len(np.unique(correlation[open_ops & (count > 1)]))
            # an id that is ambiguous among launches must not fall to an unrelated call
            correlation = np.where(count > 1, 0, correlation)
    return call, ambiguous


def pair_ids(
    gpu_process: Int64, gpu_id: Int64, call_process: Int64, call_id: Int64
) -> tuple[Int64, Int64]:
    """One number per (process, correlation id), as ids repeat across processes.

    Args:
        gpu_process, gpu_id: processes (an export's NULL >> 24: unknown) and ids of n GPU ops.
        call_process, call_id: the same of m API calls.

    Returns:
        n and m numbers, 0 for no id. Rows without a process belong to the only one that there is.
    """
    process, ids = np.concatenate((gpu_process, call_process)), np.concatenate((gpu_id, call_id))
    owner, which = distinct(process)
    known = owner[owner != NULL >> 24]
    if len(known) <= 1:
        number = ids
    else:
        unique, rank = distinct(ids)
        number = which * len(unique) + rank + 1
    number = np.where(ids > 0, number, 0)
    return number[: len(gpu_id)], number[len(gpu_id) :]
