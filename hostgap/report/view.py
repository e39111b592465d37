"""Small views of a `Diagnosis` and a `FixReport` for the template: what to draw, in percent."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hostgap.analysis.causes import MEANING, Cause
from hostgap.diagnosis.model import DeviceMetrics, Diagnosis, Finding
from hostgap.fixes.report import FixReport, Rung
from hostgap.output import fix_summary
from hostgap.output import summary as s
from hostgap.report.evidence import finding_ids
from hostgap.units import amount_of, duration, percent

# Causes of one family share a colour and differ in their pattern; see report.css.
FAMILIES: dict[str, tuple[Cause, ...]] = {
    "queue": (Cause.GRAPH_INTERNAL, Cause.QUEUE_GAP, Cause.DEPENDENCY),
    "launch": (Cause.LAUNCH_CALL, Cause.LAUNCH_LATENCY, Cause.API_CALL, Cause.COPY_CALL),
    "wait": (Cause.SYNC, Cause.INPUT_WAIT, Cause.REMOTE_WAIT, Cause.NO_WORK),
    "memory": (Cause.ALLOC, Cause.FREE, Cause.HOST_ALLOC),
    "build": (Cause.COMPILE, Cause.CAPTURE),
    "host": (Cause.DISPATCH, Cause.PYTHON, Cause.GC, Cause.GIL, Cause.PREEMPTED),
    "unknown": (Cause.UNTRACED, Cause.UNATTRIBUTABLE, Cause.PROFILER),
}
LOOKS: dict[str, str] = {
    cause.label: f"{family} p{number}"
    for family, causes in FAMILIES.items()
    for number, cause in enumerate(causes)
} | {"kernels": "kernels p0", "copies": "copies p1"}


@dataclass(frozen=True, slots=True)
class Fall:
    """One step of the waterfall: it begins where the one before it ends. Shares are percent."""

    label: str
    look: str
    meaning: str
    ns: int
    percent: str
    left: float
    width: float
    busy: bool


def waterfall(device: DeviceMetrics) -> list[Fall]:
    """Where the window of a device went, as bars that continue one another."""
    whole = max(1, device.window_ns)
    rows, at = [], 0
    for row in s.breakdown(device):
        rows.append(
            Fall(
                row.label,
                LOOKS[row.label],
                row.meaning,
                row.ns,
                row.percent,
                100 * at / whole,
                100 * row.ns / whole,
                row.busy,
            )
        )
        at += row.ns
    return rows


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure that is shown large. `raw` is the JSON's own number."""

    name: str
    value: str
    note: str
    raw: float


def tiles(diagnosis: Diagnosis) -> list[Tile]:
    """The few figures to remember, of the unprofiled step where that is known."""
    device = s.main_device(diagnosis)
    if device is None or diagnosis.trace.integrity.verdict == "unmeasurable":
        return []
    real, n = diagnosis.unprofiled, s.steps_in(diagnosis)
    per = " a step" if s.per_step(diagnosis) else ""
    shown = []
    if real is not None and real.exposed_idle_ns is not None:
        share = real.exposed_idle_ns / real.step_ns
        idle = amount_of(real.exposed_idle_ns, real.step_ns)
        shown.append(
            Tile("GPU waits for host", percent(share, 1), f"{idle}, without profiler", share)
        )
        shown.append(Tile("Step", duration(real.step_ns), "without profiler", real.step_ns))
    else:
        share = device.idle_ns / max(1, device.window_ns)
        idle = amount_of(device.idle_ns / n, device.window_ns / n)
        shown.append(Tile("GPU idle", percent(share, 1), f"{idle}{per}, as traced", share))
        name = "Step" if per else "Window"
        value = device.window_ns / n
        shown.append(Tile(name, duration(value), "as traced", value))
    busy = device.kernel_busy_ns / n
    shown.append(Tile("Kernels", duration(busy), f"of GPU work{per}", busy))
    average = diagnosis.steps.per_step
    if per and average is not None:
        graphs = ""
        if average.graph_launches:
            many = "" if average.graph_launches == 1 else "es"
            graphs = f", and {_count(average.graph_launches)} graph launch{many}"
        shown.append(
            Tile("Launches", _count(average.launches), f"a step{graphs}", average.launches)
        )
        shown.append(Tile("Syncs", _count(average.sync_calls), "a step", average.sync_calls))
    else:
        counts = diagnosis.counts
        shown.append(Tile("Launches", f"{counts.launches:,}", "in the trace", counts.launches))
        shown.append(Tile("Syncs", f"{counts.sync_calls:,}", "in the trace", counts.sync_calls))
    return shown


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def saving_bar(diagnosis: Diagnosis, finding: Finding) -> tuple[float, float] | None:
    """Low and high end of a saving, percent of the step; None where nothing was predicted."""
    high, low = finding.predicted_saving_share, finding.predicted_saving_low_share
    if high is None:
        return None
    return 100 * min(1.0, max(0.0, low or 0.0)), 100 * min(1.0, max(0.0, high))


