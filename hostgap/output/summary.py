"""What the text and markdown reports say, before it is laid out: a view of a `Diagnosis`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hostgap.analysis.causes import MEANING, Cause
from hostgap.diagnosis.model import DeviceMetrics, Diagnosis, Finding, Site, StepClass
from hostgap.output.printable import printable
from hostgap.units import amount_of, duration, percent


def whole_percents(parts: Sequence[int]) -> list[int]:
    """Percentages that add up to 100 exactly: the largest remainders are rounded up."""
    total = sum(parts)
    if total <= 0:
        return [0] * len(parts)
    floors = [part * 100 // total for part in parts]
    order = sorted(range(len(parts)), key=lambda i: (-(parts[i] * 100 % total), i))
    for i in order[: 100 - sum(floors)]:
        floors[i] += 1
    return floors


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the breakdown: where a share of the window went. Percentages add up to 100."""

    label: str
    ns: int
    percent: str
    meaning: str
    busy: bool


def breakdown(device: DeviceMetrics) -> list[Row]:
    """Where the window of a device went: kernels, copies, then causes, the largest first."""
    rows = [("kernels", device.kernel_busy_ns, "the GPU computes", True)]
    if device.copy_only_ns:
        rows.append(("copies", device.copy_only_ns, "the GPU copies or sets memory", True))
    causes = sorted(device.idle_by_cause.items(), key=lambda item: -item[1])
    rows += [(label, ns, MEANING[Cause[label.upper()]], False) for label, ns in causes]
    percents = whole_percents([row[1] for row in rows])
    return [
        Row(label, ns, f"{whole} %" if whole or not ns else "<1 %", meaning, busy)
        for (label, ns, meaning, busy), whole in zip(rows, percents, strict=True)
    ]


def main_device(diagnosis: Diagnosis) -> DeviceMetrics | None:
    """The device the headline is about: the one with the most idle time."""
    usable = [device for device in diagnosis.devices if device.reason is None]
    return max(usable, key=lambda device: device.idle_ns, default=None)


def per_step(diagnosis: Diagnosis) -> bool:
    """Whether figures are given per step."""
    return diagnosis.trace.window == "steps" and diagnosis.steps.source != "whole"


def steps_in(diagnosis: Diagnosis) -> int:
    """How many steps figures are divided by; 1 where they are of the whole trace."""
    return max(1, diagnosis.steps.count) if per_step(diagnosis) else 1


def headline(diagnosis: Diagnosis) -> str:
    """The one sentence to remember; of the unprofiled step where that is known."""
    device = main_device(diagnosis)
    if diagnosis.trace.integrity.verdict == "unmeasurable" or device is None:
        return f"Nothing can be measured: {why_not(diagnosis)}."
    n = steps_in(diagnosis)
    unit = "step" if per_step(diagnosis) else "trace"
    gpu = f"GPU {printable(str(device.device))}" if len(diagnosis.devices) > 1 else "GPU"
    traced = amount_of(device.idle_ns / n, device.window_ns / n)
    real = diagnosis.unprofiled
    if real is not None and real.exposed_idle_ns is not None:
        # what is paid for is the step without the profiler
        idle, whole = real.exposed_idle_ns, real.step_ns
        text = (
            f"{gpu} waits for its host {_share(idle / whole)} of the unprofiled step: "
            f"{amount_of(idle, whole)}; in the trace it idles {traced}"
            f"{'' if per_step(diagnosis) else ' in all'}."
        )
        most = ""
    else:
        idle, whole = device.idle_ns, device.window_ns
        text = f"{gpu} idle {_share(idle / whole)} of the {unit}: {traced}."
        most = "up to "
    if not device.kernel_busy_ns:
        return text + " No kernel ran."
    factor = whole / max(1, device.active_ns if most else whole - idle)
    if factor >= 1.05:
        text += (
            f" You pay {most}{factor:.1f}x what you use."
            if factor < 100
            else (" You pay over 100x what you use.")
        )
    return text


