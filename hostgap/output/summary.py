"""What the text and markdown reports say, before it is laid out: a view of a `Diagnosis`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hostgap.analysis.causes import MEANING, Cause
from hostgap.diagnosis.model import DeviceMetrics, Diagnosis, Site, StepClass, SyncSite
from hostgap.output.printable import printable


def duration(ns: float) -> str:
    """A time with three significant figures and a fitting unit."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= size * 0.9995:
            value = ns / size
            decimals = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
            return f"{value:,.{decimals}f} {unit}"
    return f"{ns:.0f} ns"


def amount_of(part_ns: float, whole_ns: float) -> str:
    """`33.0 of 35.4 ms`: the unit only once where both have the same."""
    part, whole = duration(part_ns), duration(whole_ns)
    value, _, unit_of_part = part.partition(" ")
    return f"{value if whole.endswith(' ' + unit_of_part) else part} of {whole}"


def percent(part: float, whole: float) -> str:
    """A share as a whole percentage, `<1 %` for the small ones that are not nothing."""
    share = part / whole if whole else 0.0
    return "<1 %" if 0 < share < 0.005 else f"{share:.0%}".replace("%", " %")


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
    """The one sentence to remember."""
    device = main_device(diagnosis)
    if diagnosis.trace.integrity.verdict == "unmeasurable" or device is None:
        return f"Nothing can be measured: {why_not(diagnosis)}."
    n = steps_in(diagnosis)
    unit = "step" if per_step(diagnosis) else "trace"
    share = device.idle_ns / device.window_ns
    shown = f"{share:.0%}" if 0.1 <= share <= 0.985 else f"{share:.1%}"
    gpu = f"GPU {printable(str(device.device))}" if len(diagnosis.devices) > 1 else "GPU"
    text = (
        f"{gpu} idle {shown.replace('%', ' %')} of the {unit}: "
        f"{amount_of(device.idle_ns / n, device.window_ns / n)}."
    )
    if not device.kernel_busy_ns:
        return text + " No kernel ran."
    factor = device.window_ns / device.active_ns
    if factor >= 1.05:
        most = f"up to {factor:.1f}x" if factor < 100 else "over 100x"
        text += f" You pay {most} what you use."
    return text


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
    if diagnosis.trace.integrity.verdict == "partial":
        return "The trace is partial, and the profiler slows the host: idle is an upper bound."
    return "The profiler slows the host: idle time is an upper bound. Counts are exact."


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


def sync_lines(diagnosis: Diagnosis, sync: SyncSite) -> tuple[str, str]:
    """What a blocking call is and where, and what it took."""
    n = steps_in(diagnosis)
    count = f"{sync.count:,}x"
    if per_step(diagnosis):
        each = sync.count / n
        count = f"{_number(each)}x a step" if each >= 1 else f"{sync.count}x in {n} steps"
    what = printable(sync.call) + (f" ({sync.copy} copy)" if sync.copy else "")
    where = place(sync.site)
    per = " a step" if per_step(diagnosis) else ""
    took = f"{duration(sync.blocked_ns / n)}{per} inside"
    if sync.shadow_ns:
        took += f", then {duration(sync.shadow_ns / n)} of idle GPU until the next launch"
    return f"{count} {what}" + (f" at {where}" if where else ""), took


def place(site: Site | None) -> str:
    """A site as people write it: `decode.py:74 step`, or the op. Long paths lose their front."""
    if site is None:
        return ""
    if site.file is None:
        return printable(site.op or "")
    parts = site.file.split("/")
    file = "/".join(["...", *parts[-3:]]) if len(site.file) > 40 and len(parts) > 4 else site.file
    return printable(f"{file}:{site.line} {site.function}")


# What a family of causes usually means. Rules will say it of a line of code; this is of the whole.
_FAMILIES: tuple[tuple[str, str, str], ...] = (
    (
        "the host launches too slowly",
        "launch_call launch_latency api_call dispatch python gc gil",
        "capture the step in a CUDA graph, or torch.compile it",
    ),
    ("the host waits for the GPU", "sync", "keep values on the device, or read them a step later"),
    ("copies hold the host up", "copy_call", "pinned memory, non_blocking=True, fewer copies"),
    ("memory is allocated in the step", "alloc host_alloc free", "allocate once, reuse"),
    ("the step still compiles or captures", "compile capture", "warm up first, fix shapes"),
    ("the step waits for its input", "input_wait", "more loader workers, prefetch"),
    ("the step waits for another process", "remote_wait", "look at that process"),
    ("the gaps lie inside the graph", "graph_internal", "fuse kernels: compile, then capture"),
    ("the profiler itself", "profiler", "record without stacks, fewer steps"),
)


def mostly(diagnosis: Diagnosis) -> str:
    """One sentence on the family of causes that holds most of the idle time, "" without one.

    A blocking call answers for its shadow too. Under a profiler graph launches are several times as
    long, and the waits behind them too: of a step that runs in graphs nothing is said of those.
    """
    device = main_device(diagnosis)
    if device is None or device.idle_ns * 20 < device.window_ns:
        return ""
    totals = {
        what: sum(device.idle_by_cause.get(cause, 0) for cause in causes.split())
        for what, causes, _ in _FAMILIES
    }
    shadow = min(sum(s.shadow_ns for s in diagnosis.syncs), totals["the host launches too slowly"])
    totals["the host waits for the GPU"] += shadow
    totals["the host launches too slowly"] -= shadow
    if (diagnosis.capture.gpu_ops_in_graphs or 0) > 0.5:
        del totals["the host waits for the GPU"], totals["the host launches too slowly"]
    what, ns = max(totals.items(), key=lambda item: item[1])
    if ns * 2 < device.idle_ns:
        return ""
    remedy = next(remedy for name, _, remedy in _FAMILIES if name == what)
    return f"Mostly {what} ({percent(ns, device.idle_ns)} of idle). Usual remedy: {remedy}."


def collectives_line(device: DeviceMetrics) -> str:
    """How busy the GPU is without kernels that wait for other ranks, "" where there are none."""
    with_them, without = device.kernel_utilization, device.utilization_without_collectives
    if with_them is None or without is None or with_them - without < 0.01:
        return ""
    return (
        f"Collectives count as busy; without them kernels ran {percent(without, 1)}, "
        f"not {percent(with_them, 1)}."
    )
