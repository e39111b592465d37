"""Steps of the workload: where they begin, which ops are theirs, when the GPU worked on each.

A step is a GPU period: from the end of the last GPU op of the step before to the end of its own
last one. Its ops are those launched (by correlation, never by time overlap) between the host start
of the step and that of the next, so sampling and scheduling after an annotation belong to the step
before. Periods tile the window: nothing overlaps, nothing falls between two steps.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.clock import Clock
from hostgap.analysis.intervals import covers, union
from hostgap.errors import HostgapError
from hostgap.trace.model import HostKind, Int32, Int64, Role, Trace

MIN_STEPS_FOR_FILL = 3  # from here on the first step is the pipeline's fill, and not counted
MIN_REPEATS = 3  # of a cycle
NONE = -1


Source = Literal["annotation", "nvtx", "cycle", "whole"]


@dataclass(frozen=True, slots=True)
class StepMarks:
    """Where n steps begin on the host (GPU clock), before ops are assigned.

    Attributes:
        source: annotation, nvtx, cycle or whole.
        start: n host starts, sorted.
        label: n names, "" where they have none.
        thread: the thread (code) that marks the steps, -1 without one.
        stop: host time from which on nothing belongs to a step any more, None without one.
    """

    source: Source
    start: Int64
    label: tuple[str, ...]
    thread: int = NONE
    stop: int | None = None


# Annotations that mark a step, in order of preference.
_STEP_NAMES = (
    re.compile(r"^ProfilerStep#\d+$"),
    re.compile(r"^execute_(?:new_)?(?:context|model|generation|\d).*"),  # vLLM
    re.compile(r"^step\[.*\]$"),  # SGLang
)
# What only numbers steps: no place in the program, no kind of step.
NUMBERED_STEP = re.compile(r"(?:ProfilerStep|\w*step|\w*iter\w*)\W*\d+", re.IGNORECASE)


def find_steps(trace: Trace, clock: Clock, marker: str | None = None) -> StepMarks:
    """Where the steps of a trace begin.

    Tried in order: `marker`, ProfilerStep#, serving engines' annotations, NVTX ranges that repeat,
    a repeating cycle of launches, the whole trace.

    Args:
        marker: a regular expression searched in the names of annotations and ops.

    Raises:
        HostgapError: `marker` is not a regular expression, or matches nothing.
    """
    if marker is not None:
        return _marked(trace, clock, marker)
    for pattern in _STEP_NAMES:
        marks = _annotated(trace, clock, pattern, (HostKind.ANNOTATION,))
        if marks is not None:
            return marks
    return _ranges(trace, clock) or _cycle(trace, clock) or _whole(trace, clock)


def _marked(trace: Trace, clock: Clock, marker: str) -> StepMarks:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of syntax that a later Python may read otherwise
            pattern = re.compile(marker)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise HostgapError(
            f"--step-marker {marker!r} is not a regular expression: {error}"
        ) from error
    marks = _annotated(trace, clock, pattern, (HostKind.ANNOTATION, HostKind.OP))
    if marks is None:
        rows = trace.host_ops.kind == HostKind.ANNOTATION
        names = [trace.names[c] for c in np.unique(trace.host_ops.name[rows])[:5]]
        known = f"annotations: {', '.join(names)}" if names else "the trace has no annotations"
        raise HostgapError(f"--step-marker {marker!r} matches nothing in {trace.file}", known)
    return marks


def _annotated(
    trace: Trace, clock: Clock, pattern: re.Pattern[str], kinds: Sequence[HostKind]
) -> StepMarks | None:
    """Steps that begin at host ops with a matching name: outermost ones, of the busiest thread."""
    ops = trace.host_ops
    match = np.array([pattern.search(name) is not None for name in trace.names], np.bool_)
    rows = np.flatnonzero(match[ops.name] & np.isin(ops.kind, kinds))
    if len(rows) == 0:
        return None
    thread = np.bincount(ops.thread[rows]).argmax()
    rows = rows[ops.thread[rows] == thread]
    return _marks(trace, clock, rows, "annotation")


def _marks(trace: Trace, clock: Clock, rows: NDArray[np.intp], source: Source) -> StepMarks:
    """Steps that begin at the outermost of some host ops of one thread."""
    ops = trace.host_ops
    outermost: list[int] = []
    reach = np.iinfo(np.int64).min
    for row in rows.tolist():
        if ops.start[row] >= reach:
            outermost.append(row)
            reach = int(ops.end[row])
    start, end = clock.to_gpu(ops.start[outermost]), clock.to_gpu(ops.end[outermost])
    labels = tuple(trace.names[code] for code in ops.name[outermost])
    # the last step may be followed by as much as any other was, and not by all the rest
    tail = int((start[1:] - end[:-1]).max()) if len(start) > 1 else 0
    stop = int(end[-1]) + tail if len(start) > 1 else None
    return StepMarks(source, start, labels, int(ops.thread[rows[0]]), stop)


def _ranges(trace: Trace, clock: Clock) -> StepMarks | None:
    """NVTX ranges with one name, numbers aside (`step#7`, `decode 12`), around most launches.

    Launches of the ranges' own process count, whichever of its threads they come from (autograd
    launches the backward pass from another). Of several such names the one that most launches lie
    under wins, the outermost among equals. Only Nsight exports: there NVTX is how a program marks
    its steps.
    """
    if trace.source != "nsys":
        return None
    ops, api = trace.host_ops, trace.api_calls
    launches = np.flatnonzero(np.isin(api.role, (Role.LAUNCH, Role.GRAPH_LAUNCH)))
    notes = np.flatnonzero(ops.kind == HostKind.ANNOTATION)
    if len(launches) == 0 or len(notes) == 0:
        return None
    by_name: dict[tuple[int, str], list[int]] = {}
    for row in notes.tolist():
        name = re.sub(r"\d+", "#", trace.names[ops.name[row]])
        by_name.setdefault((int(ops.thread[row]), name), []).append(row)
    process = np.array([thread.process for thread in trace.threads])
    launched_by = process[api.thread[launches]]
    best: tuple[int, int, list[int], NDArray[np.intp]] | None = None  # sizes, rows, launches
    for (thread, _), rows in by_name.items():
        if len(rows) < MIN_REPEATS:
            continue
        inside = union(ops.start[rows], ops.end[rows])
        own = launches[launched_by == process[thread]]
        under = own[covers(inside, api.start[own])]
        rank = (len(under), -len(rows))
        if len(under) * 2 > len(own) and (best is None or rank > best[:2]):
            best = (*rank, rows, under)
    if best is None:
        return None
    marks = _marks(trace, clock, np.array(best[2]), "nvtx")
    threads = np.bincount(api.thread[best[3]], minlength=len(trace.threads))
    # start/end ranges may stand on no thread of the program
    return marks if threads[marks.thread] else replace(marks, thread=int(threads.argmax()))


def _whole(trace: Trace, clock: Clock) -> StepMarks:
    launched = trace.gpu_ops.call[trace.gpu_ops.call >= 0]
    times = [int(clock.to_gpu(trace.api_calls.start[launched]).min())] if len(launched) else []
    if len(trace.gpu_ops):
        times.append(int(trace.gpu_ops.start[0]))
    return StepMarks("whole", np.array([min(times)] if times else [0], np.int64), ("",))


def _cycle(trace: Trace, clock: Clock) -> StepMarks | None:
    """A sequence of launches that repeats at least three times in a row.

    What is launched is told by the kernels' names; a graph by its size and its first node. Of all
    periods the one whose repetition covers most of the trace wins, the shortest among equals: the
    layers of a model repeat too, but their repetition breaks off at each step's end.
    """
    api, gpu = trace.api_calls, trace.gpu_ops
    if len(api) == 0 or len(gpu) == 0:
        return None
    launches = np.flatnonzero(np.isin(api.role, (Role.LAUNCH, Role.GRAPH_LAUNCH)))
    if len(launches) < MIN_REPEATS:
        return None
    thread = np.bincount(api.thread[launches]).argmax()
    launches = launches[api.thread[launches] == thread]
    symbols = _symbols(trace, launches)
    is_graph = api.role[launches] == Role.GRAPH_LAUNCH
    best: tuple[int, int, int] | None = None  # covered, -period, first
    for period in _candidate_periods(symbols):
        first, length = _longest_run(symbols[:-period] == symbols[period:])
        covered = length + period
        if covered >= MIN_REPEATS * period and (
            best is None or (covered, -period) > (best[0], best[1])
        ):
            best = (covered, -period, first)
    if best is None or best[0] * 2 < len(launches):
        return None
    covered, period, first = best[0], -best[1], best[2]
    if period < 2 and not is_graph[first]:
        return None  # one kernel over and over is a benchmark loop, not a step
    start = clock.to_gpu(api.start[launches])
    # a step begins where the host paused longest before launching
    pause = (
        start[first : first + covered]
        - clock.to_gpu(api.end[launches])[np.maximum(np.arange(first, first + covered) - 1, 0)]
    )
    whole = covered // period
    medians = np.median(pause[: whole * period].reshape(whole, period), axis=0)
    first += int(medians.argmax())
    count = (covered - int(medians.argmax())) // period
    if count < MIN_REPEATS:
        first, count = best[2], whole
    begin = first + period * np.arange(count)
    after = first + period * count
    stop = int(start[after]) if after < len(launches) else None
    return StepMarks("cycle", start[begin], ("",) * count, int(thread), stop)


def _symbols(trace: Trace, launches: NDArray[np.intp]) -> Int64:
    """What each launch launched, as a number: its first op's name and its number of ops."""
    gpu = trace.gpu_ops
    launched = np.flatnonzero(gpu.call >= 0)
    calls, first, count = np.unique(gpu.call[launched], return_index=True, return_counts=True)
    name = np.full(len(trace.api_calls), -1, np.int64)
    size = np.zeros(len(trace.api_calls), np.int64)
    name[calls] = gpu.name[launched[first]]
    size[calls] = count
    pairs = np.stack([name[launches], size[launches]], axis=1)
    return np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _candidate_periods(symbols: Int64, most: int = 64) -> list[int]:
    """Distances at which symbols recur, the most telling first: those of the rarest symbols."""
    longest = len(symbols) // MIN_REPEATS
    codes, counts = np.unique(symbols, return_counts=True)
    periods: dict[int, None] = {}
    for code in codes[np.argsort(counts, kind="stable")]:
        at = np.flatnonzero(symbols == code)
        if len(at) < MIN_REPEATS:
            continue
        for reach in (1, 2, 3, 4):
            distances, often = np.unique(at[reach:] - at[:-reach], return_counts=True)
            for distance in distances[np.argsort(-often)][:3].tolist():
                if 0 < distance <= longest:
                    periods[distance] = None
        if len(periods) >= most:
            break
    return list(periods)[:most]


