"""What the reports of `hostgap fix` say, before it is laid out: a view of a `FixReport`."""

from __future__ import annotations

from hostgap.fixes.report import FixReport, Rung
from hostgap.output.printable import printable
from hostgap.units import duration, percent

MARKS = {"start": " ", "kept": "+", "rolled-back": "-", "failed": "!", "candidate": "?"}
STATUS = {
    "start": "as it is",
    "kept": "kept",
    "rolled-back": "rolled back",
    "failed": "failed",
    "candidate": "not tried",
}
COLUMNS = ("ms/step", "speed", "GPU busy", "util", "launches", "syncs", "copies")
_COST_UNITS = {"ms": " ms", "mib": " MiB"}


def headline(report: FixReport) -> str:
    """The one sentence to remember."""
    if report.status == "dry-run":
        many = sum(rung.status == "candidate" for rung in report.rungs)
        return f"{many} fix{'' if many == 1 else 'es'} would be tried; nothing was applied."
    kept = [rung for rung in report.rungs if rung.status == "kept"]
    start = next((rung for rung in report.rungs if rung.status == "start"), None)
    before = start.step if start is not None else None
    if not kept or before is None or kept[-1].step is None:
        return "No fix made the step faster: it is as it was."
    after = kept[-1].step
    text = f"Step {duration(before.median_ns)} -> {duration(after.median_ns)}"
    if (overall := report.overall) is not None and overall.ratio > 0:
        text += f": {speed(overall.ratio)} as fast ({speed(overall.high)} to {speed(overall.low)})"
    return f"{text}, output equal."


def described(report: FixReport) -> str:
    """One line: what was fixed, where, and with what settings."""
    parts = [printable(report.target)] if report.target else []
    parts += [
        f"{name} {printable(str(report.options[name]))}"
        for name in ("preset", "batch")
        if name in report.options
    ]
    if report.start.defects:
        many = len(report.start.defects)
        parts.append(f"{many} defect{'' if many == 1 else 's'} on")
    if report.environment is not None:
        parts += [printable(report.environment.gpu), f"torch {printable(report.environment.torch)}"]
    parts.append(f"noise {percent(report.noise, 1)}, tolerance {report.tolerance:g}")
    return " · ".join(parts)


def speed(ratio: float) -> str:
    """How many times as fast: `8.5x`."""
    times = 1.0 / ratio if ratio else 0.0
    return f"{times:.2f}x" if times < 10 else f"{times:.1f}x"


def label(rung: Rung) -> str:
    """What was tried, short: the fix's name, or how many were tried at once."""
    names = rung.name.split(" + ")
    return printable(rung.name) if len(names) <= 2 else f"{len(names)} fixes at once"


def what(rung: Rung) -> str:
    """What was tried, in full: the fix's title, or the names of all that were tried at once."""
    return printable(rung.title if " + " not in rung.name else rung.name, 500)


def cells(rung: Rung) -> tuple[str, ...]:
    """A rung's figures under `COLUMNS`, "" where they were not measured."""
    figures = rung.figures
    step = "" if rung.step is None else _ms(rung.step.median_ns)
    against = "" if rung.against is None else speed(rung.against.ratio)
    if figures is None:
        return (step, against, "", "", "", "", "")
    launches = _count(figures.launches)
    if figures.graph_launches:
        launches = f"{launches}+{_count(figures.graph_launches)}g"
    busy, util = figures.gpu_busy_ns, figures.kernel_utilization
    return (
        step,
        against,
        "" if busy is None else _ms(busy),
        "" if util is None else percent(util, 1),
        launches,
        _count(figures.syncs),
        _count(figures.copies),
    )


def _ms(ns: float) -> str:
    """Milliseconds with three significant figures: 22.0, 0.901."""
    return f"{ns / 1e6:#.3g}".rstrip(".")


def _count(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def verdict(rung: Rung) -> str:
    """`kept: 8.1x as fast, output equal`."""
    why = printable(rung.why.removeprefix(f"{rung.name}: "), 500)
    return f"{STATUS[rung.status]}: {why}" if why else STATUS[rung.status]


def details(rung: Rung) -> list[str]:
    """What else is known of a rung, a line each."""
    lines = []
    predicted, measured = rung.predicted_saving_ns, rung.measured_saving_ns
    saved = []
    if predicted is not None:
        saved.append(f"predicted to save {duration(predicted)} a step")
    if measured is not None:
        word = "saved" if measured >= 0 else "lost"
        saved.append(f"{word} {duration(abs(measured))}")
    if saved:
        lines.append(", ".join(saved))
    if rung.tokens_per_second is not None:
        lines.append(f"{rung.tokens_per_second:,.0f} tokens/s")
    figures = rung.figures
    if figures is not None and figures.idle_share is not None:
        idle = f"GPU idle {percent(figures.idle_share, 1)} of the step"
        if figures.exposed_share is not None:
            idle += f", waits for its host {percent(figures.exposed_share, 1)}"
        if figures.launch_call_share is not None:
            idle += f", launch calls {percent(figures.launch_call_share, 1)} of it as traced"
        lines.append(idle)
    if rung.costs:
        lines.append("cost " + ", ".join(_cost(name, rung.costs[name]) for name in rung.costs))
    proof = rung.proof
    if proof is not None and proof.equal:
        told = f"proof: {proof.steps} steps of {proof.cases} case{'s' if proof.cases != 1 else ''}"
        if proof.compared:
            told += f", {proof.exact:,} of {proof.compared:,} integers exact"
            if proof.exact < proof.compared:
                told += " (the others near ties, after which a case ends)"
        if proof.largest_difference:
            told += f", largest difference {proof.largest_difference:.1e}"
        lines.append(told)
    if rung.kernels_differ is not None:
        lines.append(f"other kernels than before: {printable(rung.kernels_differ)}")
    return lines


def _cost(name: str, value: float) -> str:
    """`capture 120 ms` of `capture_ms`."""
    what, _, unit = name.rpartition("_")
    if unit in _COST_UNITS and what:
        return f"{what.replace('_', ' ')} {value:,.0f}{_COST_UNITS[unit]}"
    return f"{name.replace('_', ' ')} {value:,.0f}"
