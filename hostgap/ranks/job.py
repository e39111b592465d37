"""One rank, from its file to what is kept of it: what runs in a process of its own."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from pathlib import Path

from hostgap.analysis.examine import Options, examine
from hostgap.analysis.metrics import diagnose
from hostgap.analysis.part import load_part
from hostgap.diagnosis.judge import Judging, judge
from hostgap.diagnosis.model import Diagnosis
from hostgap.diagnosis.run import load_run
from hostgap.errors import HostgapError
from hostgap.profiling.rundir import NAME as MEASUREMENT
from hostgap.profiling.rundir import read_measurement
from hostgap.ranks.arrivals import Arrivals, arrivals_of
from hostgap.ranks.names import recorded_rank
from hostgap.trace.load import load_trace
from hostgap.trace.lookalikes import OtherDocument
from hostgap.trace.remote import is_url


@dataclass(frozen=True, slots=True)
class Job:
    """A trace to diagnose.

    Attributes:
        index: its place among the jobs.
        name: path or URL of the trace, or a run directory.
        size: bytes, 0 when unknown.
        options, judging: as for one trace.
    """

    index: int
    name: str
    size: int
    options: Options
    judging: Judging


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job: a diagnosis, or why there is none.

    Attributes:
        index: of the job.
        rank: what the trace itself says it is.
        arrivals: its collectives, None without any.
        error, hint: why there is no diagnosis.
        other: as the file is whole, and something else than a trace.
        internal: as hostgap itself failed.
    """

    index: int
    diagnosis: Diagnosis | None = None
    rank: int | None = None
    arrivals: Arrivals | None = None
    error: str | None = None
    hint: str | None = None
    other: bool = False
    internal: bool = False


def run_job(job: Job) -> Outcome:
    """Read and diagnose one trace. Only the result is kept, and no table of the trace.

    A trace that cannot be read is an outcome, too: it must not end the others.
    """
    try:
        return _outcome(job)
    finally:
        # an analysis lies in cycles of references, and the next trace is not to come on top of it
        gc.collect()


def _outcome(job: Job) -> Outcome:
    judging, options, part = job.judging, job.options, None
    try:
        if not is_url(job.name) and (Path(job.name) / MEASUREMENT).is_file():
            measurement = read_measurement(Path(job.name))
            trace = load_run(Path(job.name), measurement)
            judging = replace(judging, calibration=None).of_run(measurement)
        else:
            part = load_part(job.name, options)
            trace = part.trace if part is not None else load_trace(job.name)
            options = part.options if part is not None else options
        analysis = examine(trace, options)
        diagnosis = judge(diagnose(analysis), analysis, judging)
        if part is not None:
            diagnosis = part.renumbered(diagnosis)
        return Outcome(job.index, diagnosis, recorded_rank(trace.metadata), arrivals_of(analysis))
    except HostgapError as error:
        other = isinstance(error, OtherDocument)
        return Outcome(job.index, error=error.message, hint=error.hint, other=other)
    except MemoryError:
        return Outcome(
            job.index,
            error=f"{job.name}: not enough memory",
            hint="run fewer at once (--jobs), or fewer steps (--steps)",
        )
    except Exception as error:  # noqa: BLE001  a bug that one trace meets must not lose the others
        return Outcome(
            job.index,
            error=f"{job.name}: internal error: {type(error).__name__}: {error}",
            hint=f"Please report it with the output of: hostgap analyze {job.name} --debug",
            internal=True,
        )
