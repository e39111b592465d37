"""Blocking calls: how long each held the host, and how much idle time followed in its shadow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.attribution import blocking_calls
from hostgap.analysis.clock import download_syncs
from hostgap.analysis.parts import NONE, Parts
from hostgap.trace.model import Bool, CopyKind, Int8, Int32, Int64, Role, Trace


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


def find_syncs(trace: Trace, parts: list[Parts], calls: NDArray[np.bool_]) -> Syncs:
    """The blocking calls among `calls` (a mask over api_calls), with their shadows in `parts`."""
    api, gpu = trace.api_calls, trace.gpu_ops
    shadow = np.zeros(len(api), np.int64)
    for piece in parts:
        blamed = piece.blame != NONE
        np.add.at(shadow, piece.blame[blamed], piece.length[blamed])
    copy_of_call = np.full(len(api), CopyKind.NONE, np.int8)
    copies = np.flatnonzero((gpu.call >= 0) & (gpu.copy_kind != CopyKind.NONE))
    copy_of_call[gpu.call[copies]] = gpu.copy_kind[copies]
    waits = download_syncs(trace)
    downloads = np.flatnonzero(waits >= 0)
    copy_of_call[waits[downloads]] = copy_of_call[downloads]
    rows = np.flatnonzero(blocking_calls(trace) & calls)
    return Syncs(
        rows.astype(np.int32),
        copy_of_call[rows],
        api.end[rows] - api.start[rows],
        shadow[rows],
    )


def closing_sync(trace: Trace) -> Bool:
    """Per API call: is it the device synchronize with which torch.profiler ends a recording?

    It is the last synchronize of the trace, and nothing is launched after it. It would otherwise
    be charged to the last step.
    """
    api = trace.api_calls
    closing = np.zeros(len(api), np.bool_)
    launching = np.isin(api.role, (Role.LAUNCH, Role.GRAPH_LAUNCH, Role.COPY))
    syncs = np.flatnonzero(api.role == Role.SYNC)
    if trace.source == "kineto" and len(syncs):
        last = syncs[-1]
        name = trace.names[api.name[last]]
        closing[last] = name.endswith("DeviceSynchronize") and not launching[last:].any()
    return closing
