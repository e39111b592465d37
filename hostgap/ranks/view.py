"""What the text and markdown reports say of a set, before it is laid out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hostgap.output.printable import printable
from hostgap.output.summary import place
from hostgap.ranks.excess import COPIES, GPU_WORK, SLOWER_HOST
from hostgap.ranks.model import DiagnosisSet, MergedFinding, RankDiagnosis, Spread, Straggler
from hostgap.ranks.straggler import CLEAR_SLOWER, UNEXPLAINED
from hostgap.units import duration, percent

WORST = 8  # ranks shown
_NAMED = 4  # labels that are written out
_FIGURES = {
    "step_ns": "step",
    "window_ns": "window",
    "active_ns": "GPU active",
    "idle_share": "idle",
    "host_late_share": "host late",
    "rank_wait_share": "waits for others",
    "caused_wait_share": "makes others wait",
    "launches": "launches",
    "kernels": "kernels",
}


@dataclass(frozen=True, slots=True)
class Line:
    """A rank in the table: its name and six columns."""

    label: str
    cells: tuple[str, ...]
    bad: bool


COLUMNS = ("step", "idle", "host late", "waits", "last at", "verdict")


def headline(found: DiagnosisSet) -> str:
    """The one sentence to remember."""
    summary = found.summary
    what = "rank" if summary.not_compared is None else "trace"
    many = f"{summary.ranks} {what}{'s' if summary.ranks != 1 else ''}"
    if summary.idle_share is None:
        return f"{many}: nothing can be measured."
    text = f"{many}: GPUs idle {percent(summary.idle_share, 1)} of the time"
    idle = _spread(found, "idle_share")
    if idle is not None:
        text += f" ({percent(idle.low, 1)} to {percent(idle.high, 1)})"
    if summary.untraced_wait_share is not None:
        waits = percent(summary.untraced_wait_share, 1)
        return (
            f"{text} as recorded. Without a profiler they wait for one another for {waits} of it."
        )
    if summary.rank_wait_share is not None:
        text += f", and {percent(summary.rank_wait_share, 1)} more in waits for one another"
    return text + "."


def straggler_lines(found: DiagnosisSet) -> list[str]:
    """For whom the others wait, and what holds that one up."""
    late = found.summary.straggler
    if late is None:
        return []
    label = printable(late.label)
    if late.late_ns is not None:
        return _untraced_lines(late, found)
    if not late.clear:
        return [
            f"No rank stands out for sure: {label} causes {percent(late.share, 1)} of the waits, "
            f"{duration(late.caused_wait_ns)} in all, last at {late.last:,} of "
            f"{late.collectives:,} collectives."
        ]
    lines = [
        f"The others wait for {label}: last at {late.last:,} of {late.collectives:,} collectives, "
        f"{duration(late.caused_wait_ns)} in all, {percent(late.share, 1)} of what any rank causes."
    ]
    lines.append(_cause_line(late))
    return lines + _cost_lines(found)


def _cost_lines(found: DiagnosisSet) -> list[str]:
    cost, share = found.summary.wait_cost_ns, found.summary.wait_cost_share
    if not cost or share is None:
        return []
    return [f"Without these waits a step would be {duration(cost)} shorter, {percent(share, 1)}."]


def _untraced_lines(late: Straggler, found: DiagnosisSet) -> list[str]:
    """The same where waits were measured without a profiler: the recording only says why."""
    label, ns = printable(late.label), late.late_ns or 0
    interval = f"{duration(late.late_low_ns or 0)} to {duration(late.late_high_ns or 0)}"
    if not late.clear:
        share = found.summary.wait_cost_share or 0.0
        if late.cause == UNEXPLAINED and share >= CLEAR_SLOWER:
            return [
                f"Without a profiler {label}'s host fell {duration(ns)} a step behind the others' "
                f"({interval}).",
                "The recording shows nothing that explains it: hosts vary, so measure again.",
            ]
        most = f": most is {label}'s {duration(ns)}" if ns > 0 else ""
        return [f"Without a profiler no host falls behind the others' by much in a step{most}."]
    if late.cause == GPU_WORK:
        return [
            f"The others wait for {label}: its GPU works {duration(late.cause_excess_ns)} a step "
            "longer. Uneven work, or a slower GPU.",
            *_cost_lines(found),
        ]
    where = place(late.site)
    at = f", at {where}" if where else ""
    why = f"As recorded, {duration(late.cause_excess_ns)} a step more of it is {late.cause}{at}."
    if late.cause == COPIES:
        why = f"As recorded, its GPU copies {duration(late.cause_excess_ns)} a step longer{at}."
    elif late.cause == SLOWER_HOST:
        why = f"It is slower at everything, as recorded by {percent(late.pace, 1)}."
    return [
        f"The others wait for {label}: without a profiler its host falls {duration(ns)} a step "
        f"behind theirs ({interval}).",
        why,
        *_cost_lines(found),
    ]


def _cause_line(late: Straggler) -> str:
    """What the straggler does more of than the others."""
    if late.cause == GPU_WORK:
        return (
            f"Its GPU works longer than the others' before those: {duration(late.work_excess_ns)} "
            "in all. Uneven work, or a slower GPU."
        )
    where = place(late.site)
    at = f", at {where}" if where else ""
    if late.cause == COPIES:
        return f"Its GPU copies for {duration(late.cause_excess_ns)} a step longer{at}."
    if late.cause == SLOWER_HOST:
        return (
            f"Its host is slower at everything, by {percent(late.pace, 1)}: it may be the recorder."
        )
    text = "Its host does more than the others'"
    if late.idle_excess_ns > max(0, late.cause_excess_ns):  # else what it does hides behind work
        more = duration(late.idle_excess_ns)
        text = f"Before those its host is late by {more} in all more than the others'"
    longer = f" ({duration(late.cause_excess_ns)} a step more)" if late.cause_excess_ns > 0 else ""
    return f"{text}, mostly {late.cause}{at}{longer}."


def counts_line(found: DiagnosisSet) -> str:
    """How many traces there are of what kind, and why they were not compared."""
    s = found.summary
    parts = [f"{s.traces} trace{'s' if s.traces != 1 else ''}"]
    if s.frontends:
        parts.append(f"{s.frontends} of a front end, CPU only and no rank")
    if s.failed:
        parts.append(f"{s.failed} could not be read")
    if s.unmeasurable:
        parts.append(f"{s.unmeasurable} unmeasurable")
    if s.not_compared:
        parts.append(f"not held against each other: {printable(s.not_compared)}")
    return " · ".join(parts)


def worst_lines(found: DiagnosisSet) -> tuple[list[Line], int]:
    """The table: all ranks where they are few, else the worst of them, and how many are left out.

    Worst are those that could not be measured, then those whose host is latest or for which the
    others wait most.
    """
    workers = [one for one in found.ranks if one.role == "worker"]
    shown = workers
    if len(workers) > WORST:
        chosen = sorted(workers, key=_badness, reverse=True)[:WORST]
        shown = [one for one in workers if one in chosen]
    return [_line(one, found) for one in shown], len(workers) - len(shown)


def _badness(one: RankDiagnosis) -> float:
    figures = one.figures
    if figures is None:
        return float("inf")
    return (figures.host_late_ns + (figures.caused_wait_ns or 0)) / max(figures.window_ns, 1)


def _line(one: RankDiagnosis, found: DiagnosisSet) -> Line:
    label, figures = printable(one.label, 40), one.figures
    if figures is None:
        why = one.error or _reason(one)
        return Line(label, ("", "", "", "", "", printable(why)), True)
    late = found.summary.straggler
    wait, of = figures.rank_wait_ns, figures.window_ns
    if figures.untraced_wait_ns is not None and figures.untraced_step_ns:
        wait, of = figures.untraced_wait_ns, figures.untraced_step_ns
    return Line(
        label,
        (
            duration(figures.step_ns if figures.step_ns is not None else figures.window_ns),
            percent(figures.idle_ns, figures.window_ns),
            percent(figures.host_late_ns, figures.window_ns),
            "" if wait is None else percent(wait, of),
            "" if figures.last is None else f"{figures.last:,}",
            (one.diagnosis.verdict or "") if one.diagnosis is not None else "",
        ),
        late is not None and late.clear and late.label == one.label,
    )


def _reason(one: RankDiagnosis) -> str:
    reasons = one.diagnosis.trace.integrity.reasons if one.diagnosis is not None else []
    return reasons[-1].text if reasons else "nothing to measure"


def spread_lines(found: DiagnosisSet) -> list[str]:
    """Figures that differ between ranks, and who stands out."""
    lines = []
    for spread in found.summary.spread:
        if spread.high <= spread.low * 1.02 and not spread.outliers:
            continue
        if spread.figure == "window_ns" and _spread(found, "step_ns") is not None:
            continue
        text = (
            f"{_FIGURES.get(spread.figure, spread.figure)}: {_value(spread, spread.low)} "
            f"({printable(spread.low_label, 40)}) to {_value(spread, spread.high)} "
            f"({printable(spread.high_label, 40)}), middle {_value(spread, spread.median)}"
        )
        if spread.outliers:
            text += f"; stands out: {names(spread.outliers)}"
        lines.append(text)
    return lines


def _value(spread: Spread, value: float) -> str:
    if spread.unit == "ns":
        return duration(value)
    return percent(value, 1) if spread.unit == "share" else f"{value:,.0f}"


def _spread(found: DiagnosisSet, figure: str) -> Spread | None:
    return next((one for one in found.summary.spread if one.figure == figure), None)


def defects(found: DiagnosisSet) -> list[MergedFinding]:
    """Findings that cost something."""
    return [one for one in found.summary.findings if one.severity != "info"]


def saving(finding: MergedFinding) -> str:
    """The most that a finding costs, of the window of the rank that it costs most."""
    if finding.predicted_saving_ns is None:
        return ""
    text = f"up to {duration(finding.predicted_saving_ns)}"
    if finding.predicted_saving_share is not None:
        text += f", {percent(finding.predicted_saving_share, 1)} of the time"
    if len(finding.labels) > 1:
        text += f" ({printable(finding.worst, 40)})"
    return text


def where(found: DiagnosisSet, finding: MergedFinding) -> str:
    """On which ranks, and at which place."""
    n = len(finding.labels)
    on = f"all {n}" if n == found.summary.ranks and n > 1 else names(finding.labels)
    site = place(finding.site)
    return f"{on}, at {site}" if site else on


def names(labels: Sequence[str]) -> str:
    """Some labels written out, the rest counted."""
    shown = ", ".join(printable(label, 40) for label in labels[:_NAMED])
    return shown + (f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else "")


def batch_line(found: DiagnosisSet) -> str:
    """How idle the GPU is by batch, "" where fewer than two are known."""
    batches = found.summary.batches
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


CAVEAT = (
    "The profiler slows the hosts: idle time and savings are upper bounds. Savings of ranks do "
    "not add up: they work at the same time."
)
