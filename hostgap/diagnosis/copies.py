"""Copies between host and device that no kernel hides, and where in their step they stand."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hostgap.analysis.edit import Edit
from hostgap.analysis.intervals import Intervals, overlap
from hostgap.analysis.syncs import copy_syncs
from hostgap.analysis.timeline import kernels
from hostgap.trace.model import Bool, CopyKind, GpuKind, Int8, Int64

if TYPE_CHECKING:
    from hostgap.diagnosis.context import Context

_COHERENT = ("GH200", "GB200", "GB300", "GH300")


class Place(enum.IntEnum):
    """Where in its step a copy stands."""

    INSIDE = 0
    INPUT = 1  # an upload before the step's first kernel
    OUTPUT = 2  # a download after its last one


@dataclass(frozen=True, slots=True)
class Copies:
    """Uploads and downloads of the window outside CUDA graphs, for which the host does not wait.

    Columns over n copies; those for which it waits are rules' about waits.

    Attributes:
        op: rows of gpu_ops.
        exposed: ns in which no kernel ran on the device.
        place: Place.
    """

    op: Int64
    exposed: Int64
    place: Int8


def find_copies(context: Context) -> Copies:
    """The copies of a window, see `Copies`."""
    gpu, launched = context.trace.gpu_ops, context.launched
    crosses = np.isin(gpu.copy_kind[launched.op], (CopyKind.H2D, CopyKind.D2H)) & ~launched.graph
    at = np.flatnonzero(crosses)
    at = at[~_waited(context)[launched.call[at]]]
    op, step = launched.op[at].astype(np.int64), launched.step[at]
    exposed = gpu.end[op] - gpu.start[op]
    exposed = exposed - overlap(Intervals(gpu.start[op], gpu.end[op]), kernels_of(context))
    is_kernel = np.isin(gpu.kind[launched.op], (GpuKind.KERNEL, GpuKind.GRAPH))
    far = np.iinfo(np.int64).max
    n = int(launched.step.max(initial=-1)) + 2  # the last is of ops that belong to no step, -1
    first, last = np.full(n, far), np.full(n, -far)
    np.minimum.at(first, launched.step[is_kernel], gpu.start[launched.op[is_kernel]])
    np.maximum.at(last, launched.step[is_kernel], gpu.end[launched.op[is_kernel]])
    up = gpu.copy_kind[op] == CopyKind.H2D
    known = (step >= 0) & (first[step] < far)
    place = np.full(len(op), Place.INSIDE, np.int8)
    place[known & up & (gpu.end[op] <= first[step])] = Place.INPUT
    place[known & ~up & (gpu.start[op] >= last[step])] = Place.OUTPUT
    return Copies(op, exposed, place)


def kernels_of(context: Context) -> Intervals:
    """When kernels ran on the device."""
    return kernels(context.trace.gpu_ops, context.device.rows)


def _waited(context: Context) -> Bool:
    """Per API call: is it a copy that the host waits for, in the call or right behind it?"""
    waits = context.waits
    of_copy = np.array([kind.copy is not CopyKind.NONE for kind in waits.kinds], np.bool_)
    mask = np.zeros(len(context.trace.api_calls) + 1, np.bool_)
    mask[waits.call[of_copy[waits.kind]] if len(of_copy) else waits.call] = True
    behind = copy_syncs(context.trace)
    return mask[:-1] | (mask[behind] & (behind >= 0))


def hidden(context: Context, op: Int64, exposed: Int64) -> Edit:
    """The world in which copies run beside kernels, as far as there are kernels to hide them."""
    gpu = context.trace.gpu_ops
    low, high = np.array([context.device.low]), np.array([context.device.high])
    most = int(overlap(Intervals(low, high), kernels_of(context))[0])
    total = int(exposed.sum())
    if total <= most:
        return Edit(drop=np.sort(op))
    share = (total - most) / total
    left = ((gpu.end[op] - gpu.start[op]) * share).astype(np.int64)
    return Edit(length=dict(zip(op.tolist(), left.tolist(), strict=True)))


def coherent(context: Context) -> bool:
    """Whether the device shares its memory's addresses with the host (Grace Hopper)."""
    return any(name in context.trace.devices[context.code].name for name in _COHERENT)
