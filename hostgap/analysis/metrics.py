"""From the tables of an `Analysis` to the figures of a `Diagnosis`."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hostgap import __version__
from hostgap.analysis.causes import Cause
from hostgap.analysis.examine import Analysis, DeviceAnalysis
from hostgap.analysis.integrity import Verdict
from hostgap.analysis.intervals import Intervals, clip, union
from hostgap.analysis.parts import NO_PARTS, NONE
from hostgap.analysis.sites import call_sites, idle_sites
from hostgap.analysis.step_classes import summarize_steps
from hostgap.analysis.syncs import blocking_calls, closing_sync, find_syncs
from hostgap.analysis.timeline import collectives, kernels, lane
from hostgap.diagnosis import model as m
from hostgap.trace.model import Bool, CopyKind, GpuKind, Memory, Role, Trace

SITES_SHOWN = 20
COPY_LABELS: dict[CopyKind, Literal["h2d", "d2h", "d2d", "h2h", "p2p"] | None] = {
    CopyKind.NONE: None,
    CopyKind.H2D: "h2d",
    CopyKind.D2H: "d2h",
    CopyKind.D2D: "d2d",
    CopyKind.H2H: "h2h",
    CopyKind.P2P: "p2p",
}
MEDIAN_SAMPLES = 20


def diagnose(analysis: Analysis) -> m.Diagnosis:
    """Sum an analysis up, without judging: verdict and findings are the rules' to add."""
    trace = analysis.trace
    verdict = analysis.integrity.verdict
    ops, calls = in_window(analysis)
    collective = collectives(trace)
    devices = [_device(analysis, code, ops, collective) for code in sorted(analysis.devices)]
    window = sum(device.window_ns for device in devices)
    active = sum(device.active_ns for device in devices)
    measurable = verdict is not Verdict.UNMEASURABLE and active > 0
    return m.Diagnosis(
        schema=m.SCHEMA,
        tool=m.Tool(name="hostgap", version=__version__),
        trace=m.TraceInfo(
            source=trace.source,
            file=trace.file,
            events=trace.report.events,
            window=analysis.options.window,
            integrity=m.IntegrityVerdict(
                verdict=verdict.label,
                reasons=[m.Reason(code=n.code, text=n.text) for n in analysis.integrity.notes],
            ),
        ),
        verdict=None,
        devices=devices,
        counts=count(trace, ops, calls),
        steps=summarize_steps(analysis, ops, calls),
        syncs=_syncs(analysis, calls),
        cost_factor=window / active if measurable else None,
        saving_basis="upper_bound",
        unprofiled=None,
        capture=_capture(analysis, ops, devices),
        launch=None,
        cost=None,
        batches=None,
        whatif=None,
        findings=[],
        not_applicable=[],
        problems=[],
    )


def in_window(analysis: Analysis) -> tuple[Bool, Bool]:
    """Masks over gpu_ops and api_calls: what belongs to the window and to the chosen devices.

    With steps these are the ops and calls of the chosen ones, without the synchronize with which
    the profiler itself ends a recording. A call belongs to the devices its ops ran on; one without
    ops (a synchronize, an allocation) to all.
    """
    trace, steps = analysis.trace, analysis.steps
    gpu = trace.gpu_ops
    ops = np.isin(gpu.device, list(analysis.devices))
    calls = np.ones(len(trace.api_calls), np.bool_)
    calls[gpu.call[~ops & (gpu.call >= 0)]] = analysis.options.device is None
    calls[gpu.call[ops & (gpu.call >= 0)]] = True
    if analysis.options.window == "trace":
        return ops, calls
    low, high = analysis.chosen.start, analysis.chosen.stop
    ops &= (steps.op_step >= low) & (steps.op_step < high)
    calls &= (steps.call_step >= low) & (steps.call_step < high)
    return ops, calls & ~closing_sync(trace)


def count(trace: Trace, ops: Bool, calls: Bool) -> m.Counts:
    """Calls and copies among the given rows of gpu_ops and api_calls."""
    gpu = trace.gpu_ops
    role = trace.api_calls.role[calls]
    copy = gpu.copy_kind[ops]
    pageable = (gpu.src_mem == Memory.PAGEABLE) | (gpu.dst_mem == Memory.PAGEABLE)
    return m.Counts(
        launches=_number(role == Role.LAUNCH),
        graph_launches=_number(role == Role.GRAPH_LAUNCH),
        sync_calls=_number(role == Role.SYNC),
        blocking_syncs=_number(blocking_calls(trace)[calls]),
        allocs=_number(role == Role.ALLOC),
        copies=m.Copies(
            h2d=_number(copy == CopyKind.H2D),
            d2h=_number(copy == CopyKind.D2H),
            d2d=_number(np.isin(copy, (CopyKind.D2D, CopyKind.P2P))),
            pageable=_number(pageable[ops] & (gpu.kind[ops] == GpuKind.COPY)),
        ),
    )


def _number(mask: NDArray[np.bool_]) -> int:
    return int(np.count_nonzero(mask))


