"""What one rank's host and GPU do in a step, by kind and place: what a straggler does more of.

Idle time alone does not say it. A rank whose host is ahead does not idle while it waits for a
straggler, it spins in its collectives; held against it, the straggler idles longer in everything
that it does. Their hosts do the same work but for what holds the straggler up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hostgap.analysis.causes import Cause
from hostgap.analysis.examine import Analysis
from hostgap.analysis.host import sweep
from hostgap.analysis.intervals import Intervals, clip, union
from hostgap.analysis.parts import sum_by
from hostgap.analysis.sites import call_sites, frame_precision, site_of_frame, site_of_op
from hostgap.analysis.timeline import collectives
from hostgap.diagnosis.model import Site
from hostgap.trace.model import GpuKind, Role

COPIES = "copies"
GPU_WORK = "gpu-work"
# Time in these may be a wait for the GPU, of which the rank that waits for others has more: only
# what is done at one place can be told to be the straggler's own.
WAITING = (Cause.SYNC, Cause.COPY_CALL, Cause.FREE, Cause.HOST_ALLOC, Cause.ALLOC)
MOST_PLACES = 2_000
PLACED = 0.5  # of the most that it does more of in all, for what it does at one place to be it


@dataclass(frozen=True, slots=True)
class Work:
    """What a rank does in its window, ns.

    Attributes:
        steps: in the window, at least 1.
        host: cause and place -> time of the launching thread, the costliest first.
        copies: place -> time that the GPU copies beside no kernel.
        kernel_ns: time in kernels, collectives aside.
    """

    steps: int
    host: Mapping[tuple[Cause, Site | None], int]
    copies: Mapping[Site | None, int]
    kernel_ns: int


@dataclass(frozen=True, slots=True)
class Excess:
    """What one rank does more of than others: its name, where, and ns a step."""

    what: str
    site: Site | None
    ns: float


def work_of(analysis: Analysis, device: int) -> Work | None:
    """What the host and GPU of a device do in its window; None where no call launches anything."""
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
    return Work(
        steps=max(1, len(analysis.chosen)) if analysis.options.window == "steps" else 1,
        host=_host(analysis, int(codes[often.argmax()]), here.low, here.high),
        copies=_copies(analysis, device, _busy(analysis, kernel)),
        kernel_ns=work.total,
    )


def _busy(analysis: Analysis, rows: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Intervals:
    gpu = analysis.trace.gpu_ops
    return union(gpu.start[rows], gpu.end[rows])


def _host(
    analysis: Analysis, code: int, low: int, high: int
) -> dict[tuple[Cause, Site | None], int]:
    """Time of a thread by cause and place."""
    trace, thread = analysis.trace, analysis.host[code]
    window = Intervals(np.array([low], np.int64), np.array([high], np.int64))
    swept = sweep(thread, window)
    known = swept.event >= 0
    event = np.where(known, swept.event, 0)
    if len(thread.cause) == 0:
        return {}
    cause = np.where(known, thread.cause[event], np.int8(Cause.UNTRACED)).astype(np.int64)
    site, op = thread.site[event], thread.op[event]
    # a frame's code is even, an op's odd, 0 is neither
    place = np.where(site >= 0, 2 * site + 2, np.where(op >= 0, 2 * op + 3, 0)).astype(np.int64)
    place[~known] = 0
    places = 2 * len(trace.names) + 3
    keys, which = np.unique(cause * places + place, return_inverse=True)
    total = sum_by(which, swept.end - swept.start, len(keys))
    precision = frame_precision(trace)
    found: dict[tuple[Cause, Site | None], int] = {}
    for at in np.argsort(-total, kind="stable")[:MOST_PLACES].tolist():
        which_cause, number = divmod(int(keys[at]), places)
        where: Site | None = None
        if number:
            name = trace.names[number // 2 - 1]
            where = site_of_frame(name, precision) if number % 2 == 0 else site_of_op(name)
        key = (Cause(which_cause), where)
        found[key] = found.get(key, 0) + int(total[at])
    return found


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


def excess(mine: Work, others: Sequence[Work]) -> Excess | None:
    """What a rank does more of in a step than the others in the middle, and most.

    Args:
        mine: of the rank.
        others: at least one.

    Returns:
        None where it does nothing more than they do.
    """

    def more(part: Mapping[Site | None, int] | int, theirs: Sequence[int]) -> float:
        own = part if isinstance(part, int) else sum(part.values())
        rest = [ns / other.steps for ns, other in zip(theirs, others, strict=True)]
        return own / mine.steps - float(np.median(rest))

    totals = [Excess(GPU_WORK, None, more(mine.kernel_ns, [one.kernel_ns for one in others]))]
    places: list[Excess] = []
    copied = _by_place(mine.copies, [one.copies for one in others], mine, others)
    if copied:
        total = more(mine.copies, [sum(one.copies.values()) for one in others])
        totals.append(Excess(COPIES, max(copied, key=lambda each: copied[each]), total))
    for cause in sorted({cause for cause, _ in mine.host}):
        own = _of_cause(mine, cause)
        theirs = [_of_cause(one, cause) for one in others]
        by_place = _by_place(own, theirs, mine, others)
        site = max(by_place, key=lambda each: by_place[each])
        if site is not None:
            places.append(Excess(cause.label, site, by_place[site]))
        if cause not in WAITING:
            total = more(own, [sum(one.values()) for one in theirs])
            totals.append(Excess(cause.label, site, total))
    best = max(totals, key=lambda each: each.ns)
    if best.what != GPU_WORK and places:
        # A host that is slower altogether is so everywhere. What is done at one place explains more
        # than the noise of all others; a copy of pageable memory holds its host at one as well.
        placed = max(places, key=lambda each: each.ns)
        best = placed if placed.ns >= PLACED * best.ns else best
    return best if best.ns > 0 else None


def _of_cause(work: Work, cause: Cause) -> dict[Site | None, int]:
    return {site: ns for (of, site), ns in work.host.items() if of is cause}


def _by_place(
    own: Mapping[Site | None, int],
    theirs: Sequence[Mapping[Site | None, int]],
    mine: Work,
    others: Sequence[Work],
) -> dict[Site | None, float]:
    """Place -> ns a step that it takes longer there than the others in the middle."""
    return {
        site: ns / mine.steps
        - float(
            np.median([one.get(site, 0) / of.steps for one, of in zip(theirs, others, strict=True)])
        )
        for site, ns in own.items()
    }
