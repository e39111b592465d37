"""Steps put into classes: prefill and decode are never averaged."""

from __future__ import annotations

from collections import Counter

import numpy as np

from hostgap.analysis.examine import Analysis
from hostgap.analysis.intervals import Intervals, cut
from hostgap.analysis.parts import sum_by
from hostgap.analysis.syncs import closing_sync
from hostgap.diagnosis import model as m
from hostgap.trace.model import Bool, GpuKind, Int64, Role

MOST_CLASSES = 8


def summarize_steps(analysis: Analysis, ops: Bool, calls: Bool) -> m.StepsSummary:
    """Durations and per-step figures of the steps in the window.

    Args:
        ops, calls: masks over gpu_ops and api_calls of what belongs to the window.
    """
    steps = analysis.steps
    durations = np.diff(steps.boundaries)
    fill = steps.fill and analysis.chosen == steps.counted
    if not analysis.devices:  # no GPU op, so no step has a period
        return m.StepsSummary(
            count=0,
            total=len(steps),
            source=steps.marks.source,
            first=0,
            fill_ns=None,
            durations_ns=[],
            classes=[],
            per_step=None,
        )
    chosen = list(analysis.chosen)
    per_step = _per_step_counts(analysis, ops, calls)
    classes = [
        m.StepClass(
            label=label,
            steps=members,
            duration_median_ns=int(np.median(durations[members])),
            per_step=_average(per_step, members),
        )
        for label, members in _classes(analysis, per_step).items()
    ]
    main = max(classes, key=lambda c: int(durations[c.steps].sum()))
    return m.StepsSummary(
        count=len(chosen),
        total=len(steps),
        source=steps.marks.source,
        first=analysis.chosen.start,
        fill_ns=int(durations[0]) if fill else None,
        durations_ns=durations[chosen].tolist(),
        classes=classes,
        per_step=main.per_step,
    )


def _per_step_counts(analysis: Analysis, ops: Bool, calls: Bool) -> dict[str, Int64]:
    """One array per field of PerStep, with an entry per step of the trace."""
    trace, steps = analysis.trace, analysis.steps
    api, gpu = trace.api_calls, trace.gpu_ops
    n = len(steps)
    calls = calls & ~closing_sync(trace)

    def calls_of(role: Role) -> Int64:
        at = calls & (api.role == role) & (steps.call_step >= 0)
        return np.bincount(steps.call_step[at], minlength=n).astype(np.int64)

    copies = ops & (gpu.kind == GpuKind.COPY) & (steps.op_step >= 0)
    idle = np.zeros(n, np.int64)
    for device in analysis.devices.values():
        pieces = cut(Intervals(device.parts.start, device.parts.end), steps.boundaries)
        inside = (pieces.cell >= 0) & (pieces.cell < n)
        length = pieces.end - pieces.start
        idle += sum_by(pieces.cell[inside], length[inside], n)
    return {
        "launches": calls_of(Role.LAUNCH),
        "graph_launches": calls_of(Role.GRAPH_LAUNCH),
        "sync_calls": calls_of(Role.SYNC),
        "copies": np.bincount(steps.op_step[copies], minlength=n).astype(np.int64),
        "allocs": calls_of(Role.ALLOC),
        "idle_ns": idle,
    }


def _average(per_step: dict[str, Int64], members: list[int]) -> m.PerStep:
    return m.PerStep(**{key: float(values[members].mean()) for key, values in per_step.items()})


def _classes(analysis: Analysis, per_step: dict[str, Int64]) -> dict[str, list[int]]:
    """label -> steps. Alike are steps with the same annotation that run the same kernels.

    Where that makes more classes than anyone could read (every step a little different), the
    annotation and the number of graph launches decide alone.
    """
    fine: dict[tuple[object, ...], list[int]] = {}
    coarse: dict[tuple[object, ...], list[int]] = {}
    signatures = _signatures(analysis)
    for step in analysis.chosen:
        label = analysis.steps.marks.label[step]
        if label.startswith("ProfilerStep#"):
            label = ""
        graphs = int(per_step["graph_launches"][step])
        fine.setdefault((label, graphs, signatures.get(step)), []).append(step)
        coarse.setdefault((label, graphs), []).append(step)
    groups = fine if len(fine) <= MOST_CLASSES else coarse
    named: dict[str, list[int]] = {}
    seen: Counter[str] = Counter()
    for key, members in groups.items():
        name = str(key[0]) or _describe(per_step, members)
        seen[name] += 1
        named[name if seen[name] == 1 else f"{name}, variant {seen[name]}"] = members
    return named


def _signatures(analysis: Analysis) -> dict[int, bytes]:
    """step -> the multiset of GPU ops it runs."""
    steps, gpu = analysis.steps, analysis.trace.gpu_ops
    at = np.flatnonzero(steps.op_step >= 0)
    step, name = steps.op_step[at].astype(np.int64), gpu.name[at].astype(np.int64)
    if len(at) == 0:
        return {}
    keys, counts = np.unique(step << 32 | name, return_counts=True)
    pairs = np.stack([keys & 0xFFFFFFFF, counts], axis=1)
    owners, first = np.unique(keys >> 32, return_index=True)
    return {
        int(owner): block.tobytes()
        for owner, block in zip(owners, np.split(pairs, first[1:]), strict=True)
    }


def _describe(per_step: dict[str, Int64], members: list[int]) -> str:
    launches = round(float(per_step["launches"][members].mean()))
    graphs = round(float(per_step["graph_launches"][members].mean()))
    parts = []
    if launches or not graphs:
        parts.append(f"{launches:,} launch" + ("" if launches == 1 else "es"))
    if graphs:
        parts.append(f"{graphs:,} graph launch" + ("" if graphs == 1 else "es"))
    return " + ".join(parts)
