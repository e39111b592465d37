"""When a device or a stream was busy, and when it was not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.intervals import Intervals, complement, cut, union
from hostgap.trace.model import Bool, GpuKind, GpuOps, Int64, Trace
from hostgap.trace.vocabulary import is_collective


@dataclass(frozen=True, slots=True)
class Lane:
    """The GPU ops of one device or one stream, with what they cover.

    Attributes:
        rows: the ops, rows of gpu_ops in order of start.
        busy: union of all of them.
        kernels: union of kernels (and whole graphs) alone.
        points: where ops of no length stand, sorted: no work, but the GPU was reached.
        first, last: start of the first op and end of the last, ns.
    """

    rows: NDArray[np.intp]
    busy: Intervals
    kernels: Intervals
    points: Int64
    first: int
    last: int

    def gaps(self, low: int, high: int) -> Intervals:
        """The maximal idle intervals of `[low, high)`, ended by any op, even one of no length."""
        idle = cut(complement(self.busy, low, high), self.points)
        return Intervals(idle.start, idle.end)


def lane(gpu: GpuOps, rows: NDArray[np.intp]) -> Lane:
    """Busy time of some rows of gpu_ops (at least one)."""
    start, end = gpu.start[rows], gpu.end[rows]
    kernel = np.isin(gpu.kind[rows], (GpuKind.KERNEL, GpuKind.GRAPH))
    return Lane(
        rows,
        union(start, end),
        union(start[kernel], end[kernel]),
        np.unique(start[start == end]),
        int(start.min()),
        int(end.max()),
    )


def device_lanes(trace: Trace) -> dict[int, Lane]:
    """A lane per device code that has ops."""
    gpu = trace.gpu_ops
    return {int(d): lane(gpu, np.flatnonzero(gpu.device == d)) for d in np.unique(gpu.device)}


def stream_lanes(trace: Trace, device: Lane) -> dict[int, Lane]:
    """A lane per stream code of one device."""
    stream = trace.gpu_ops.stream[device.rows]
    return {
        int(code): lane(trace.gpu_ops, device.rows[stream == code]) for code in np.unique(stream)
    }


def collectives(trace: Trace) -> Bool:
    """Per GPU op: is it a collective, which waits for other ranks?"""
    names = np.array([is_collective(name) for name in trace.names], np.bool_)
    gpu = trace.gpu_ops
    if len(gpu) == 0:
        return np.zeros(0, np.bool_)
    return np.asarray(names[gpu.name] & (gpu.kind == GpuKind.KERNEL))
