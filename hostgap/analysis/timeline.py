"""When a device or a stream was busy, and when it was not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.intervals import Intervals, complement, cut, union
from hostgap.trace.columns import distinct_codes
from hostgap.trace.model import Bool, GpuKind, GpuOps, Int32, Int64, Trace
from hostgap.trace.vocabulary import is_collective


@dataclass(frozen=True, slots=True)
class Lane:
    """The GPU ops of one device or one stream, with what they cover.

    Attributes:
        rows: the ops, rows of gpu_ops in order of start.
        busy: union of all of them.
        points: where ops of no length stand, sorted: no work, but the GPU was reached.
        first, last: start of the first op and end of the last, ns.
    """

    rows: Int32
    busy: Intervals
    points: Int64
    first: int
    last: int

    def gaps(self, low: int, high: int) -> Intervals:
        """The maximal idle intervals of `[low, high)`, ended by any op, even one of no length."""
        idle = cut(complement(self.busy, low, high), self.points)
        return Intervals(idle.start, idle.end)


def lane(gpu: GpuOps, rows: NDArray[np.signedinteger]) -> Lane:
    """Busy time of some rows of gpu_ops (at least one)."""
    start, end = gpu.start[rows], gpu.end[rows]
    return Lane(
        rows.astype(np.int32),
        union(start, end),
        np.unique(start[start == end]),
        int(start.min()),
        int(end.max()),
    )


def device_lanes(trace: Trace) -> dict[int, Lane]:
    """A lane per device code that has ops."""
    gpu = trace.gpu_ops
    codes = distinct_codes(gpu.device).tolist()
    return {code: lane(gpu, np.flatnonzero(gpu.device == code)) for code in codes}


def kernels(gpu: GpuOps, rows: Int32) -> Intervals:
    """When kernels, and whole graphs, among some rows of gpu_ops ran."""
    rows = rows[np.isin(gpu.kind[rows], (GpuKind.KERNEL, GpuKind.GRAPH))]
    return union(gpu.start[rows], gpu.end[rows])


def streams(gpu: GpuOps, rows: Int32) -> dict[int, Int32]:
    """Some rows of gpu_ops per stream code, in the same order."""
    stream = gpu.stream[rows]
    codes = distinct_codes(stream).tolist()
    if len(codes) == 1:
        return {codes[0]: rows}
    return {code: rows[stream == code] for code in codes}


def collectives(trace: Trace) -> Bool:
    """Per GPU op: is it a collective, which waits for other ranks?"""
    gpu = trace.gpu_ops
    names = np.zeros(len(trace.names), np.bool_)
    for code in distinct_codes(gpu.name).tolist():
        names[code] = is_collective(trace.names[code])
    return np.asarray(names[gpu.name] & (gpu.kind == GpuKind.KERNEL))
