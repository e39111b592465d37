"""Calls in which the host waits for the GPU, and what each waits for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.host import Host
from hostgap.analysis.sites import op_names
from hostgap.analysis.syncs import blocking_calls, closing_sync, copy_syncs
from hostgap.trace.model import Bool, CopyKind, Int64, Memory, Trace

TOGETHER_NS = 50_000  # between a copy and the synchronize that torch makes right behind it


@dataclass(frozen=True, slots=True)
class Wait:
    """One kind of wait: what all waits alike have in common.

    Attributes:
        call: name of the API call.
        ops: framework ops around it, outermost first; empty without them in the trace.
        copy: direction of the copy it waits for, NONE for a plain synchronize.
        host_memory: of the copy's end on the host.
        bytes: of the copy, -1 unknown.
    """

    call: str
    ops: tuple[str, ...]
    copy: CopyKind
    host_memory: Memory
    bytes: int

    @property
    def in_op(self) -> bool:
        """Whether a framework op makes the call, and not the user's own code."""
        return bool(self.ops)

    def inside(self, *names: str) -> bool:
        """Whether one of these framework ops (`item`: without `aten::`) is around it."""
        wanted = {f"aten::{name}" for name in names}
        return not wanted.isdisjoint(self.ops)


@dataclass(frozen=True, slots=True)
class Waits:
    """n waits: rows of api_calls, and which of the kinds each is."""

    call: Int64
    kind: NDArray[np.intp]
    kinds: tuple[Wait, ...]


def find_waits(host: Host, calls: Bool) -> Waits:
    """The waits of a window.

    Copies to and from pageable memory count too, although they are asked for asynchronously: the
    call itself holds the host. Of a copy and the synchronize behind it, that is the wait.

    Args:
        host: the threads of the trace.
        calls: mask over api_calls of the window.
    """
    trace = host.trace
    api, gpu = trace.api_calls, trace.gpu_ops
    copies = np.flatnonzero((gpu.call >= 0) & (gpu.copy_kind != CopyKind.NONE))
    op_of = np.full(len(api), -1, np.int64)
    op_of[gpu.call[copies]] = copies
    syncs = _made_together(host, copy_syncs(trace))
    paired = np.flatnonzero(syncs >= 0)
    op_of[syncs[paired]] = op_of[paired]
    pageable = pageable_copies(trace)
    rows = np.flatnonzero(calls & (blocking_calls(trace) | pageable) & ~closing_sync(trace))
    rows = rows[~(pageable[rows] & (syncs[rows] >= 0))]  # its synchronize stands for it
    chains = op_names(host, rows)
    kinds: dict[Wait, int] = {}
    kind = np.zeros(len(rows), np.intp)
    for i, (row, ops) in enumerate(zip(rows.tolist(), chains, strict=True)):
        op = int(op_of[row])
        plain = op < 0
        wait = Wait(
            trace.names[api.name[row]],
            ops,
            CopyKind.NONE if plain else CopyKind(gpu.copy_kind[op]),
            Memory.UNKNOWN if plain else _host_memory(trace, op),
            -1 if plain else int(gpu.bytes[op]),
        )
        kind[i] = kinds.setdefault(wait, len(kinds))
    return Waits(rows.astype(np.int64), kind, tuple(kinds))


def _made_together(host: Host, syncs: Int64) -> Int64:
    """Of copies and the synchronize behind each: those that one op made, others -1.

    A synchronize of the user's own, later, waits for everything and not for the copy alone.
    """
    trace = host.trace
    copies = np.flatnonzero(syncs >= 0)
    behind = syncs[copies]
    same = [a == b for a, b in zip(op_names(host, copies), op_names(host, behind), strict=True)]
    soon = trace.api_calls.start[behind] - trace.api_calls.end[copies] < TOGETHER_NS
    own = ~(np.array(same, np.bool_) & soon)
    kept = syncs.copy()
    kept[copies[own]] = -1
    return kept


def pageable_copies(trace: Trace) -> Bool:
    """Per API call: does it copy between the device and pageable memory?"""
    gpu = trace.gpu_ops
    mask = np.zeros(len(trace.api_calls), np.bool_)
    pageable = (gpu.src_mem == Memory.PAGEABLE) | (gpu.dst_mem == Memory.PAGEABLE)
    crosses = np.isin(gpu.copy_kind, (CopyKind.H2D, CopyKind.D2H))
    mask[gpu.call[pageable & crosses & (gpu.call >= 0)]] = True
    return mask


def _host_memory(trace: Trace, op: int) -> Memory:
    gpu = trace.gpu_ops
    return Memory(gpu.src_mem[op] if gpu.copy_kind[op] == CopyKind.H2D else gpu.dst_mem[op])
