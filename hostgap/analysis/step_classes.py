"""Steps put into classes: prefill and decode are never averaged."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from hostgap.analysis.examine import Analysis
from hostgap.analysis.intervals import Intervals, overlap
from hostgap.analysis.steps import NUMBERED_STEP
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
            main_class=None,
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
        main_class=main.label,
        per_step=main.per_step,
    )


def _per_step_counts(analysis: Analysis, ops: Bool, calls: Bool) -> dict[str, Int64]:
    """One array per field of PerStep, with an entry per step of the trace; idle per device."""
    trace, steps = analysis.trace, analysis.steps
    api, gpu = trace.api_calls, trace.gpu_ops
    n = len(steps)

    def calls_of(role: Role) -> Int64:
        at = calls & (api.role == role) & (steps.call_step >= 0)
        return np.bincount(steps.call_step[at], minlength=n).astype(np.int64)

    copies = ops & (gpu.kind == GpuKind.COPY) & (steps.op_step >= 0)
    idle = np.zeros(n, np.int64)
    for device in analysis.devices.values():
        idle += overlap(Intervals(steps.boundaries[:-1], steps.boundaries[1:]), device.gaps)
    idle //= max(1, len(analysis.devices))
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
    """label -> steps. Alike are steps with the same annotation that run the same ops.

    Where that makes more classes than anyone could read (every step a little different), steps of
    one phase that launch as many graphs are alike when they launch about as much and keep the GPU
    busy about as long: prefill and decode stay apart.
    """
    alike: dict[tuple[object, ...], list[int]] = {}
    signatures = _signatures(analysis)
    for step in analysis.chosen:
        label = _own_label(analysis, step)
        alike.setdefault((label, signatures.get(step)), []).append(step)
    groups = [(str(key[0]), members) for key, members in alike.items()]
    if len(groups) > MOST_CLASSES:
        groups = _coarser(analysis, per_step)
    named: dict[str, list[int]] = {}
    seen: Counter[str] = Counter()
    for label, members in groups:
        name = label or _describe(per_step, members)
        seen[name] += 1
        named[name if seen[name] == 1 else f"{name}, variant {seen[name]}"] = members
    return named


def _coarser(analysis: Analysis, per_step: dict[str, Int64]) -> list[tuple[str, list[int]]]:
    busy = np.diff(analysis.steps.boundaries) - per_step["idle_ns"]
    launches = per_step["launches"]
    by_phase: dict[tuple[str, int], list[int]] = {}
    for step in analysis.chosen:
        key = (phase(_own_label(analysis, step)), int(per_step["graph_launches"][step]))
        by_phase.setdefault(key, []).append(step)
    groups = []
    for (label, _), members in by_phase.items():
        members.sort(key=lambda step: (int(busy[step]), step))
        group: list[int] = []
        for step in members:
            if group and not (
                busy[step] <= 1.5 * busy[group[0]]
                and abs(launches[step] - launches[group[0]]) <= 0.25 * launches[group[0]]
            ):
                groups.append((label, sorted(group)))
                group = []
            group.append(step)
        groups.append((label, sorted(group)))
    return groups


def _own_label(analysis: Analysis, step: int) -> str:
    """What a step's annotation says beyond its number."""
    label = analysis.steps.marks.label[step]
    return "" if NUMBERED_STEP.fullmatch(label) else label


_VLLM = re.compile(r"context_(\d+)\D.*generation_(\d+)")


def phase(label: str) -> str:
    """The phase a serving engine's annotation names; other labels without their numbers.

    vLLM: `execute_context_2(512)_generation_14(14)` runs 2 prefills and 14 decodes. SGLang:
    `step[DECODE bs=16]`.
    """
    if match := _VLLM.search(label):
        prefills, decodes = int(match[1]), int(match[2])
        return "prefill" if not decodes else "decode" if not prefills else "prefill + decode"
    return re.sub(r"\d+", "#", label)


_SGLANG = re.compile(r"\bDECODE\b.*\bbs=(\d+)")


def decode_batch(label: str) -> int | None:
    """How many requests a decode step of a serving engine runs, None for any other step."""
    if match := _VLLM.search(label):
        return int(match[2]) if not int(match[1]) else None
    match = _SGLANG.search(label)
    return int(match[1]) if match else None


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