def _longest_run(flags: NDArray[np.bool_]) -> tuple[int, int]:
    """First index and length of the longest run of True."""
    edges = np.diff(np.concatenate(([0], flags.view(np.int8), [0])))
    begin, end = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    if len(begin) == 0:
        return 0, 0
    longest = int((end - begin).argmax())
    return int(begin[longest]), int(end[longest] - begin[longest])


@dataclass(frozen=True, slots=True)
class Steps:
    """n steps with their ops and periods.

    Attributes:
        marks: where they begin on the host.
        op_step: step of each GPU op (row of gpu_ops), -1 for none.
        call_step: step of each API call by its start, -1 for none.
        boundaries: n + 1 times; the period of step k is `[boundaries[k], boundaries[k + 1])`.
        fill: the first step is the pipeline's fill.
    """

    marks: StepMarks
    op_step: Int32
    call_step: Int32
    boundaries: Int64
    fill: bool

    def __len__(self) -> int:
        return len(self.marks.start)

    @property
    def counted(self) -> range:
        """The steps that verdict and figures are about, unless others are chosen."""
        return range(1 if self.fill else 0, len(self))


def assign_steps(
    trace: Trace, clock: Clock, marks: StepMarks, devices: Sequence[int] | None = None
) -> Steps:
    """Give GPU ops and API calls their steps, and each step its period.

    Args:
        devices: codes of the devices whose ops end a period; None for all.
    """
    gpu, api = trace.gpu_ops, trace.api_calls
    call_time = clock.to_gpu(api.start)
    call_step = _step_at(call_time, marks)
    launched = gpu.call >= 0
    begun = gpu.start.copy()  # an orphan has nothing but its own start
    begun[launched] = call_time[gpu.call[launched]]
    op_step = _step_at(begun, marks)
    n = len(marks.start)
    ends = np.full(n + 1, marks.start[0], np.int64)
    counts = np.ones(len(gpu), np.bool_) if devices is None else np.isin(gpu.device, devices)
    mine = counts & (op_step >= 0)
    np.maximum.at(ends, op_step[mine] + 1, gpu.end[mine])
    earlier = gpu.end[counts & (begun < marks.start[0])]
    if n >= MIN_STEPS_FOR_FILL and len(earlier):
        ends[0] = max(int(ends[0]), int(earlier.max()))  # the first step waits for older work
    boundaries = np.maximum.accumulate(ends)
    return Steps(marks, op_step, call_step, boundaries, n >= MIN_STEPS_FOR_FILL)


def _step_at(time: Int64, marks: StepMarks) -> Int32:
    step = np.searchsorted(marks.start, time, "right").astype(np.int32) - 1
    if marks.stop is not None:
        step[time >= marks.stop] = NONE
    return step.astype(np.int32)
