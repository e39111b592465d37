"""A rung's figures: what a variant's trace and its unprofiled times say together."""

from __future__ import annotations

from hostgap.diagnosis.model import DeviceMetrics, Diagnosis
from hostgap.fixes.report import Figures
from hostgap.profiling.bench import Traced

MOSTLY_GRAPHS = 0.95  # of the GPU's ops, from which on a step's span is its graphs'


def figures(traced: Traced, diagnosis: Diagnosis) -> Figures:
    """Join a trace with the times of the process that was not profiled."""
    usable = [device for device in diagnosis.devices if device.reason is None]
    device = max(usable, key=lambda one: one.kernel_busy_ns, default=None)
    steps = max(1, diagnosis.steps.count)
    per_step = diagnosis.steps.per_step
    step_ns = traced.timing.step.median_ns
    kernels = active = utilization = None
    if device is not None:
        scale = _inflation(traced, diagnosis, device, steps)
        kernels = device.kernel_busy_ns / steps
        utilization = min(1.0, kernels * scale / step_ns)
        active = min(1.0, device.active_ns / steps * scale / step_ns)
    unprofiled, exposed = diagnosis.unprofiled, None
    if unprofiled is not None:
        if unprofiled.kernel_utilization is not None:
            utilization = unprofiled.kernel_utilization
        if unprofiled.exposed_idle_ns is not None:
            exposed = unprofiled.exposed_idle_ns / unprofiled.step_ns
    return Figures(
        gpu_busy_ns=kernels,
        kernel_utilization=utilization,
        idle_share=None if active is None else 1.0 - active,
        launches=None if per_step is None else per_step.launches,
        graph_launches=None if per_step is None else per_step.graph_launches,
        syncs=None if per_step is None else per_step.sync_calls,
        copies=None if per_step is None else per_step.copies,
        launch_call_share=None if diagnosis.launch is None else diagnosis.launch.call_share,
        exposed_share=exposed,
        blocking=diagnosis.counts.blocking_syncs / steps,
    )


def _inflation(traced: Traced, diagnosis: Diagnosis, device: DeviceMetrics, steps: int) -> float:
    """What the GPU's time of a step without a profiler is of that with one.

    In a graph the profiler stretches what lies between kernels, and their share of the graph's span
    holds: utilization is (traced busy / traced span) x (unprofiled span / unprofiled step). Outside
    of graphs the kernels' own time is not changed.
    """
    in_graphs, idle = diagnosis.capture.gpu_ops_in_graphs, diagnosis.capture.idle_in_graphs
    if traced.span_ns is None or in_graphs is None or in_graphs < MOSTLY_GRAPHS:
        return 1.0
    span = (device.active_ns + device.idle_ns * (idle or 0.0)) / steps
    return traced.span_ns / span if 0 < traced.span_ns < span else 1.0
