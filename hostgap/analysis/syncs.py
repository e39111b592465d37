"""Blocking calls: how long each held the host, and how much idle time followed in its shadow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.parts import NONE, Pieces
from hostgap.trace.model import Bool, CopyKind, Int8, Int32, Int64, Memory, Role, Trace
from hostgap.trace.vocabulary import BLOCKING_COPIES


@dataclass(frozen=True, slots=True)
class Syncs:
    """One row per blocking call.

    `copy` is the direction of the copy it waited for (CopyKind.NONE: a plain synchronize),
    `shadow_ns` the idle time of all devices, inside the window, that its return was followed by.
    """

    call: Int32
    copy: Int8
    blocked_ns: Int64
    shadow_ns: Int64


def find_syncs(trace: Trace, devices: list[Pieces]) -> Syncs:
    """All blocking calls of a trace, with their shadows in the idle time of devices."""
    api, gpu = trace.api_calls, trace.gpu_ops
    shadow = np.zeros(len(api), np.int64)
    for pieces in devices:
        shadow += shadows(pieces, len(api))
    copy_of_call = np.full(len(api), CopyKind.NONE, np.int8)
    copies = np.flatnonzero((gpu.call >= 0) & (gpu.copy_kind != CopyKind.NONE))
    copy_of_call[gpu.call[copies]] = gpu.copy_kind[copies]
    waits = download_syncs(trace)
    downloads = np.flatnonzero(waits >= 0)
    copy_of_call[waits[downloads]] = copy_of_call[downloads]
    rows = np.flatnonzero(blocking_calls(trace))
    return Syncs(
        rows.astype(np.int32),
        copy_of_call[rows],
        api.end[rows] - api.start[rows],
        shadow[rows],
    )


def shadows(pieces: Pieces, calls: int) -> Int64:
    """Idle time of a device in the shadow of each of so many API calls, ns."""
    shadow = np.zeros(calls, np.int64)
    for parts in pieces:
        blamed = np.flatnonzero(parts.blame != NONE)
        if len(blamed) == 0:
            continue
        np.add.at(shadow, parts.blame[blamed], parts.length[blamed])
    return shadow


def closing_sync(trace: Trace) -> Bool:
    """Per API call: is it the device synchronize with which a recording ends?

    torch.profiler makes one, and whoever brackets steps for nsys does before cudaProfilerStop. It
    is the last synchronize of the trace, and nothing is launched after it. It would otherwise be
    charged to the last step.
    """
    api = trace.api_calls
    closing = np.zeros(len(api), np.bool_)
    launching = np.isin(api.role, (Role.LAUNCH, Role.GRAPH_LAUNCH, Role.COPY))
    syncs = np.flatnonzero(api.role == Role.SYNC)
    if len(syncs):
        last = syncs[-1]
        name = trace.names[api.name[last]]
        closing[last] = name.endswith("DeviceSynchronize") and not launching[last:].any()
    return closing


def blocking_calls(trace: Trace) -> Bool:
    """Per API call: does it block its thread until the GPU has caught up?

    Synchronize calls do, and copies that return only when they are done.
    """
    api = trace.api_calls
    copies = np.array([BLOCKING_COPIES.fullmatch(name) is not None for name in trace.names])
    if len(api) == 0:
        return np.zeros(0, np.bool_)
    return np.asarray((api.role == Role.SYNC) | ((api.role == Role.COPY) & copies[api.name]))


def download_syncs(trace: Trace) -> Int64:
    """For every API call: the stream synchronize that waits for its download, -1 without one."""
    return copy_syncs(trace, (CopyKind.D2H,))


def copy_syncs(
    trace: Trace, directions: tuple[CopyKind, ...] = (CopyKind.D2H, CopyKind.H2D)
) -> Int64:
    """For every API call: the stream synchronize that waits for its copy, -1 without one.

    `.item()`, `.cpu()` and `.tolist()` are a device-to-host cudaMemcpyAsync and then a
    cudaStreamSynchronize, with nothing launched in between on that thread; `.to("cuda")` is the
    same in the other direction.

    Args:
        directions: of copies between the device and the host.

    Returns:
        One entry per row of `api_calls`.
    """
    api, gpu = trace.api_calls, trace.gpu_ops
    waits = np.full(len(api), -1, np.int64)
    crosses = np.zeros(len(api), np.bool_)
    copies = (gpu.call >= 0) & np.isin(gpu.copy_kind, directions)
    host_end = np.where(gpu.copy_kind == CopyKind.D2H, gpu.dst_mem, gpu.src_mem)
    crosses[gpu.call[copies & (host_end != Memory.DEVICE)]] = True
    names = trace.names
    stream_sync = np.array([n.endswith("StreamSynchronize") for n in names], np.bool_)
    matters = np.isin(api.role, (Role.LAUNCH, Role.GRAPH_LAUNCH, Role.COPY, Role.SYNC))
    rows = np.flatnonzero(matters)
    rows = rows[np.argsort(api.thread[rows], kind="stable")]
    first, second = rows[:-1], rows[1:]
    pair = (
        crosses[first]
        & stream_sync[api.name[second]]
        & (api.role[second] == Role.SYNC)
        & (api.thread[first] == api.thread[second])
    )
    waits[first[pair]] = second[pair]
    return waits


def capture_spans(trace: Trace) -> dict[int, tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """thread -> the calls that began captures, and those that ended them (-1: none did)."""
    api = trace.api_calls
    marks = np.flatnonzero(api.role == Role.CAPTURE)
    begins = np.array(["BeginCapture" in trace.names[code] for code in api.name[marks]], np.bool_)
    spans = {}
    for thread in np.unique(api.thread[marks]).tolist():
        mine = marks[api.thread[marks] == thread]
        opening = np.flatnonzero(begins[api.thread[marks] == thread])
        after = np.append(mine, NONE)[opening + 1]
        spans[thread] = (mine[opening], after)
    return spans