def _share(share: float) -> str:
    shown = f"{share:.0%}" if 0.1 <= share <= 0.985 else f"{share:.1%}"
    return shown.replace("%", " %")


def why_not(diagnosis: Diagnosis) -> str:
    """The reason nothing can be measured."""
    for device in diagnosis.devices:
        if device.reason:
            return printable(device.reason)
    reasons = diagnosis.trace.integrity.reasons
    return reasons[-1].text if reasons else "no GPU work in the window"


def described(diagnosis: Diagnosis) -> str:
    """One line: the file, the GPU, the steps."""
    parts = [printable(diagnosis.trace.file.replace("\\", "/").rsplit("/", 1)[-1])]
    names = {device.name for device in diagnosis.devices if device.name}
    count = len(diagnosis.devices)
    parts += [printable(f"{count} x {name}" if count > 1 else name) for name in sorted(names)]
    if not names and count:
        parts.append(f"{count} GPU" + ("s" if count > 1 else ""))
    steps = diagnosis.steps
    if per_step(diagnosis) and steps.count:
        fill = " (the first fills the pipeline)" if steps.fill_ns is not None else ""
        whole = f"{steps.count} of {steps.total}" if steps.count < steps.total else f"{steps.count}"
        parts.append(f"{whole} step" + ("" if steps.total == 1 else "s") + fill)
    return " · ".join(parts)


def caveat(diagnosis: Diagnosis) -> str:
    """How far the figures go."""
    if diagnosis.saving_basis == "calibrated":
        return _calibrated_caveat(diagnosis)
    text = "The profiler slows the host: idle time is an upper bound. Counts are exact."
    if diagnosis.trace.integrity.verdict == "partial":
        text = "The trace is partial, and the profiler slows the host: idle is an upper bound."
    if defects(diagnosis):
        text += (
            " A saving's low end takes the host to be as fast as it may be without a profiler, "
            "its high end as slow as it was recorded. To know: `hostgap profile`, or "
            "--unprofiled-step-ms."
        )
    elif diagnosis.verdict not in ("gpu-bound", "unmeasurable"):
        text += (
            " Nothing to change was found: the waits may be the profiler's own. To know: "
            "`hostgap profile`, or --unprofiled-step-ms."
        )
    return text


def _calibrated_caveat(diagnosis: Diagnosis) -> str:
    text = (
        "Savings are of the unprofiled step. Where the time went is the trace's, whose host the "
        "profiler slows. Counts are exact."
    )
    if diagnosis.trace.integrity.verdict == "partial":
        text += " The trace is partial."
    real, whatif = diagnosis.unprofiled, diagnosis.whatif
    misfit = whatif.misfit_ns if whatif is not None else None
    if real is not None and misfit is not None and abs(misfit) > 0.01 * real.step_ns:
        than = "longer" if misfit > 0 else "shorter"
        text += (
            f" The replay comes out {duration(abs(misfit))} {than} than that step: savings are "
            "less certain by as much."
        )
    return text


def unprofiled_line(diagnosis: Diagnosis) -> str:
    """The step without a profiler, "" where that is not known."""
    real = diagnosis.unprofiled
    if real is None:
        return ""
    text = f"Without the profiler a step takes {duration(real.step_ns)}"
    if real.high_ns > real.low_ns:
        text += f" ({duration(real.low_ns)} to {duration(real.high_ns)})"
    text += f", with it {real.inflation:.2f} times as long"
    if real.kernel_utilization is not None:
        text += f"; kernels run {percent(real.kernel_utilization, 1)} of it"
    return text + "."


def trace_part(diagnosis: Diagnosis) -> str:
    """What the breakdown by cause is of, where that is not what the headline says."""
    return "" if diagnosis.unprofiled is None else " in the trace"


