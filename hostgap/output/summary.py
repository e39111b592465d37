"""What the text and markdown reports say, before it is laid out: a view of a `Diagnosis`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hostgap.analysis.causes import MEANING, Cause
from hostgap.diagnosis.model import DeviceMetrics, Diagnosis, Site

# C0 and C1 controls, and the marks that reorder text: shown escaped, so that no name in a trace can
# move the cursor or disguise another.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


UPPER_BOUND = "The profiler slows the host: idle time is an upper bound. Counts are exact."


def printable(text: str) -> str:
    """`text` with control characters shown as escapes."""
    return _UNPRINTABLE.sub(lambda m: m[0].encode("unicode_escape").decode("ascii"), text)


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
    """One line of the breakdown: where a share of the window went."""

    label: str
    ns: int
    percent: int
    meaning: str
    busy: bool


def breakdown(device: DeviceMetrics) -> list[Row]:
    """Where the window of a device went: kernels, copies, then causes, the largest first.

    The percentages add up to 100.
    """
    rows = [("kernels", device.kernel_busy_ns, "the GPU computes", True)]
    if device.copy_only_ns:
        rows.append(("copies", device.copy_only_ns, "the GPU copies or sets memory", True))
    causes = sorted(device.idle_by_cause.items(), key=lambda item: -item[1])
    rows += [(label, ns, MEANING[Cause[label.upper()]], False) for label, ns in causes]
    percents = whole_percents([row[1] for row in rows])
    return [
        Row(label, ns, percent, meaning, busy)
        for (label, ns, meaning, busy), percent in zip(rows, percents, strict=True)
    ]


def main_device(diagnosis: Diagnosis) -> DeviceMetrics | None:
    """The device the headline is about: the one with the most idle time."""
    usable = [device for device in diagnosis.devices if device.reason is None]
    return max(usable, key=lambda device: device.idle_ns, default=None)


def steps_in(diagnosis: Diagnosis) -> int:
    """How many steps the window is divided by; 1 where there are none to speak of."""
    if diagnosis.trace.window == "trace" or diagnosis.steps.source == "whole":
        return 1
    return max(1, diagnosis.steps.count)


def unit(diagnosis: Diagnosis) -> str:
    """What the figures are of: a step, the steps (of several classes), or the trace."""
    if steps_in(diagnosis) == 1 and (
        diagnosis.trace.window == "trace" or diagnosis.steps.source == "whole"
    ):
        return "trace"
    return "step"


def headline(diagnosis: Diagnosis) -> str:
    """The one sentence to remember."""
    device = main_device(diagnosis)
    if diagnosis.trace.integrity.verdict == "unmeasurable" or device is None:
        return f"Nothing can be measured: {why_not(diagnosis)}."
    n = steps_in(diagnosis)
    idle, window = device.idle_ns / n, device.window_ns / n
    share = device.idle_ns / device.window_ns
    percent = f"{share:.0%}" if 0.1 <= share <= 0.985 else f"{share:.1%}"
    text = (
        f"GPU idle {percent.replace('%', ' %')} of the {unit(diagnosis)}: "
        f"{amount_of(idle, window)}."
    )
    factor = device.window_ns / device.active_ns if device.active_ns else None
    if factor is not None and factor >= 1.05:
        text += f" You pay for {factor:.1f}x the GPU you use."
    return text


def why_not(diagnosis: Diagnosis) -> str:
    """The reason nothing can be measured."""
    for device in diagnosis.devices:
        if device.reason:
            return device.reason
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
    if steps.count and steps.source != "whole":
        fill = ", 1 fill step left out" if steps.fill_ns is not None else ""
        plural = "s" if steps.count > 1 else ""
        parts.append(f"{steps.count} step{plural} ({steps.source}){fill}")
    return " · ".join(parts)


def count_line(diagnosis: Diagnosis) -> str:
    """Launches, syncs, copies and allocations, per step where there are steps."""
    per_step = diagnosis.steps.per_step
    if unit(diagnosis) == "step" and per_step is not None:
        figures = [
            (per_step.launches, "launch", "launches"),
            (per_step.graph_launches, "graph launch", "graph launches"),
            (per_step.sync_calls, "sync", "syncs"),
            (per_step.copies, "copy", "copies"),
            (per_step.allocs, "allocation", "allocations"),
        ]
        head = "Per step"
        main = [c.label for c in diagnosis.steps.classes if c.per_step == per_step]
        if len(diagnosis.steps.classes) > 1:
            head = f"Per step of the main class ({printable(main[0])})"
    else:
        counts = diagnosis.counts
        copies = counts.copies.h2d + counts.copies.d2h + counts.copies.d2d
        figures = [
            (counts.launches, "launch", "launches"),
            (counts.graph_launches, "graph launch", "graph launches"),
            (counts.sync_calls, "sync", "syncs"),
            (copies, "copy", "copies"),
            (counts.allocs, "allocation", "allocations"),
        ]
        head = "In the trace"
    shown = ", ".join(
        f"{_number(value)} {one if value == 1 else many}" for value, one, many in figures
    )
    return f"{head}: {shown}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def place(site: Site | None) -> str:
    """A site as people write it: `decode.py:74 step`, or the chain of ops."""
    if site is None:
        return ""
    if site.file is None:
        return printable(site.op or "")
    return printable(f"{site.file}:{site.line} {site.function}")