@dataclass(frozen=True, slots=True)
class Step:
    """One rung as a bar: its step time and interval, in percent of the longest."""

    rung: Rung
    label: str
    width: float
    low: float
    high: float
    status: str
    predicted: float | None
    measured: float | None


def ladder(report: FixReport) -> list[Step]:
    """The rungs as bars of one scale; savings share it."""
    timed = [rung.step for rung in report.rungs if rung.step is not None]
    longest = max((step.high_ns for step in timed), default=1.0) or 1.0

    def share(ns: float | None) -> float | None:
        return None if ns is None else max(0.0, min(100.0, 100 * ns / longest))

    return [
        Step(
            rung,
            "as it was" if rung.status == "start" else fix_summary.label(rung),
            share(rung.step.median_ns) or 0.0 if rung.step is not None else 0.0,
            share(rung.step.low_ns) or 0.0 if rung.step is not None else 0.0,
            share(rung.step.high_ns) or 0.0 if rung.step is not None else 0.0,
            "" if rung.status == "start" else fix_summary.STATUS[rung.status],
            share(rung.predicted_saving_ns),
            share(rung.measured_saving_ns),
        )
        for rung in report.rungs
    ]


def fix_tiles(report: FixReport) -> list[Tile]:
    """Before and after in a few figures; none where nothing was measured or kept."""
    kept = [rung for rung in report.rungs if rung.status in ("start", "kept")]
    if not kept or kept[0].step is None or kept[-1].step is None:
        return []
    before, after = kept[0], kept[-1]
    assert before.step is not None
    assert after.step is not None
    shown = [
        Tile("Before", duration(before.step.median_ns), "a step", before.step.median_ns),
        Tile("After", duration(after.step.median_ns), "a step", after.step.median_ns),
    ]
    if report.overall is not None and report.overall.ratio > 0:
        ratio = report.overall.ratio
        shown.append(Tile("Speed", fix_summary.speed(ratio), "as fast, output equal", 1 / ratio))
    was, now = before.figures, after.figures
    if was is None or now is None:
        return shown
    if was.kernel_utilization is not None and now.kernel_utilization is not None:
        note = f"of the step in kernels, was {percent(was.kernel_utilization, 1)}"
        value = now.kernel_utilization
        shown.append(Tile("Utilization", percent(value, 1), note, value))
    if was.launches is not None and now.launches is not None:
        note = f"a step, was {_count(was.launches)}"
        shown.append(Tile("Launches", _count(now.launches), note, now.launches))
    return shown


def glossary() -> list[tuple[str, str, str]]:
    """Every cause: its name, its look, its meaning."""
    return [(cause.label, LOOKS[cause.label], MEANING[cause]) for cause in Cause]


def numbered(diagnosis: Diagnosis) -> list[tuple[Finding, str]]:
    """Every finding with its address, such as HG101-2."""
    return list(zip(diagnosis.findings, finding_ids(diagnosis.findings), strict=True))


def causes_of(diagnosis: Diagnosis) -> list[str]:
    """The causes that occur on any device, the largest first."""
    total: Counter[str] = Counter()
    for device in diagnosis.devices:
        total.update(device.idle_by_cause)
    return [label for label, ns in total.most_common() if ns]


def by_rule(diagnosis: Diagnosis) -> list[list[tuple[Finding, str]]]:
    """What costs something: a list per rule, the costliest place first."""
    rules: dict[str, list[tuple[Finding, str]]] = {}
    for finding, name in numbered(diagnosis):
        if finding.severity != "info":
            rules.setdefault(finding.code, []).append((finding, name))
    return list(rules.values())
