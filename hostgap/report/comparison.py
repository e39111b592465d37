"""Two runs side by side."""

from __future__ import annotations

from dataclasses import dataclass

from hostgap.analysis.causes import MEANING, Cause
from hostgap.diagnosis.model import DeviceMetrics, Diagnosis
from hostgap.output import summary as s
from hostgap.units import duration, percent


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of both runs as shown; `better` is None where neither way is better."""

    name: str
    base: str
    new: str
    change: str
    better: bool | None


@dataclass(frozen=True, slots=True)
class Bar:
    """Time a step of one cause (or of kernels) in both runs, ns."""

    label: str
    meaning: str
    base_ns: float
    new_ns: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """`warnings` say why the two may not be comparable; `gone` and `added` are rules."""

    warnings: list[str]
    figures: list[Figure]
    bars: list[Bar]
    longest_ns: float
    gone: list[str]
    added: list[str]


def compare(base: Diagnosis, new: Diagnosis) -> Comparison:
    """Figures per step where both have steps, else of the whole windows."""
    old_device, new_device = s.main_device(base), s.main_device(new)
    warnings = _warnings(base, new)
    figures: list[Figure] = []
    bars: list[Bar] = []
    if old_device is not None and new_device is not None:
        per = (s.steps_in(base), s.steps_in(new))
        unit = " a step" if s.per_step(base) and s.per_step(new) else ""
        figures += _times(base, new, old_device, new_device, per, unit)
        bars = _bars(old_device, new_device, per)
    figures += _counts(base, new)
    codes = [{f"{f.code} {f.name}" for f in s.defects(each)} for each in (base, new)]
    return Comparison(
        warnings,
        figures,
        bars,
        max((max(bar.base_ns, bar.new_ns) for bar in bars), default=1.0) or 1.0,
        sorted(codes[0] - codes[1]),
        sorted(codes[1] - codes[0]),
    )


def _warnings(base: Diagnosis, new: Diagnosis) -> list[str]:
    warnings = []
    names = [sorted({d.name for d in each.devices if d.name}) for each in (base, new)]
    if names[0] != names[1]:
        shown = [", ".join(name) or "an unknown GPU" for name in names]
        warnings.append(f"Different GPUs: {shown[0]} and {shown[1]}.")
    if base.trace.source != new.trace.source:
        warnings.append("Recorded by different profilers: only counts can be compared.")
    if s.per_step(base) != s.per_step(new):
        warnings.append("Only one of the two has steps: figures are of whole windows.")
    if (base.unprofiled is None) or (new.unprofiled is None):
        warnings.append(
            "Times are those of traces, whose host the profiler slows: only a time measured "
            "without it says how much faster a step became. Counts are exact."
        )
    return warnings


def _times(
    base: Diagnosis,
    new: Diagnosis,
    old_device: DeviceMetrics,
    new_device: DeviceMetrics,
    per: tuple[int, int],
    unit: str,
) -> list[Figure]:
    figures = []
    if base.unprofiled is not None and new.unprofiled is not None:
        figures.append(
            _time("Step without a profiler", base.unprofiled.step_ns, new.unprofiled.step_ns)
        )
    pairs = (
        (f"Window{unit}, as traced", "window_ns"),
        (f"GPU idle{unit}, as traced", "idle_ns"),
        (f"Kernels{unit}", "kernel_busy_ns"),
    )
    for name, key in pairs:
        figures.append(
            _time(name, getattr(old_device, key) / per[0], getattr(new_device, key) / per[1])
        )
    old, now = old_device.kernel_utilization, new_device.kernel_utilization
    if old is not None and now is not None:
        change = f"{(now - old) * 100:+.0f} points"
        name = "Kernel utilization, as traced"
        figures.append(Figure(name, percent(old, 1), percent(now, 1), change, _better(now - old)))
    return figures


def _time(name: str, old: float, now: float) -> Figure:
    change = f"{(now - old) / old:+.0%}".replace("%", " %") if old else ""
    return Figure(name, duration(old), duration(now), change, _better(old - now))


def _better(gain: float) -> bool | None:
    return None if gain == 0 else gain > 0


def _counts(base: Diagnosis, new: Diagnosis) -> list[Figure]:
    old, now = base.steps.per_step, new.steps.per_step
    if old is None or now is None or not (s.per_step(base) and s.per_step(new)):
        return []
    figures = []
    names = ("launches", "graph_launches", "sync_calls", "copies", "allocs")
    for key in names:
        before, after = getattr(old, key), getattr(now, key)
        label = {"sync_calls": "syncs", "allocs": "allocations"}.get(key, key.replace("_", " "))
        better = None if key == "graph_launches" else _better(before - after)
        change = f"{after - before:+,.6g}" if after != before else "same"
        figures.append(Figure(f"{label} a step", f"{before:,.6g}", f"{after:,.6g}", change, better))
    return figures


def _bars(old: DeviceMetrics, new: DeviceMetrics, per: tuple[int, int]) -> list[Bar]:
    bars = [
        Bar("kernels", "the GPU computes", old.kernel_busy_ns / per[0], new.kernel_busy_ns / per[1])
    ]
    if old.copy_only_ns or new.copy_only_ns:
        copies = (old.copy_only_ns / per[0], new.copy_only_ns / per[1])
        bars.append(Bar("copies", "the GPU copies or sets memory", *copies))
    causes = []
    for label in {*old.idle_by_cause, *new.idle_by_cause}:
        before = old.idle_by_cause.get(label, 0) / per[0]
        after = new.idle_by_cause.get(label, 0) / per[1]
        causes.append(Bar(label, MEANING[Cause[label.upper()]], before, after))
    causes.sort(key=lambda bar: (-max(bar.base_ns, bar.new_ns), bar.label))
    return bars + causes
