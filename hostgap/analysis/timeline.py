"""When a device or a stream was busy, and when it was not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.intervals import Intervals, complement, union
from hostgap.trace.model import Bool, GpuKind, GpuOps, Trace
from hostgap.trace.vocabulary import is_collective


@dataclass(frozen=True, slots=True)
class Lane:
    """The GPU ops of one device or one stream, with what they cover.

    Attributes:
        rows: the ops, rows of gpu_ops in order of start.
        busy: union of all of them.
        kernels: union of kernels (and whole graphs) alone.
    """

    rows: NDArray[np.intp]
    busy: Intervals
    kernels: Intervals

    @property
    def first(self) -> int:
        """Start of the first op, ns."""
        return self._bounds[0]

    @property
    def last(self) -> int:
        """End of the last op, ns."""
        return self._bounds[1]

    _bounds: tuple[int, int]

    def gaps(self, low: int, high: int) -> Intervals:
        """The maximal idle intervals of `[low, high)`."""
        return complement(self.busy, low, high)


def lane(gpu: GpuOps, rows: NDArray[np.intp]) -> Lane:
    """Busy time of some rows of gpu_ops (at least one).

    An op of no length is no work but bounds the lane: it shows that the GPU was reached.
    """
    start, end = gpu.start[rows], gpu.end[rows]
    kernel = np.isin(gpu.kind[rows], (GpuKind.KERNEL, GpuKind.GRAPH))
    return Lane(
        rows,
        union(start, end),
        union(start[kernel], end[kernel]),
        (int(start.min()), int(end.max())),
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
    return names[gpu.name] & (gpu.kind == GpuKind.KERNEL)
