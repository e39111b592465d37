"""Can this trace be trusted at all? Answered before any number is given.

Every reason has a code, and one verdict that it alone would give; the trace's verdict is the worst
of them. `REASONS` is the table; docs/integrity.md shows it, and a test keeps the two alike.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.causes import Cause, overhead_cause
from hostgap.analysis.clock import Clock
from hostgap.analysis.intervals import Intervals, clip, covers, overlap, union
from hostgap.analysis.parts import Pieces
from hostgap.analysis.steps import Steps
from hostgap.analysis.syncs import capture_spans
from hostgap.trace.model import Bool, GpuKind, HostKind, Int64, ReadReport, Role, Trace

LONG_WAIT_NS = 100_000  # that an op waits although it was launched; between ops usual are a few us
SUSPICIOUS_NS = 100_000  # of idle time under a wait, before it is suspicious


class Verdict(enum.IntEnum):
    """How far the figures go."""

    OK = 0
    PARTIAL = 1  # right for what was recorded; something is missing or was corrected
    UNMEASURABLE = 2  # no utilization can be given

    @property
    def label(self) -> Literal["ok", "partial", "unmeasurable"]:
        """The name used in every output."""
        labels: tuple[Literal["ok", "partial", "unmeasurable"], ...] = (
            "ok",
            "partial",
            "unmeasurable",
        )
        return labels[self]


@dataclass(frozen=True, slots=True)
class ReasonKind:
    """A row of the table: what it means, the verdict it gives, and what to do about it."""

    code: str
    verdict: Verdict
    meaning: str
    remedy: str


_PARTIAL, _UNMEASURABLE, _OK = Verdict.PARTIAL, Verdict.UNMEASURABLE, Verdict.OK
REASONS: dict[str, ReasonKind] = {
    reason.code: reason
    for reason in (
        ReasonKind(
            "HG903",
            _PARTIAL,
            "some launches have no kernel: dropped, or not recorded",
            "Expected where recording began or ended between a launch and its kernel; otherwise "
            "record fewer steps, so that the profiler's buffers hold them all.",
        ),
        ReasonKind(
            "HG904",
            _PARTIAL,
            "host and GPU clocks disagree",
            "Corrected: nothing to do, but gaps of a few us may be charged to a neighbour. Not "
            "reconcilable: causes on the host are withheld; record again.",
        ),
        ReasonKind(
            "HG905",
            _PARTIAL,
            "graph-level rows: nodes inside the graphs are not visible",
            "For the gaps inside a graph, record with node-level graph tracing.",
        ),
        ReasonKind(
            "HG910",
            _UNMEASURABLE,
            "no GPU op was recorded",
            "Profile with `ProfilerActivity.CUDA` and let at least one step finish; check CUPTI "
            "and its permissions with `hostgap doctor`.",
        ),
        ReasonKind(
            "HG911",
            _UNMEASURABLE,
            "most launches have no kernel",
            "The profiler dropped GPU records: record fewer steps, and let the GPU finish before "
            "the profiler stops.",
        ),
        ReasonKind(
            "HG912",
            _UNMEASURABLE,
            "graph launches without nodes and without a graph row",
            "The profiler recorded no work of CUDA graphs: update the driver and torch, or "
            "profile without graphs.",
        ),
        ReasonKind(
            "HG913",
            _UNMEASURABLE,
            "no GPU op has a usable time, or none has a length",
            "The profiler lost the GPU's timestamps: record again, with a newer torch if it "
            "happens each time.",
        ),
        ReasonKind(
            "HG914",
            _PARTIAL,
            "CPU-only frontend process of a serving engine",
            "Analyse the trace of a worker process: the engine writes one file per process.",
        ),
        ReasonKind(
            "HG920",
            _PARTIAL,
            "the file is truncated",
            "Figures are of what comes before the end. Let the profiler finish writing, or copy "
            "the file again.",
        ),
        ReasonKind(
            "HG921",
            _PARTIAL,
            "parts of the file are damaged and were dropped",
            "Copy the file again; where it came like this, the first damaged place is named.",
        ),
        ReasonKind(
            "HG922",
            _OK,
            "text that strict JSON refuses was repaired",
            "Nothing: no figure depends on it.",
        ),
        ReasonKind(
            "HG923",
            _PARTIAL,
            "events without usable times were dropped",
            "Few of them change little. Many: record again.",
        ),
        ReasonKind(
            "HG924",
            _OK,
            "host events that end before they start were dropped",
            "Nothing: their API calls still count.",
        ),
        ReasonKind(
            "HG925",
            _PARTIAL,
            "correlation ids shared by several launches join nothing",
            "Often several processes in one file: analyse them one by one for the causes of their"
            " gaps.",
        ),
        ReasonKind(
            "HG926",
            _PARTIAL,
            "much of the idle time has no launching call",
            "Record the CUDA calls too; where recording began in the middle of a step, choose "
            "later steps with `--steps`.",
        ),
        ReasonKind(
            "HG927",
            _PARTIAL,
            "the recording tool says that it lost events",
            "nsys itself says so in the export: let the application end by itself, or record less.",
        ),
        ReasonKind(
            "HG928",
            _PARTIAL,
            "API calls were not recorded",
            "Without them no gap has a host cause: record with `nsys profile --trace=cuda`.",
        ),
        ReasonKind(
            "HG930",
            _PARTIAL,
            "the profiler stopped the host inside the window",
            "This time is under the cause `profiler`, and is not there without one. Larger "
            "buffers or fewer steps avoid it.",
        ),
        ReasonKind(
            "HG931",
            _PARTIAL,
            "steps without GPU work",
            "The marks may not be the workload's steps: try `--step-marker`.",
        ),
        ReasonKind(
            "HG932",
            _PARTIAL,
            "several profiler cycles in one file",
            "Idle time between the cycles counts. Choose the steps of one with `--steps`.",
        ),
        ReasonKind(
            "HG933",
            _PARTIAL,
            "one GPU op holds nearly all busy time",
            "The GPU is busy, but not with these steps: look at that op before the utilization.",
        ),
        ReasonKind(
            "HG934",
            _PARTIAL,
            "idle under a wait for a graph: unrecorded graph work?",
            "The host waited for a graph while the GPU seems idle: conditional nodes are not "
            "recorded. Do not call it idle.",
        ),
        ReasonKind(
            "HG935",
            _PARTIAL,
            "idle with orders long in hand: work the trace does not show?",
            "Another process may use the GPU, or work of this one was not recorded.",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Note:
    """A reason that applies to this trace, in words."""

    code: str
    text: str

    @property
    def verdict(self) -> Verdict:
        """The verdict this reason alone gives."""
        return REASONS[self.code].verdict


@dataclass(frozen=True, slots=True)
class Integrity:
    """The verdict and its reasons."""

    notes: tuple[Note, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of the reasons' verdicts."""
        return max((note.verdict for note in self.notes), default=Verdict.OK)

    def plus(self, notes: Iterable[Note]) -> Integrity:
        """With further reasons."""
        return Integrity((*self.notes, *notes))


