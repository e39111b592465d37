"""What a report is about: runs (traces, ranks, run directories), a ladder of fixes, or both."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hostgap.analysis.examine import Analysis
from hostgap.diagnosis.model import Diagnosis
from hostgap.fixes.report import FixReport
from hostgap.profiling.measurement import Measurement
from hostgap.ranks.model import DiagnosisSet
from hostgap.report.geometry import geometry
from hostgap.report.kernels import Kernels, kernels
from hostgap.report.timeline import timeline

NO_EVENTS = "The trace has no events to draw."
BARE_JSON = (
    "This page was made from a diagnosis alone, which holds no events. For the timeline and the "
    "kernels give the trace or the run directory: hostgap report RUNDIR -o r.html"
)


@dataclass(frozen=True, slots=True)
class Run:
    """One diagnosed trace, ready to be laid out.

    Attributes:
        label: what the picker calls it.
        events: the timeline's data; None where there is none, and `notes` say why.
        notes: what was merged or left out.
        kernels: None where the trace is not at hand.
        measurement: what a run directory holds beside its traces.
    """

    label: str
    diagnosis: Diagnosis
    events: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    kernels: Kernels | None = None
    measurement: Measurement | None = None
    clock: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Page:
    """All that one HTML file shows. With `base`, the first run is compared with it; `ranks` says
    what the runs show together, where they are the ranks of one job."""

    runs: list[Run] = field(default_factory=list)
    ladder: FixReport | None = None
    base: Run | None = None
    ranks: DiagnosisSet | None = None


def run_of_trace(
    analysis: Analysis,
    diagnosis: Diagnosis,
    path: Path | None,
    *,
    label: str | None = None,
    measurement: Measurement | None = None,
    budget: int | None = None,
) -> Run:
    """A run with its timeline and kernels.

    Args:
        analysis: the tables behind `diagnosis`.
        path: the trace, None where it cannot be read again (standard input).
        label: for the picker; the trace's name by default.
        budget: events to show one by one; as many as a page of one run holds by default.
    """
    made = timeline(analysis, diagnosis, budget)
    events, notes = made if made is not None else (None, [NO_EVENTS])
    clock = analysis.clock
    moved = []
    if clock.corrected:
        moved.append(
            f"Host times were moved by {clock.offset_ns / 1e3:+,.1f} us onto the GPU's clock."
        )
    if not clock.reconciled:
        moved.append("Host and GPU clocks contradict each other: host causes cannot be told.")
    return Run(
        label or name_of(diagnosis),
        diagnosis,
        events,
        notes,
        kernels(analysis, geometry(path) if path is not None else {}),
        measurement,
        moved,
    )


def run_of_json(diagnosis: Diagnosis, label: str | None = None, why: str = BARE_JSON) -> Run:
    """A run without events, and why it has none."""
    return Run(label or name_of(diagnosis), diagnosis, notes=[why])


def name_of(diagnosis: Diagnosis) -> str:
    """The trace's file, without its folder."""
    return diagnosis.trace.file.replace("\\", "/").rsplit("/", 1)[-1] or "trace"
