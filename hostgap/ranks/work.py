"""What one rank's host and GPU do in a step, by kind and place: what a straggler does more of.

Idle time alone does not say it. A rank whose host is ahead does not idle while it waits for a
straggler, it spins in its collectives; held against it, the straggler idles longer in everything
that it does. Their hosts do the same work but for what holds the straggler up
(`hostgap.ranks.excess`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hostgap.analysis.causes import Cause
from hostgap.analysis.examine import Analysis
from hostgap.analysis.host import CALL, HostThread, sweep
from hostgap.analysis.intervals import Intervals, clip, overlap, union
from hostgap.analysis.parts import sum_by
from hostgap.analysis.sites import call_sites, frame_precision, site_of_frame, site_of_op
from hostgap.analysis.timeline import collectives
from hostgap.diagnosis.model import Site
from hostgap.trace.model import GpuKind, Int32, Int64, Role

# Time in these may be a wait for the GPU, of which the rank that waits for others has more: only
# what is done at one place can be told to be the straggler's own, and where the others do it as
# well, only what does not lie beside kernels.
WAITING = (Cause.SYNC, Cause.COPY_CALL, Cause.FREE, Cause.HOST_ALLOC, Cause.ALLOC)
MOST_PLACES = 2_000


@dataclass(frozen=True, slots=True)
class Work:
    """What a rank does in its window, ns.

    Attributes:
        steps: in the window, at least 1.
        host: cause and place -> time of the launching thread, the costliest first. Graph launches
            take what they do without a profiler, where that is known.
        beside: the same, what of that lies beside kernels; only of `WAITING`.
        copies: place -> time that the GPU copies beside no kernel.
        kernel_ns: time in kernels, collectives aside.
    """

    steps: int
    host: Mapping[tuple[Cause, Site | None], int]
    copies: Mapping[Site | None, int]
    kernel_ns: int
    beside: Mapping[tuple[Cause, Site | None], int] = field(default_factory=dict)


def work_of(analysis: Analysis, device: int, graph_calls: Sequence[float] = ()) -> Work | None:
    """What the host and GPU of a device do in its window; None where no call launches anything.

    Args:
        analysis: of the rank.
        device: its code.
        graph_calls: what the host takes for each graph launch of a step without a profiler, ns;
            none where that is not known.
    """
    trace = analysis.trace
    gpu, api = trace.gpu_ops, trace.api_calls
    here = analysis.devices[device]
    mine = (gpu.device == device) & (gpu.call >= 0)
    if not mine.any() or here.high <= here.low:
        return None
    threads = api.thread[gpu.call[mine]]
    codes, often = np.unique(threads, return_counts=True)
    kernel = np.isin(gpu.kind, (GpuKind.KERNEL, GpuKind.GRAPH)) & (gpu.device == device)
    work = clip(_busy(analysis, kernel & ~collectives(trace)), here.low, here.high)
    busy = _busy(analysis, kernel)
    steps = max(1, len(analysis.chosen)) if analysis.options.window == "steps" else 1
    host, beside = _host(
        analysis, int(codes[often.argmax()]), here.low, here.high, busy, graph_calls, steps
    )
    return Work(
        steps=steps,
        host=host,
        copies=_copies(analysis, device, busy),
        kernel_ns=work.total,
        beside=beside,
    )


def _busy(analysis: Analysis, rows: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Intervals:
    gpu = analysis.trace.gpu_ops
    return union(gpu.start[rows], gpu.end[rows])


_Places = dict[tuple[Cause, Site | None], int]


def _host(
    analysis: Analysis,
    code: int,
    low: int,
    high: int,
    kernels: Intervals,
    graph_calls: Sequence[float],
    steps: int,
) -> tuple[_Places, _Places]:
    """Time of a thread by cause and place, and what of waits in it lies beside kernels."""
    trace, thread = analysis.trace, analysis.host[code]
    window = Intervals(np.array([low], np.int64), np.array([high], np.int64))
    swept = sweep(thread, window)
    known = swept.event >= 0
    event = np.where(known, swept.event, 0)
    if len(thread.cause) == 0:
        return {}, {}
    cause = np.where(known, thread.cause[event], np.int8(Cause.UNTRACED)).astype(np.int64)
    site, op = thread.site[event], thread.op[event]
    # a frame's code is even, an op's odd, 0 is neither
    place = np.where(site >= 0, 2 * site + 2, np.where(op >= 0, 2 * op + 3, 0)).astype(np.int64)
    place[~known] = 0
    places = 2 * len(trace.names) + 3
    keys, which = np.unique(cause * places + place, return_inverse=True)
    length = _untraced(analysis, thread, event, swept.end - swept.start, graph_calls, steps)
    total = sum_by(which, length, len(keys))
    waits = np.isin(cause, WAITING)
    hidden = np.where(waits, overlap(Intervals(swept.start, swept.end), kernels), 0)
    hidden_total = sum_by(which, hidden, len(keys))
    precision = frame_precision(trace)
    found: _Places = {}
    beside: _Places = {}
    for at in np.argsort(-total, kind="stable")[:MOST_PLACES].tolist():
        which_cause, number = divmod(int(keys[at]), places)
        where: Site | None = None
        if number:
            name = trace.names[number // 2 - 1]
            where = site_of_frame(name, precision) if number % 2 == 0 else site_of_op(name)
        key = (Cause(which_cause), where)
        found[key] = found.get(key, 0) + int(total[at])
        if hidden_total[at]:
            beside[key] = beside.get(key, 0) + int(hidden_total[at])
    return found, beside


def _untraced(
    analysis: Analysis,
    thread: HostThread,
    event: Int32,
    length: Int64,
    graph_calls: Sequence[float],
    steps: int,
) -> Int64:
    """Lengths of n pieces of host time, those in graph launches as they are without a profiler:
    tracing adds to them by the node, and more on one rank than on another."""
    calls = thread.table[event] == CALL
    launch = np.zeros(len(event), np.bool_)
    role = analysis.trace.api_calls.role
    launch[calls] = role[thread.row[event[calls]]] == Role.GRAPH_LAUNCH
    traced = int(length[launch].sum())
    replays = len(np.unique(event[launch]))
    if not graph_calls or traced == 0 or abs(replays - steps * len(graph_calls)) > 1:
        return length
    share = sum(graph_calls) * replays / len(graph_calls) / traced
    return np.where(launch, np.rint(length * min(share, 1.0)), length).astype(np.int64)


def _copies(analysis: Analysis, device: int, kernels: Intervals) -> dict[Site | None, int]:
    """Time of the GPU in copies and fills beside no kernel, by the place of their calls."""
    trace, here = analysis.trace, analysis.devices[device]
    gpu = trace.gpu_ops
    rows = np.flatnonzero(
        (gpu.device == device)
        & np.isin(gpu.kind, (GpuKind.COPY, GpuKind.MEMSET))
        & (gpu.call >= 0)
        & (gpu.start >= here.low)
        & (gpu.end <= here.high)
    )
    copying = trace.api_calls.role[gpu.call[rows]] != Role.GRAPH_LAUNCH
    rows = rows[copying]  # those in graphs are part of the step that all ranks replay
    found: dict[Site | None, int] = {}
    sites = call_sites(analysis.host, gpu.call[rows])
    for row, site in zip(rows.tolist(), sites, strict=True):
        start, end = int(gpu.start[row]), int(gpu.end[row])
        alone = end - start - clip(kernels, start, end).total
        found[site] = found.get(site, 0) + alone
    return found
