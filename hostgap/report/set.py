"""The runs on the page of several traces: those whose GPU idles most with their timelines."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from hostgap.analysis.examine import Options, examine
from hostgap.analysis.part import load_part
from hostgap.diagnosis.model import Diagnosis
from hostgap.diagnosis.run import load_run, run_trace
from hostgap.errors import HostgapError, TraceError
from hostgap.output.printable import printable
from hostgap.profiling.rundir import is_run_dir, read_measurement
from hostgap.ranks.model import DiagnosisSet, RankDiagnosis
from hostgap.report import thinning
from hostgap.report.run import Run, run_of_json, run_of_trace
from hostgap.trace.load import load_trace
from hostgap.trace.remote import is_url

MOST_TIMELINES = 8
LEAST_EVENTS = 40_000  # that each of them shows one by one
NOT_IDLEST = (
    f"Timelines are shown of the {MOST_TIMELINES} ranks whose GPU idles most. For the one of this "
    "rank: hostgap report TRACE -o r.html"
)

Reading = Callable[[str], AbstractContextManager[Callable[[int], None] | None]]


def runs_of_set(together: DiagnosisSet, options: Options, reading: Reading) -> list[Run]:
    """A run for each rank that was diagnosed.

    Where the ranks were diagnosed no events are kept, so the idlest traces are read once more. One
    that cannot be (it lies where only the workers of a cluster see it) is shown without timeline.

    Args:
        options: those of the diagnoses.
        reading: given a file, a context that gives a callback for the bytes read so far, or None.
    """
    known = [(one, one.diagnosis) for one in together.ranks if one.diagnosis is not None]
    idlest = sorted(known, key=lambda pair: -_idle_share(pair[0]))[:MOST_TIMELINES]
    files = {one.file for one, _ in idlest}
    budget = max(LEAST_EVENTS, thinning.BUDGET // max(1, len(idlest)))
    runs = []
    for one, diagnosis in known:
        if one.file not in files:
            runs.append(run_of_json(diagnosis, one.label, NOT_IDLEST))
            continue
        try:
            runs.append(_with_events(one, diagnosis, options, reading, budget))
        except HostgapError as error:
            why = f"No timeline: the trace could not be read again: {printable(error.message, 300)}"
            runs.append(run_of_json(diagnosis, one.label, why))
    return runs


def _with_events(
    one: RankDiagnosis, diagnosis: Diagnosis, options: Options, reading: Reading, budget: int
) -> Run:
    path, measurement = one.file, None
    with reading(path) as progress:
        if not is_url(path) and is_run_dir(Path(path)):
            measurement = read_measurement(Path(path))
            trace = load_run(Path(path), measurement, progress=progress)
            path = str(run_trace(Path(path), measurement))
        elif not is_url(path) and not Path(path).is_file():
            raise TraceError(f"{path}: not a regular file")  # a pipe gives nothing twice
        elif (part := load_part(path, options, progress=progress)) is not None:
            trace, options = part.trace, part.options
        else:
            trace = load_trace(path, progress=progress)
    again = Path(path) if not is_url(path) and Path(path).is_file() else None
    return run_of_trace(
        examine(trace, options),
        diagnosis,
        again,
        label=one.label,
        measurement=measurement,
        budget=budget,
    )


def _idle_share(one: RankDiagnosis) -> float:
    figures = one.figures
    return figures.idle_ns / max(1, figures.window_ns) if figures is not None else 0.0