def count_line(diagnosis: Diagnosis) -> str:
    """Launches, syncs, copies and allocations, per step where there are steps."""
    average = diagnosis.steps.per_step
    if per_step(diagnosis) and average is not None:
        head = "Per step"
        if len(diagnosis.steps.classes) > 1:
            head = f"Per step of {printable(diagnosis.steps.main_class or '')}"
        values = (
            average.launches,
            average.graph_launches,
            average.sync_calls,
            average.copies,
            average.allocs,
        )
    else:
        head = "In the trace"
        counts = diagnosis.counts
        copies = counts.copies.h2d + counts.copies.d2h + counts.copies.d2d
        values = (
            counts.launches,
            counts.graph_launches,
            counts.sync_calls,
            copies,
            counts.allocs,
        )
    names = ("launch", "graph launch", "sync", "copy", "allocation")
    many = ("launches", "graph launches", "syncs", "copies", "allocations")
    shown = ", ".join(
        f"{_number(value)} {one if value == 1 else more}"
        for value, one, more in zip(values, names, many, strict=True)
    )
    return f"{head}: {shown}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def class_lines(diagnosis: Diagnosis) -> list[str]:
    """A line per class of steps, where there are several."""
    classes = diagnosis.steps.classes
    if len(classes) < 2 or not per_step(diagnosis):
        return []

    def time(step_class: StepClass) -> int:
        return step_class.duration_median_ns * len(step_class.steps)

    return [
        f"{len(c.steps)} step{'s' if len(c.steps) > 1 else ''} of {printable(c.label)}: "
        f"{duration(c.duration_median_ns)} each, {duration(c.per_step.idle_ns)} of it idle"
        for c in sorted(classes, key=time, reverse=True)
    ]


def place(site: Site | None) -> str:
    """A site as people write it: `decode.py:74 step`, or the op. Long paths lose their front."""
    if site is None:
        return ""
    if site.file is None:
        return printable(site.op or "")
    parts = site.file.split("/")
    file = "/".join(["...", *parts[-3:]]) if len(site.file) > 40 and len(parts) > 4 else site.file
    where = printable(f"{file}:{site.line} {site.function}")
    if site.candidates:
        lines = ", ".join(map(str, site.candidates[:4]))
        where += f" (line {lines}{', ...' if len(site.candidates) > 4 else ''})"
    return where


_VERDICTS: dict[str, str] = {
    "gpu-bound": "the host keeps the GPU fed: look at the kernels",
    "rank-wait": "collectives wait for other ranks",
    "sync-bound": "the host waits for the GPU, and the GPU then for the host",
    "launch-bound": "the GPU waits for the host to launch its work",
    "host-bound": "the host's own work holds the GPU up",
    "input-bound": "the step waits for its input",
    "transfer-bound": "copies hold the step up",
    "mixed": "no single class of causes stands out",
}


def verdict_line(diagnosis: Diagnosis) -> str:
    """`launch-bound: launching takes longer than the kernels do`, "" without a verdict."""
    verdict = diagnosis.verdict
    return f"{verdict}: {_VERDICTS[verdict]}" if verdict in _VERDICTS else ""


def defects(diagnosis: Diagnosis) -> list[Finding]:
    """Findings that cost something, the costliest first."""
    return [finding for finding in diagnosis.findings if finding.severity != "info"]


def harmless(diagnosis: Diagnosis) -> list[Finding]:
    """Findings that were seen and cost nothing."""
    infos = [finding for finding in diagnosis.findings if finding.severity == "info"]
    return [finding for finding in infos if not finding.code.startswith("HG9")]


def harmless_line(diagnosis: Diagnosis) -> str:
    """Which faults cost nothing where they were seen, "" without any."""
    costly = {finding.code for finding in defects(diagnosis)}
    names: dict[str, int] = {}
    for finding in harmless(diagnosis):
        name = f"{finding.code} {finding.name}"
        names[name] = names.get(name, 0) + 1
    shown = []
    for name, places in names.items():
        if name.split()[0] in costly:
            name += f" at {places} more place{'' if places == 1 else 's'}"
        shown.append(name)
    return f"Seen, harmless: {', '.join(shown)}" if shown else ""


def remarks(diagnosis: Diagnosis) -> list[Finding]:
    """Findings about the trace itself, the first of each rule."""
    first: dict[str, Finding] = {}
    for finding in diagnosis.findings:
        if finding.code.startswith("HG9"):
            first.setdefault(finding.code, finding)
    return list(first.values())