def check_trace(trace: Trace) -> Integrity:
    """Look at a whole trace before anything is computed from it."""
    return Integrity((*_reading(trace.report), *_recording(trace)))


def _n(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def _reading(report: ReadReport) -> Iterator[Note]:
    """What the reader met."""
    if report.truncated:
        yield Note("HG920", f"{report.truncated}: only what comes before is analysed")
    if report.damaged:
        where = report.first_damage
        yield Note("HG921", f"{_n(report.damaged, 'broken event')} dropped, the first at {where}")
    for kind, events in report.repaired.items():
        yield Note("HG922", f"{kind} repaired in {_n(events, 'event')}")
    if report.unset:
        yield Note("HG923", f"{_n(report.unset, 'GPU op')} with start and duration 0 dropped")
    if report.negative:
        yield Note("HG923", f"{_n(report.negative, 'GPU op')} with a negative duration dropped")
    if report.unreadable_times:
        count = _n(report.unreadable_times, "event")
        yield Note("HG923", f"{count} without readable times dropped")
    if report.negative_host:
        count = _n(report.negative_host, "host event")
        yield Note("HG924", f"{count} with a negative duration dropped")
    if report.ambiguous_correlations:
        count = _n(report.ambiguous_correlations, "correlation id")
        yield Note("HG925", f"{count} used by several launches: their GPU ops count as orphans")
    for text in report.losses:
        yield Note("HG927", f"nsys says: {text}")
    if report.profiler_cycles > 1:
        yield Note("HG932", f"{report.profiler_cycles} profiler cycles in this file")


def _recording(trace: Trace) -> Iterator[Note]:
    """Whether the GPU's work was recorded."""
    gpu, api = trace.gpu_ops, trace.api_calls
    launches = np.flatnonzero(api.role == Role.LAUNCH)
    graphs = np.flatnonzero(api.role == Role.GRAPH_LAUNCH)
    if len(gpu) == 0:
        yield from _nothing_recorded(trace, len(launches) + len(graphs))
        return
    if (gpu.end == gpu.start).all():
        yield Note("HG913", "all GPU ops are of no length")
        return
    has_op = np.zeros(len(api), np.bool_)
    has_op[gpu.call[gpu.call >= 0]] = True
    bare = int(np.count_nonzero(~has_op[graphs]))
    if bare and bare == len(graphs):
        yield Note("HG912", f"none of {_n(bare, 'graph launch')} has a recorded node")
    elif bare:
        yield Note("HG903", f"{bare} of {len(graphs)} graph launches have no recorded node")

    if trace.report.missing:
        yield Note("HG928", trace.report.missing)

    launches = launches[~captured(trace, launches)]
    # ids that several launches share join nothing: that is HG925, not a lost kernel
    lost = ~has_op[launches] & ~_shared(api.correlation[launches])
    if lost.any():
        text = f"{np.count_nonzero(lost):,} of {len(launches):,} launches have no kernel"
        kept = np.flatnonzero(~lost)
        inside = lost[kept[0] : kept[-1] + 1] if len(kept) else lost
        if not len(kept) or inside.mean() > 0.5:
            yield Note("HG911", text)
        elif not inside.any():
            yield Note("HG903", f"{text}: recording began or ended between them")
        else:
            yield Note("HG903", text)
    if (gpu.kind == GpuKind.GRAPH).any():
        yield Note("HG905", "graph-level rows: the nodes inside the graphs are not visible")


_FRONTEND = re.compile(r"api_?server|frontend|uvicorn|tokenizer_?manager|openai", re.IGNORECASE)


def _nothing_recorded(trace: Trace, launches: int) -> Iterator[Note]:
    if trace.report.unset or trace.report.negative:
        yield Note("HG913", "no GPU op has usable timestamps")
    elif trace.report.missing:
        yield Note("HG910", trace.report.missing)
    elif launches:
        seen = f"{launches:,} launch" + ("" if launches == 1 else "es")
        yield Note(
            "HG910",
            f"no GPU ops were recorded ({seen} seen): CUPTI missing or without permission, WSL, or "
            "the schedule too short",
        )
    elif trace.report.unread_backend:
        backend = trace.report.unread_backend
        yield Note("HG910", f"no CUDA or HIP ops: hostgap does not read {backend} device events")
    elif len(trace.api_calls):
        yield Note("HG910", "no GPU ops were recorded, and nothing was launched")
    else:
        yield Note("HG910", "no GPU ops and no CUDA calls: a CPU run, or profiled without CUDA")
    if any(_FRONTEND.search(f"{t.process_name} {t.name}") for t in trace.threads):
        yield Note("HG914", "a serving engine's frontend process: look at its workers' traces")


def captured(trace: Trace, calls: NDArray[np.intp]) -> Bool:
    """Per call (rows of api_calls): was it captured into a graph instead of run?"""
    api = trace.api_calls
    inside = np.zeros(len(calls), np.bool_)
    for thread, (begin, end) in capture_spans(trace).items():
        until = np.where(end >= 0, api.end[end], np.iinfo(np.int64).max)
        during = covers(union(api.start[begin], until), api.start[calls])
        inside |= during & (api.thread[calls] == thread)
    return inside


def _shared(ids: Int64) -> Bool:
    """Per id: does it occur more than once? 0 and less is no id."""
    _, which, count = np.unique(ids, return_inverse=True, return_counts=True)
    return np.asarray((count[which] > 1) & (ids > 0))


def check_window(
    trace: Trace, clock: Clock, busy: Intervals, low: int, high: int
) -> Iterator[Note]:
    """What a look at the window `[low, high)` shows: clocks, buffers, graphs that ran unrecorded.

    Args:
        busy: when any GPU was busy, merged.
    """
    if not clock.reconciled:
        yield Note("HG904", "host and GPU clocks contradict each other: host causes are withheld")
    elif clock.corrected:
        drift = f", drifting {clock.slope * 1e6:+.1f} us per s" if clock.slope else ""
        yield Note(
            "HG904",
            f"host clock moved by {clock.offset_ns / 1000:+,.1f} us to agree with the GPU's{drift}",
        )
    ops = trace.host_ops
    profiler = np.array([overhead_cause(name) is Cause.PROFILER for name in trace.names], np.bool_)
    rows = np.flatnonzero((ops.kind == HostKind.OVERHEAD) & profiler[ops.name])
    own = clip(union(clock.to_gpu(ops.start[rows]), clock.to_gpu(ops.end[rows])), low, high)
    if own.total:
        yield Note(
            "HG930", f"the profiler stopped the host for {own.total / 1e6:,.3f} ms of the window"
        )
    waits = _waits_for_nothing(trace, clock, busy)
    if waits:
        yield Note(
            "HG934",
            f"idle under {_n(waits, 'wait')} right after a graph launch: the GPU may have run "
            "graph nodes that were not recorded",
        )


def _waits_for_nothing(trace: Trace, clock: Clock, busy: Intervals) -> int:
    """Synchronize calls after a graph launch that mostly waited while nothing seemed to run."""
    api = trace.api_calls
    matters = np.flatnonzero(
        np.isin(api.role, (Role.LAUNCH, Role.GRAPH_LAUNCH, Role.COPY, Role.SYNC))
    )
    matters = matters[np.argsort(api.thread[matters], kind="stable")]
    before, after = matters[:-1], matters[1:]
    pair = (
        (api.role[before] == Role.GRAPH_LAUNCH)
        & (api.role[after] == Role.SYNC)
        & (api.thread[before] == api.thread[after])
    )
    syncs = after[pair]
    wait = Intervals(clock.to_gpu(api.start[syncs]), clock.to_gpu(api.end[syncs]))
    length = wait.end - wait.start
    idle = length - overlap(wait, busy)
    return int(np.count_nonzero((idle > SUSPICIOUS_NS) & (idle * 2 > length)))


def check_steps(steps: Steps, trace: Trace, busy_ns: int) -> Iterator[Note]:
    """Steps that launch no GPU work, and whether one op hides them."""
    n = len(steps)
    if n < 2:
        return
    worked = np.zeros(n, np.bool_)
    worked[steps.op_step[steps.op_step >= 0]] = True
    without = int(np.count_nonzero(~worked))
    if not without:
        return
    yield Note("HG931", f"{without} of {n} steps launch no GPU work")
    gpu = trace.gpu_ops
    longest = int((gpu.end - gpu.start).max())
    if longest * 10 > busy_ns * 9:
        yield Note("HG933", f"one GPU op holds {longest / busy_ns:.1%} of the busy time")


def check_pieces(pieces: Pieces, window_ns: int) -> Iterator[Note]:
    """What the causes themselves say about the trace.

    Args:
        pieces: of a device's gaps in the window.
        window_ns: length of the window.
    """
    by_cause = pieces.by_cause()
    lost = by_cause.get(Cause.UNATTRIBUTABLE, 0)
    if lost * 20 > window_ns:
        share = f"{lost / sum(by_cause.values()):.0%}".replace("%", " %")
        yield Note("HG926", f"{share} of the idle time has no launching call in the trace")
    if (by_cause.get(Cause.QUEUE_GAP, 0) + by_cause.get(Cause.LAUNCH_LATENCY, 0)) * 20 <= window_ns:
        return
    count = total = 0
    for parts in pieces:
        in_hand = np.isin(parts.cause, (Cause.QUEUE_GAP, Cause.LAUNCH_LATENCY))
        long = parts.length[in_hand & (parts.length > LONG_WAIT_NS)]
        count, total = count + len(long), total + int(long.sum())
    if total * 20 > window_ns:
        yield Note(
            "HG935",
            f"{_n(count, 'gap')} ({total / 1e6:,.1f} ms) in which the GPU had its next "
            "order for over 0.1 ms: work that was not recorded, another process, or clocks",
        )
