"""The edit that takes a named range of the host away, with all that it did."""

from __future__ import annotations

import numpy as np

from hostgap.analysis.edit import Edit
from hostgap.analysis.examine import Analysis
from hostgap.analysis.intervals import covers, union
from hostgap.errors import HostgapError
from hostgap.trace.model import HostKind


def removal(analysis: Analysis, name: str) -> Edit:
    """What is different without the ranges of a name (record_function, NVTX): their host time is
    not spent, their calls do not wait, and what those launched does not run.

    Args:
        analysis: what was examined.
        name: of the ranges, whole.

    Raises:
        HostgapError: the trace has no such range.
    """
    trace, clock = analysis.trace, analysis.clock
    ops, api = trace.host_ops, trace.api_calls
    named = np.array([each == name for each in trace.names], np.bool_)
    rows = np.flatnonzero(named[ops.name] & np.isin(ops.kind, (HostKind.ANNOTATION, HostKind.OP)))
    if len(rows) == 0:
        raise HostgapError(f"no range is named {name!r} in {trace.file}")
    inside = np.zeros(len(api), np.bool_)
    for thread in np.unique(ops.thread[rows]).tolist():
        mine = rows[ops.thread[rows] == thread]
        within = covers(union(ops.start[mine], ops.end[mine]), api.start)
        inside |= within & (api.thread == thread)
    calls = np.flatnonzero(inside).astype(np.int64)
    return Edit(
        cut=union(clock.to_gpu(ops.start[rows]), clock.to_gpu(ops.end[rows])),
        unblock=calls,
        drop=np.flatnonzero(np.isin(trace.gpu_ops.call, calls)).astype(np.int64),
    )