def _device(analysis: Analysis, code: int, ops: Bool, collective: Bool) -> m.DeviceMetrics:
    trace, device = analysis.trace, analysis.devices[code]
    gpu = trace.gpu_ops
    window = device.high - device.low
    idle = device.gaps.total
    busy_ns = clip(kernels(gpu, device.rows), device.low, device.high).total
    rows = device.rows[ops[device.rows]]
    kind = gpu.kind[rows]
    reason = _reason(analysis, window)
    without = busy_ns
    if collective.any():
        work = device.rows[~collective[device.rows]]
        work = work[np.isin(gpu.kind[work], (GpuKind.KERNEL, GpuKind.GRAPH))]
        without = clip(union(gpu.start[work], gpu.end[work]), device.low, device.high).total

    def share(ns: int) -> float | None:
        return ns / window if reason is None else None

    latency = np.concatenate(
        [NO_PARTS.length, *(p.length[p.cause == Cause.LAUNCH_LATENCY] for p in device.pieces)]
    )
    by_cause = {cause.label: ns for cause, ns in device.pieces.by_cause().items()}
    return m.DeviceMetrics(
        device=trace.devices[code].id,
        name=trace.devices[code].name,
        window_ns=window,
        kernel_busy_ns=busy_ns,
        active_ns=window - idle,
        idle_ns=idle,
        copy_only_ns=window - idle - busy_ns,
        kernel_utilization=share(busy_ns),
        active_utilization=share(window - idle),
        utilization_without_collectives=share(without),
        reason=reason,
        kernels=_number(np.isin(kind, (GpuKind.KERNEL, GpuKind.GRAPH))),
        copies=_number(kind == GpuKind.COPY),
        memsets=_number(kind == GpuKind.MEMSET),
        orphans=_number(gpu.call[rows] == NONE),
        gaps=_gaps(device.gaps),
        idle_by_cause=by_cause,
        idle_sites=idle_sites(analysis.host, device.pieces, SITES_SHOWN),
        launch_latency_median_ns=(
            int(np.median(latency)) if len(latency) >= MEDIAN_SAMPLES else None
        ),
        streams=[
            _stream(trace, stream_code, device, ops, by_cause) for stream_code in device.streams
        ],
    )


def _reason(analysis: Analysis, window: int) -> str | None:
    """Why utilization cannot be given, None when it can."""
    if analysis.integrity.verdict is Verdict.UNMEASURABLE:
        notes = analysis.integrity.notes
        return next(note.text for note in notes if note.verdict is Verdict.UNMEASURABLE)
    return None if window > 0 else "the window has no length: no GPU work in the chosen steps"


def _gaps(gaps: Intervals) -> m.Gaps:
    length = gaps.end - gaps.start
    return m.Gaps(
        over_1us=_number(length > 1_000), over_10us=_number(length > 10_000), total_ns=gaps.total
    )


def _stream(
    trace: Trace, code: int, device: DeviceAnalysis, ops: Bool, by_cause: dict[str, int]
) -> m.StreamMetrics:
    """One stream; `by_cause` is its device's idle time."""
    rows, gaps = device.streams[code], device.gaps
    if len(device.streams) > 1:
        gaps = lane(trace.gpu_ops, rows).gaps(device.low, device.high)
    rows = rows[ops[rows]]
    elsewhere = gaps.total - device.gaps.total
    return m.StreamMetrics(
        stream=trace.streams[code],
        ops=len(rows),
        kernels=_number(np.isin(trace.gpu_ops.kind[rows], (GpuKind.KERNEL, GpuKind.GRAPH))),
        active_ns=device.high - device.low - gaps.total,
        idle_ns=gaps.total,
        gaps=_gaps(gaps),
        idle_by_cause=by_cause | ({Cause.DEPENDENCY.label: elsewhere} if elsewhere else {}),
    )


def _syncs(analysis: Analysis, calls: Bool) -> list[m.SyncSite]:
    """Blocking calls put together by call, copy and site; the longest shadow first.

    The last call before the window counts with its shadow, which lies in the window.
    """
    trace = analysis.trace
    syncs = find_syncs(trace, [device.pieces for device in analysis.devices.values()])
    mine = calls[syncs.call]
    grouped: dict[tuple[str, int, m.Site | None], list[int]] = {}
    shown = np.flatnonzero(mine | (syncs.shadow_ns > 0))
    for i, site in zip(shown.tolist(), call_sites(analysis.host, syncs.call[shown]), strict=True):
        name = trace.names[trace.api_calls.name[syncs.call[i]]]
        grouped.setdefault((name, int(syncs.copy[i]), site), []).append(i)
    result = [
        m.SyncSite(
            call=name,
            copy=COPY_LABELS[CopyKind(copy)],
            count=int(mine[rows].sum()),
            blocked_ns=int(syncs.blocked_ns[rows][mine[rows]].sum()),
            shadow_ns=int(syncs.shadow_ns[rows].sum()),
            site=site,
        )
        for (name, copy, site), rows in grouped.items()
    ]
    return sorted(result, key=lambda sync: (-sync.shadow_ns, -sync.blocked_ns, sync.call))


def _capture(analysis: Analysis, ops: Bool, devices: list[m.DeviceMetrics]) -> m.Capture:
    gpu, api = analysis.trace.gpu_ops, analysis.trace.api_calls
    call = gpu.call[ops]
    graph = gpu.graph_node[ops] > 0
    if len(api):
        graph |= (call >= 0) & (api.role[call] == Role.GRAPH_LAUNCH)
    idle = sum(device.idle_ns for device in devices)
    inside = sum(device.idle_by_cause.get(Cause.GRAPH_INTERNAL.label, 0) for device in devices)
    return m.Capture(
        gpu_ops_in_graphs=float(graph.mean()) if len(graph) else None,
        idle_in_graphs=inside / idle if idle else None,
    )
