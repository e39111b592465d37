"""The summary of a set: sums, spreads and outliers, and findings put together over the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from hostgap.diagnosis.batches import by_batch
from hostgap.diagnosis.engine import ERROR_SAVING, MIN_SAVING
from hostgap.diagnosis.model import Diagnosis, Finding
from hostgap.diagnosis.registry import load_rules
from hostgap.output.summary import main_device, per_step
from hostgap.profiling.measurement import Waits
from hostgap.ranks.arrivals import NOT_HOST, Arrivals
from hostgap.ranks.compare import Comparison, Waiting
from hostgap.ranks.job import WaitCost
from hostgap.ranks.model import (
    MergedFinding,
    RankDiagnosis,
    RankFigures,
    SetSummary,
    Spread,
    Straggler,
)
from hostgap.ranks.straggler import straggler, untraced_cost
from hostgap.ranks.work import Work
from hostgap.units import duration

FEWEST = 4  # ranks among which one can be an outlier
FAR = 3.5  # usual deviations
FAR_SHARE = 0.05  # of the middle
_DEVIATION = 1.4826  # of a normal distribution, by its median absolute deviation
_NOT_HOST = {cause.label for cause in NOT_HOST}
_SEVERITIES = ("info", "warning", "error")


def figures(
    diagnosis: Diagnosis,
    arrivals: Arrivals | None,
    waiting: Waiting | None,
    untraced: Waits | None = None,
) -> RankFigures | None:
    """What counts of one rank; None where nothing can be measured."""
    device = main_device(diagnosis)
    if device is None or diagnosis.trace.integrity.verdict == "unmeasurable":
        return None
    durations = diagnosis.steps.durations_ns
    stepped = per_step(diagnosis) and len(durations) > 0
    return RankFigures(
        window_ns=device.window_ns,
        step_ns=round(float(np.median(durations))) if stepped else None,
        active_ns=device.active_ns,
        idle_ns=device.idle_ns,
        host_late_ns=sum(ns for c, ns in device.idle_by_cause.items() if c not in _NOT_HOST),
        rank_wait_ns=waiting.wait_ns if waiting else None,
        exposed_wait_ns=waiting.exposed_ns if waiting else None,
        caused_wait_ns=waiting.caused_ns if waiting else None,
        last=waiting.last if waiting else None,
        collectives=len(arrivals) + arrivals.left_out if arrivals is not None else 0,
        untraced_step_ns=round(untraced.step_ns) if untraced else None,
        untraced_wait_ns=round(untraced.wait.median_ns) if untraced else None,
        untraced_lost_ns=round(untraced.lost.median_ns) if untraced else None,
    )


def summarize(
    ranks: Mapping[int, RankDiagnosis],
    comparison: Comparison | None,
    not_compared: str | None,
    notes: Sequence[str],
    works: Mapping[int, Work],
    cost: WaitCost | None = None,
    untraced: Mapping[int, Waits] | None = None,
) -> SetSummary:
    """Everything that is said of all ranks together.

    Args:
        ranks: index of a trace -> what is known of it.
        comparison: of their collectives, None where they were not held against each other.
        not_compared: why not.
        notes: files that were left out.
        works: index of a trace -> what its rank does.
        cost: of the waits, where it is known.
        untraced: index of a trace -> what its rank waits without a profiler; of all that are
            compared, or none.
    """
    workers = [one for one in ranks.values() if one.role == "worker"]
    measured = [(one, one.figures) for one in workers if one.figures is not None]
    windows = [f.window_ns for _, f in measured]
    window = sum(windows)
    waited = [f for _, f in measured if f.rank_wait_ns is not None]

    def share(parts: Iterable[int | None]) -> float | None:
        return sum(part or 0 for part in parts) / window if window else None

    found = [one.diagnosis for one in workers if one.diagnosis is not None]
    late = None
    if comparison and windows:
        late = straggler(comparison, ranks, windows, works, cost, untraced)
    if untraced:
        cost = untraced_cost(untraced, late)
    return SetSummary(
        traces=len(ranks),
        ranks=len(workers),
        failed=sum(one.status == "failed" for one in workers),
        unmeasurable=sum(one.status == "unmeasurable" for one in workers),
        frontends=sum(one.role == "frontend" for one in ranks.values()),
        window_ns=window,
        idle_share=share(f.idle_ns for _, f in measured),
        host_late_share=share(f.host_late_ns for _, f in measured),
        rank_wait_share=share(f.rank_wait_ns for f in waited) if waited else None,
        exposed_wait_share=share(f.exposed_wait_ns for f in waited) if waited else None,
        wait_cost_ns=cost.ns if cost else None,
        wait_cost_share=cost.ns / cost.step_ns if cost and cost.step_ns else None,
        untraced_wait_share=_untraced_share(untraced.values()) if untraced else None,
        compared=len(waited),
        collectives=comparison.collectives if comparison else [],
        not_compared=not_compared,
        straggler=late,
        spread=list(_spreads(measured)),
        findings=merged(workers, _of_all(measured, late) if comparison and measured else None),
        batches=by_batch(diagnosis.steps for diagnosis in found),
        notes=list(notes),
    )


def _untraced_share(waits: Iterable[Waits]) -> float | None:
    pairs = [(one.wait.median_ns, one.step_ns) for one in waits]
    steps = sum(step for _, step in pairs)
    return sum(wait for wait, _ in pairs) / steps if steps else None


def _spreads(measured: Sequence[tuple[RankDiagnosis, RankFigures]]) -> Iterable[Spread]:
    """The spread of each figure that all ranks have."""
    if len(measured) < 2:
        return
    labels = [one.label for one, _ in measured]
    diagnoses = [one.diagnosis for one, _ in measured if one.diagnosis is not None]
    found = [f for _, f in measured]

    def shares(parts: Iterable[int | None]) -> list[float | None]:
        pairs = zip(parts, found, strict=True)
        return [None if part is None else part / max(f.window_ns, 1) for part, f in pairs]

    columns: list[tuple[str, Literal["ns", "share", "count"], Sequence[float | None]]] = [
        ("step_ns", "ns", [f.step_ns for f in found]),
        ("window_ns", "ns", [f.window_ns for f in found]),
        ("active_ns", "ns", [f.active_ns for f in found]),
        ("idle_share", "share", shares(f.idle_ns for f in found)),
        ("host_late_share", "share", shares(f.host_late_ns for f in found)),
        ("rank_wait_share", "share", shares(f.rank_wait_ns for f in found)),
        ("caused_wait_share", "share", shares(f.caused_wait_ns for f in found)),
        ("launches", "count", [d.counts.launches for d in diagnoses]),
        ("kernels", "count", [sum(device.kernels for device in d.devices) for d in diagnoses]),
    ]
    for name, unit, column in columns:
        values = [value for value in column if value is not None]
        if len(values) == len(labels):
            yield spread(name, unit, values, labels)


def spread(
    name: str,
    unit: Literal["ns", "share", "count"],
    values: Sequence[float],
    labels: Sequence[str],
) -> Spread:
    """Least, middle and most of a figure over n ranks, and which of them stand out."""
    array = np.array(values, np.float64)
    middle = float(np.median(array))
    away = np.abs(array - middle)
    # where most ranks are alike to the last digit, the floor alone tells who is not
    usual = _DEVIATION * float(np.median(away))
    floor = FAR_SHARE * (abs(middle) if unit != "share" else 1.0)
    far = (away > FAR * usual) & (away > floor)
    low, high = int(array.argmin()), int(array.argmax())
    return Spread(
        figure=name,
        unit=unit,
        low=float(array[low]),
        median=middle,
        high=float(array[high]),
        low_label=labels[low],
        high_label=labels[high],
        outliers=[labels[at] for at in np.flatnonzero(far).tolist()]
        if len(values) >= FEWEST
        else [],
    )


def _of_all(
    measured: Sequence[tuple[RankDiagnosis, RankFigures]], late: Straggler | None
) -> list[MergedFinding]:
    """HG701 and HG702 as all ranks together show them, in place of what one alone can guess."""
    found = []
    waits = [(_saving(f), one, f) for one, f in measured]
    wait, worst, most = max(waits, key=lambda each: each[0])
    if wait:
        shown = [one.label for ns, one, f in waits if ns >= MIN_SAVING * f.window_ns]
        title = f"{worst.label} waits {duration(wait)} of its window in collectives"
        if most.untraced_wait_ns is not None:
            title = f"{worst.label} waits {duration(most.untraced_wait_ns)} a step in "
            title += "collectives, without a profiler"
        found.append(_rank_finding("HG701", title, shown or [worst.label], worst.label, wait, most))
    of_late = [f for one, f in measured if late is not None and one.label == late.label]
    if late is not None and late.clear and of_late:
        title = f"The others wait for {late.label}: last at {late.last:,} of {late.collectives:,} "
        title += f"collectives, mostly by its {late.cause}"
        ns = late.caused_wait_ns
        if late.late_ns is not None:
            title = f"The others wait for {late.label}, mostly by its {late.cause}"
            ns = wait
        one = _rank_finding("HG702", title, [late.label], late.label, ns, of_late[0])
        found.append(msgspec.structs.replace(one, site=late.site, count=late.last))
    return found


def _saving(of: RankFigures) -> int:
    """What a rank's waits cost it in its window, ns: as measured without a profiler, in proportion,
    else no more than it waits beside no other kernel."""
    if of.untraced_lost_ns is not None and of.untraced_step_ns:
        return round(of.untraced_lost_ns / of.untraced_step_ns * of.window_ns)
    return of.exposed_wait_ns or 0


def _rank_finding(
    code: str, title: str, labels: list[str], worst: str, ns: int, of: RankFigures
) -> MergedFinding:
    rule = load_rules(()).rules[code]
    share = ns / max(of.window_ns, 1)
    severity = "error" if share >= ERROR_SAVING else "warning" if share >= MIN_SAVING else "info"
    return MergedFinding(
        code=code,
        name=rule.name,
        severity=severity,  # type: ignore[arg-type]
        title=title,
        site=None,
        labels=labels,
        worst=worst,
        count=of.collectives,
        predicted_saving_ns=ns,
        predicted_saving_low_ns=None,
        predicted_saving_share=share,
        median_saving_ns=None,
        advice=rule.advice,
        fix=None,
    )


def merged(
    workers: Sequence[RankDiagnosis], of_all: Sequence[MergedFinding] | None = None
) -> list[MergedFinding]:
    """Findings of several ranks, those of one rule at one place put together; the costliest first.

    Args:
        workers: the ranks.
        of_all: what all ranks together show of waits for one another; the estimates that single
            ranks make of those are then left out.
    """
    groups: dict[tuple[object, ...], list[tuple[RankDiagnosis, Finding]]] = {}
    for one in workers:
        for finding in one.diagnosis.findings if one.diagnosis is not None else ():
            if of_all is not None and finding.code == "HG701":
                continue
            site = finding.site
            where = None if site is None else (site.file, site.line, site.function, site.op)
            groups.setdefault((finding.code, where), []).append((one, finding))
    found = [_merged(group) for group in groups.values()] + list(of_all or ())
    found.sort(
        key=lambda f: (
            -_SEVERITIES.index(f.severity),
            -(f.predicted_saving_share or 0.0),
            -len(f.labels),
            f.code,
        )
    )
    return found


def _merged(group: Sequence[tuple[RankDiagnosis, Finding]]) -> MergedFinding:
    worst, finding = max(
        group, key=lambda pair: (pair[1].predicted_saving_share or 0.0, pair[1].count)
    )
    savings = [f.predicted_saving_ns for _, f in group if f.predicted_saving_ns is not None]
    return MergedFinding(
        code=finding.code,
        name=finding.name,
        severity=max((f.severity for _, f in group), key=_SEVERITIES.index),
        title=finding.title,
        site=finding.site,
        labels=list(dict.fromkeys(one.label for one, _ in group)),
        worst=worst.label,
        count=sum(f.count for _, f in group),
        predicted_saving_ns=finding.predicted_saving_ns,
        predicted_saving_low_ns=finding.predicted_saving_low_ns,
        predicted_saving_share=finding.predicted_saving_share,
        median_saving_ns=round(float(np.median(savings))) if savings else None,
        advice=finding.advice,
        fix=finding.fix,
    )