def saving(diagnosis: Diagnosis, low_ns: int | None, high_ns: int | None) -> str:
    """`12.4 to 32.3 ms a step`; the low end is what is left if the profiler explains the rest.

    Where the unprofiled step is known, `0.43 ms a step (at least 0.41)`.
    """
    if high_ns is None:
        return ""
    n = steps_in(diagnosis)
    per = " a step" if per_step(diagnosis) else ""
    high = duration(high_ns / n)
    low = duration((low_ns or 0) / n)
    if low == high:
        return f"{high}{per}"
    value, _, unit = low.partition(" ")
    if diagnosis.saving_basis == "calibrated":
        least = value if unit == high.partition(" ")[2] else low
        return f"{high}{per} (at least {least})" if low_ns else f"{high}{per}"
    shown = value if unit == high.partition(" ")[2] else low
    return f"{shown} to {high}{per}" if low_ns else f"up to {high}{per}"


def often(diagnosis: Diagnosis, finding: Finding) -> str:
    """`3x a step`, or `2x in 4 steps`."""
    if not per_step(diagnosis):
        return f"{finding.count:,}x"
    if finding.count_per_step >= 1:
        return f"{_number(finding.count_per_step)}x a step"
    return f"{finding.count:,}x in {steps_in(diagnosis)} steps"


def shadow(diagnosis: Diagnosis, finding: Finding) -> str:
    """What follows a wait, "" where the GPU does not idle behind it."""
    n = steps_in(diagnosis)
    if finding.shadow_ns < 1_000 * n:
        return ""
    per = " a step" if per_step(diagnosis) else ""
    return f"; behind it the GPU idles {duration(finding.shadow_ns / n)}{per}"


def together_line(diagnosis: Diagnosis) -> str:
    """What all defects save at once, "" where there are fewer than two."""
    whatif = diagnosis.whatif
    if whatif is None or len(defects(diagnosis)) < 2:
        return ""
    all_of_it = saving(diagnosis, whatif.combined_saving_low_ns, whatif.combined_saving_ns)
    return f"All of them at once: {all_of_it}. Savings do not add up."


def cost_line(diagnosis: Diagnosis) -> str:
    """What idle time costs in money, "" without a price."""
    cost = diagnosis.cost
    if cost is None:
        return ""
    if cost.per_million_tokens is not None and cost.idle_per_million_tokens is not None:
        whole, idle, unit = cost.per_million_tokens, cost.idle_per_million_tokens, "tokens"
    elif cost.per_million_steps is not None and cost.idle_per_million_steps is not None:
        whole, idle, unit = cost.per_million_steps, cost.idle_per_million_steps, "steps"
    else:
        return f"At {cost.gpu_price_per_hour:g} an hour: no steps to price."
    most = "" if diagnosis.unprofiled is not None else "up to "
    return (
        f"At {cost.gpu_price_per_hour:g} an hour a million {unit} cost {most}{whole:,.2f}, "
        f"{idle:,.2f} of it for an idle GPU."
    )


def batch_line(diagnosis: Diagnosis) -> str:
    """How idle the GPU is by batch, "" where fewer than two are known."""
    batches = diagnosis.batches
    if batches is None:
        return ""
    shown = ", ".join(
        f"{point.batch}: {percent(point.idle_share, 1)} of {duration(point.duration_ns)}"
        for point in batches.points
    )
    text = f"Idle by batch: {shown}."
    if batches.host_bound_below is not None:
        text += f" Below {batches.host_bound_below} the host limits the step."
    return text


def collectives_line(device: DeviceMetrics) -> str:
    """How busy the GPU is without kernels that wait for other ranks, "" where there are none."""
    with_them, without = device.kernel_utilization, device.utilization_without_collectives
    if with_them is None or without is None or with_them - without < 0.01:
        return ""
    return (
        f"Collectives count as busy; without them kernels ran {percent(without, 1)}, "
        f"not {percent(with_them, 1)}."
    )
