"""One rank, from its file to what is kept of it: what runs in a process of its own."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hostgap.analysis.edit import Edit
from hostgap.analysis.examine import Analysis, Options, examine
from hostgap.analysis.metrics import diagnose
from hostgap.analysis.part import load_part
from hostgap.analysis.whatif import Replay
from hostgap.diagnosis.judge import Judging, judge
from hostgap.diagnosis.model import Diagnosis
from hostgap.diagnosis.run import load_run, run_trace
from hostgap.errors import HostgapError
from hostgap.profiling.rundir import NAME as MEASUREMENT
from hostgap.profiling.rundir import read_measurement
from hostgap.ranks.arrivals import Arrivals, arrivals_of
from hostgap.ranks.names import recorded_rank
from hostgap.ranks.work import Work, work_of
from hostgap.trace.load import load_trace
from hostgap.trace.lookalikes import OtherDocument
from hostgap.trace.model import Int64
from hostgap.trace.remote import is_url

COST_EVENTS = 20_000  # calls and ops replayed: of waits that vary from step to step, many steps


@dataclass(frozen=True, slots=True)
class Job:
    """A trace to diagnose.

    Attributes:
        index: its place among the jobs.
        name: path or URL of the trace, or a run directory.
        size: bytes, 0 when unknown.
        options, judging: as for one trace.
        waits: rows of gpu_ops of its collectives, and what it waits in each, ns: to be asked only
            what its step would be without, once that is known. None for a diagnosis.
    """

    index: int
    name: str
    size: int
    options: Options
    judging: Judging
    waits: tuple[Int64, Int64] | None = None


class WaitCost(NamedTuple):
    """What a rank's step would be shorter by without its waits, and its length; medians, ns."""

    ns: int
    step_ns: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job: a diagnosis, or why there is none.

    Attributes:
        index: of the job.
        rank: what the trace itself says it is.
        arrivals: its collectives, None without any.
        work: what its host and GPU do, None without collectives.
        cost: what its waits cost, of a job that asks that; None where a replay cannot say.
        error, hint: why there is no diagnosis.
        other: as the file is whole, and something else than a trace.
        internal: as hostgap itself failed.
    """

    index: int
    diagnosis: Diagnosis | None = None
    rank: int | None = None
    arrivals: Arrivals | None = None
    work: Work | None = None
    cost: WaitCost | None = None
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
    judging, options, part, stacks = job.judging, job.options, None, None
    try:
        if not is_url(job.name) and (Path(job.name) / MEASUREMENT).is_file():
            measurement = read_measurement(Path(job.name))
            trace = load_run(Path(job.name), measurement)
            judging = replace(judging, calibration=None).of_run(measurement)
            if job.waits is None and any(one.mode == "stacks" for one in measurement.passes):
                stacks = load_trace(run_trace(Path(job.name), measurement, "stacks"))
        else:
            part = load_part(job.name, options)
            trace = part.trace if part is not None else load_trace(job.name)
            options = part.options if part is not None else options
        analysis = examine(trace, options)
        if job.waits is not None:
            return Outcome(job.index, cost=_wait_cost(analysis, *job.waits))
        diagnosis = judge(diagnose(analysis), analysis, judging)
        if part is not None:
            diagnosis = part.renumbered(diagnosis)
        arrivals = arrivals_of(analysis)
        work = None
        if arrivals is not None:
            # places are those of the recording with stacks, which has the same steps
            placed = examine(stacks, options) if stacks is not None else analysis
            work = work_of(placed, arrivals.device)
        rank = recorded_rank(trace.metadata)
        return Outcome(job.index, diagnosis, rank, arrivals, work)
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


def _wait_cost(analysis: Analysis, rows: Int64, waits: Int64) -> WaitCost | None:
    """What a rank's step would be shorter by, had it not waited in its collectives.

    Not the sum of its waits: a rank whose host is hardly faster than the one it waits for would
    idle instead.

    Args:
        analysis: of its trace.
        rows: of gpu_ops.
        waits: within each, ns.
    """
    steps = analysis.steps
    stepped = steps.marks.source != "whole" and len(analysis.chosen) > 0
    if len(rows) == 0 or not stepped or not analysis.clock.reconciled:
        return None
    gpu = analysis.trace.gpu_ops
    replay = Replay(analysis, int(gpu.device[rows[0]]), COST_EVENTS)
    left = (gpu.end - gpu.start)[rows] - waits
    gains = replay.gains(Edit(length=dict(zip(rows.tolist(), left.tolist(), strict=True))))
    length = np.diff(steps.boundaries[replay.steps.start : replay.steps.stop + 1])
    return WaitCost(max(0, int(np.median(gains))), int(np.median(length)))
