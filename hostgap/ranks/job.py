"""One rank, from its file to what is kept of it: what runs in a process of its own."""

from __future__ import annotations

import gc
import re
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
from hostgap.profiling.measurement import Waits
from hostgap.profiling.rundir import NAME as MEASUREMENT
from hostgap.profiling.rundir import read_measurement
from hostgap.ranks.arrivals import Arrivals, arrivals_of
from hostgap.ranks.names import recorded_rank
from hostgap.ranks.work import Work, work_of
from hostgap.trace.load import load_trace
from hostgap.trace.lookalikes import OtherDocument
from hostgap.trace.model import Int64, Role
from hostgap.trace.remote import is_url

MOST_UNSEEN = 0.1  # of the collectives of a step
_ROOTED = re.compile("Kernel_(Broadcast|SendRecv|Reduce_)")
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
        untraced: what it waits for others without a profiler, None where that was not measured.
        note: why that does not count.
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
    untraced: Waits | None = None
    note: str | None = None
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
    untraced, graph_calls, note = None, [], None
    try:
        if not is_url(job.name) and (Path(job.name) / MEASUREMENT).is_file():
            measurement = read_measurement(Path(job.name))
            trace = load_run(Path(job.name), measurement)
            judging = replace(judging, calibration=None).of_run(measurement)
            untraced = measurement.waits
            graph_calls = [one.call_ns for one in measurement.graphs]
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
            work = work_of(placed, arrivals.device, graph_calls)
            if untraced is not None and (note := _unseen(untraced, arrivals, analysis)) is not None:
                untraced = None
        rank = recorded_rank(trace.metadata)
        return Outcome(job.index, diagnosis, rank, arrivals, work, untraced, note)
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


def _unseen(untraced: Waits, arrivals: Arrivals, analysis: Analysis) -> str | None:
    """Why the waits measured without a profiler are not all there are; None where they are.

    In a compiled graph, or where the host does not wait for them, collectives were not seen. Those
    of a CUDA graph were, with it.
    """
    steps = len(analysis.chosen) if analysis.options.window == "steps" else 0
    if steps == 0:
        return None
    trace = analysis.trace
    call = trace.gpu_ops.call[arrivals.row]
    single = (call >= 0) & (trace.api_calls.role[call] != Role.GRAPH_LAUNCH) & arrivals.counted
    # a root may leave a broadcast before the others come: those are not looked at
    rows = trace.gpu_ops.name[arrivals.row[single]].tolist()
    recorded = sum(not _ROOTED.search(trace.names[name]) for name in rows) / steps
    if ((call >= 0) & ~single & arrivals.counted).any() and untraced.replays == 0:
        return "its graph replays were not seen without a profiler: the recording says who waits"
    if recorded - untraced.collectives <= MOST_UNSEEN * recorded:
        return None
    return (
        f"{untraced.collectives:.0f} of {recorded:.0f} collectives a step were seen without a "
        "profiler: the recording says who waits"
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
