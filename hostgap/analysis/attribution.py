"""One cause for every idle nanosecond.

For a gap `[g0, g1)`: `K` is the op that ended it, `C` the call that launched `K`, `T` the thread of
`C`. Either the GPU had the order for `K` in hand (then the gap is the GPU's own: between graph
nodes, in the queue, launch latency), or it had not, and then `T` was late: what `T` was doing from
g0 until `C` returned is the cause, innermost event first. The pieces of a gap add up to it exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis import causes
from hostgap.analysis.causes import Cause
from hostgap.analysis.clock import Clock
from hostgap.analysis.host import CALL, Host, sweep
from hostgap.analysis.intervals import Intervals, covers, cut, edges, overlap, union
from hostgap.analysis.nesting import when
from hostgap.analysis.parts import NONE, Parts, bare, in_order, sum_by, together
from hostgap.analysis.syncs import blocking_calls, capture_spans, download_syncs
from hostgap.analysis.timeline import collectives
from hostgap.trace.columns import distinct_codes
from hostgap.trace.model import Bool, GpuKind, HostKind, Int32, Int64, Role, Trace

BLOCK = 1 << 13  # gaps at once: on the way a piece takes several times the memory it ends with
STALL_FACTOR = 10  # a gap this many times its graph's usual one waits for the submission
STALL_FLOOR_NS = 2_000
_PROFILER_STEP = re.compile(r"ProfilerStep#(\d{1,9})")
# What a thread that captures a graph seems to do.
_CAPTURED = (Cause.LAUNCH_CALL, Cause.API_CALL, Cause.DISPATCH, Cause.PYTHON, Cause.UNTRACED)
_NO_CUT = np.zeros(0, np.int64)
IDLE = (Cause.UNTRACED, Cause.INPUT_WAIT)  # what a thread that waits for another shows


class _Blocking(NamedTuple):
    """The blocking calls of a thread (rows of api_calls) in order, from when each blocks, and which
    of those begun by then lasts longest."""

    call: NDArray[np.intp]
    start: Int64
    lasting: NDArray[np.intp]


class _Overlay(NamedTuple):
    """A cause that a thread's time has in these spans (merged) instead of some others."""

    spans: Intervals
    cause: Cause
    hides: tuple[Cause, ...]


class Attribution:
    """Finds causes for the gaps of a trace's devices and streams.

    Args:
        trace: the trace.
        clock: how its clocks relate.
        stepping: host intervals (GPU clock) inside steps, where a trace without stacks shows Python
            as nothing at all.
        step_thread: the thread that holds the steps, NONE if unknown.
    """

    def __init__(self, trace: Trace, clock: Clock, stepping: Intervals, step_thread: int) -> None:
        self.trace = trace
        self.host = Host(trace, clock)
        self._reconciled = clock.reconciled
        self._stepping = stepping
        self._step_thread = step_thread
        api, gpu = trace.api_calls, trace.gpu_ops
        self._call_start = clock.to_gpu(api.start)
        self._call_end = clock.to_gpu(api.end)
        self._collective = collectives(trace)
        self._works = np.isin(gpu.kind, (GpuKind.KERNEL, GpuKind.GRAPH))
        self._is_graph = api.role == Role.GRAPH_LAUNCH
        launched = np.flatnonzero(gpu.call >= 0)
        self._first_launched = int(launched[0]) if len(launched) else len(gpu)
        # start of the first op of each call: ops are in order of start
        self._first_start = np.full(len(api), np.iinfo(np.int64).max, np.int64)
        np.minimum.at(self._first_start, gpu.call[launched], gpu.start[launched])
        self._blocking = blocking_calls(trace)
        # a pageable download blocks in the copy call already, before the synchronize behind it
        self._block_start = self._call_start.copy()
        waits = download_syncs(trace)
        copies = np.flatnonzero(waits >= 0)
        self._block_start[waits[copies]] = self._call_start[copies]
        self._overheads = self._overhead(clock)
        self._switching = profiler_steps(trace, clock)
        self._capturing = self._captures()
        self._working: dict[int, Intervals] = {}
        self._blocks: dict[int, _Blocking] = {}

    def _overhead(self, clock: Clock) -> dict[tuple[int | str, Cause], Intervals]:
        """(process, cause) -> when the profiler, or the loading of kernels, stopped its threads.

        A row of the profiler's own (process -1) stops every process.
        """
        trace, ops = self.trace, self.trace.host_ops
        rows: dict[tuple[int | str, Cause], list[int]] = {}
        processes = {thread.process for thread in trace.threads}
        for row in np.flatnonzero(ops.kind == HostKind.OVERHEAD).tolist():
            cause = causes.overhead_cause(trace.names[ops.name[row]])
            owner = trace.threads[ops.thread[row]].process
            for process in processes if owner == -1 else {owner}:
                rows.setdefault((process, cause), []).append(row)
        return {
            key: union(clock.to_gpu(ops.start[at]), clock.to_gpu(ops.end[at]))
            for key, at in rows.items()
        }

    def _captures(self) -> dict[int, Intervals]:
        """thread -> when it was capturing a graph: what it launches then runs later."""
        spans: dict[int, Intervals] = {}
        for thread, (begin, end) in capture_spans(self.trace).items():
            until = np.where(end >= 0, self._call_end[end], np.iinfo(np.int64).max)
            spans[thread] = union(self._call_start[begin], until)
        return spans

    def attribute(self, ops: Int32, gaps: Intervals, low: int, high: int) -> Iterator[Parts]:
        """Causes of the gaps between a device's ops, a block of gaps at a time.

        Args:
            ops: rows of gpu_ops, in order of start.
            gaps: merged; what `lane.gaps()` gives.
            low, high: which of them matter; of others there may be no pieces.

        Yields:
            Pieces whose lengths add up to each gap exactly, in order of start.
        """
        next_op = self._next_op(ops, gaps)
        call = np.full(len(next_op), NONE, np.int32)
        call[next_op >= 0] = self.trace.gpu_ops.call[next_op[next_op >= 0]]
        internal = self._graph_internal(gaps, call)
        stalled = self._stalled(gaps, call, internal)
        for first in range(0, len(call), BLOCK):
            block = slice(first, first + BLOCK)
            if gaps.end[block][-1] > low and gaps.start[first] < high:
                mine = Intervals(gaps.start[block], gaps.end[block])
                parts = self._block(
                    mine, next_op[block], call[block], internal[block], stalled[block]
                )
                yield replace(parts, gap=parts.gap + np.int32(first))

    def _block(
        self, gaps: Intervals, next_op: Int32, call: Int32, internal: Bool, stalled: Bool
    ) -> Parts:
        index = np.arange(len(gaps.start))
        known = call >= 0
        missing = (next_op >= 0) & ~known
        parts = [self._orphans(index[missing], gaps, next_op[missing])]
        trailing = next_op < 0
        if not self._reconciled:
            parts.append(_of(gaps, index[internal], Cause.GRAPH_INTERNAL))
            parts.append(_of(gaps, index[(known & ~internal) | trailing], Cause.UNATTRIBUTABLE))
            return in_order(parts)

        parts.append(_of(gaps, index[internal & ~stalled], Cause.GRAPH_INTERNAL))
        parts.append(self._in_call(index[stalled], gaps, call[stalled]))

        rest = known & ~internal
        call_end = _gather(self._call_end, call, rest)
        queued = rest & (call_end < gaps.start)
        parts.append(_of(gaps, index[queued], Cause.QUEUE_GAP))

        late = np.flatnonzero((rest & ~queued) | trailing)
        until = np.where(trailing, gaps.end, np.minimum(call_end, gaps.end))[late]
        latency = until < gaps.end[late]
        parts.append(
            bare(late[latency], until[latency], gaps.end[late][latency], Cause.LAUNCH_LATENCY)
        )
        launched = _gather(self.trace.api_calls.thread, call, known)
        thread = np.where(trailing, self._step_thread, launched)[late]
        held = until > gaps.start[late]
        parts += self._host_parts(late[held], gaps.start[late][held], until[held], thread[held])
        return in_order(parts)

    # --- which op, which call ----------------------------------------------------------------

    def _next_op(self, rows: Int32, gaps: Intervals) -> Int32:
        """Row of gpu_ops that ended each gap, -1 where none did.

        A copy on a side stream or a collective that happens to come first says nothing about why
        the device had no work: then it is the compute stream's next kernel.
        """
        gpu = self.trace.gpu_ops
        start = gpu.start[rows]
        at = np.searchsorted(start, gaps.end, "left")
        exists = at < len(rows)
        found = np.where(exists, rows[np.minimum(at, len(rows) - 1)] if len(rows) else NONE, NONE)
        compute = self._compute_stream(rows)
        aside = exists & (
            self._collective[found] | (~self._works[found] & (gpu.stream[found] != compute))
        )
        kernels = rows[(gpu.stream[rows] == compute) & self._works[rows] & ~self._collective[rows]]
        if aside.any() and len(kernels):
            later = np.searchsorted(gpu.start[kernels], gaps.end[aside], "left")
            candidate = kernels[np.minimum(later, len(kernels) - 1)]
            usable = (later < len(kernels)) & (gpu.call[candidate] >= 0)
            found[aside] = np.where(usable, candidate, found[aside])
        return found.astype(np.int32)

    def _compute_stream(self, rows: Int32) -> int:
        """The stream with the most kernel time, collectives aside."""
        gpu = self.trace.gpu_ops
        work = rows[self._works[rows] & ~self._collective[rows]]
        if len(work) == 0:
            work = rows
        stream = gpu.stream[work]
        streams = distinct_codes(stream)
        length = sum_by(stream, gpu.end[work] - gpu.start[work], int(streams[-1]) + 1)
        return int(streams[length[streams].argmax()])

    def _orphans(self, gap: NDArray[np.intp], gaps: Intervals, op: Int32) -> Parts:
        """Before the first launched op the orders were given before recording began."""
        early = (op < self._first_launched) & (self._first_launched < len(self.trace.gpu_ops))
        code = np.where(early, Cause.QUEUE_GAP, Cause.UNATTRIBUTABLE).astype(np.int8)
        return bare(gap, gaps.start[gap], gaps.end[gap], code)

    # --- the GPU's own gaps ------------------------------------------------------------------

    def _graph_internal(self, gaps: Intervals, call: Int32) -> Bool:
        internal = np.zeros(len(gaps.start), np.bool_)
        at = np.flatnonzero(call >= 0)
        at = at[self._is_graph[call[at]]]
        internal[at] = self._first_start[call[at]] <= gaps.start[at]
        return internal

    def _stalled(self, gaps: Intervals, call: Int32, internal: Bool) -> Bool:
        """Gaps inside a graph in which its nodes waited to be submitted.

        cudaGraphLaunch submits in batches and nodes start before it returns: a gap that ends before
        the call does and is far longer than this graph's usual one is the call's.
        """
        stalled = np.zeros(len(gaps.start), np.bool_)
        at = np.flatnonzero(internal)
        if len(at) == 0:
            return stalled
        length = (gaps.end - gaps.start)[at]
        _, which, count = np.unique(call[at], return_inverse=True, return_counts=True)
        ordered = length[np.lexsort((length, which))]
        first = np.cumsum(count) - count
        median = (ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2
        usual = np.where(count >= 5, median, np.median(length))
        limit = np.maximum(usual * STALL_FACTOR, STALL_FLOOR_NS)
        stalled[at] = (gaps.end[at] <= self._call_end[call[at]]) & (length > limit[which])
        return stalled

    def _in_call(self, gap: NDArray[np.intp], gaps: Intervals, call: Int32) -> Parts:
        return replace(
            _of(gaps, gap, Cause.LAUNCH_CALL),
            thread=self.trace.api_calls.thread[call],
            table=np.full(len(gap), CALL, np.int8),
            row=call,
            site=self.host.call_sites(call),
        )

    # --- the host's gaps ---------------------------------------------------------------------

    def _host_parts(
        self, gap: NDArray[np.intp], start: Int64, end: Int64, thread: NDArray[np.generic]
    ) -> list[Parts]:
        """What each gap's launching thread was doing, with the shadows of its blocking calls."""
        parts = []
        for code in np.unique(thread).tolist():
            mine = np.flatnonzero(thread == code)
            overlays = self._overlays(code)
            # cut first, while there are few: then no piece is only in part under an overlay
            cuts = [edges(overlay.spans) for overlay in overlays]
            windows = cut(
                Intervals(start[mine], end[mine]), np.sort(np.concatenate([_NO_CUT, *cuts]))
            )
            swept = self._sweep(
                code, gap[mine][windows.interval], Intervals(windows.start, windows.end)
            )
            swept = self._handed_off(swept, code)
            for overlay in overlays:
                swept = _painted(swept, overlay)
            swept = self._with_shadows(swept, gap[mine], start[mine], code)
            parts.append(self._named_python(swept))
        return parts

    def _sweep(self, code: int, gap: NDArray[np.generic], windows: Intervals) -> Parts:
        if code == NONE:
            return bare(gap.astype(np.intp), windows.start, windows.end, Cause.UNTRACED)
        thread = self.host[code]
        swept = sweep(thread, windows)
        n = len(swept.start)
        event = swept.event
        inside = event >= 0

        def of(values: NDArray[np.generic], nothing: int) -> NDArray[np.generic]:
            if len(values) == 0:
                return np.full(n, nothing, values.dtype)
            return np.where(inside, values[event], values.dtype.type(nothing))

        return Parts(
            gap[swept.window].astype(np.int32),
            swept.start,
            swept.end,
            of(thread.cause, Cause.UNTRACED).astype(np.int8),
            np.full(n, code, np.int32),
            of(thread.table, NONE).astype(np.int8),
            of(thread.row, NONE).astype(np.int32),
            of(thread.site, NONE).astype(np.int32),
            of(thread.op, NONE).astype(np.int32),
            np.full(n, NONE, np.int32),
        )

    def _handed_off(self, parts: Parts, code: int) -> Parts:
        """Follow a thread that waits, or shows nothing, to the thread that held it up.

        A backward pass launches from autograd's thread while the main thread's Python decides
        when; a thread in `queue.get` waits for whoever fills the queue. The helper is the step's
        thread for a silent one, and for a waiting one the thread of its process that was busiest
        meanwhile. Its causes are taken where it was doing anything.
        """
        silent = parts.cause == Cause.UNTRACED
        if (
            silent.any()
            and self._step_thread != code
            and self._same_process(self._step_thread, code)
        ):
            parts = self._replaced(parts, silent, self._step_thread, (Cause.UNTRACED,))
        waiting = parts.cause == Cause.INPUT_WAIT
        if waiting.any():
            helper = self._busiest(code, union(parts.start[waiting], parts.end[waiting]))
            if helper is not None:
                parts = self._replaced(parts, waiting, helper, IDLE)
        return parts

    def _same_process(self, one: int, other: int) -> bool:
        threads = self.trace.threads
        return NONE not in (one, other) and threads[one].process == threads[other].process

    def _replaced(
        self, parts: Parts, which: Bool, helper: int, idle_causes: tuple[Cause, ...]
    ) -> Parts:
        """Some pieces with what `helper` did meanwhile, where that was anything but idle."""
        old = parts.take(which)
        new = self._sweep(helper, np.arange(len(old)), Intervals(old.start, old.end))
        origin = old.take(new.gap)
        idle = np.isin(new.cause, idle_causes)
        taken = Parts(
            *(
                np.where(idle, getattr(origin, column.name), getattr(new, column.name))
                for column in fields(Parts)
            )
        )
        taken = replace(taken, gap=origin.gap, start=new.start, end=new.end)
        return together([parts.take(~which), taken])

    def _busiest(self, code: int, waits: Intervals) -> int | None:
        """The other thread of the process that did the most work during the waits."""
        best: tuple[int, int] | None = None
        for other in self.host.threads():
            if other == code or not self._same_process(other, code):
                continue
            worked = int(overlap(waits, self._work_of(other)).sum())
            if worked and (best is None or worked > best[0]):
                best = (worked, other)
        return best[1] if best else None

    def _work_of(self, code: int) -> Intervals:
        """When a thread did anything but wait."""
        if code not in self._working:
            thread = self.host[code]
            self._working[code] = when(thread.nested, ~np.isin(thread.cause, IDLE))
        return self._working[code]

    def _with_shadows(
        self, parts: Parts, gap: NDArray[np.intp], gap_start: Int64, code: int
    ) -> Parts:
        """Blame what follows a blocking call in a gap that began inside it on that call."""
        blocking = self._blocking_of(code)
        if len(blocking.call) == 0:
            return parts
        at = np.searchsorted(blocking.start, gap_start, "right") - 1
        candidate = blocking.call[blocking.lasting[np.maximum(at, 0)]]
        blocked = (at >= 0) & (self._call_end[candidate] > gap_start)
        culprit = np.full(int(gap.max()) + 1 if len(gap) else 0, NONE, np.int64)
        culprit[gap[blocked]] = candidate[blocked]
        blame = culprit[parts.gap]
        after = (blame >= 0) & (parts.start >= self._call_end[blame])
        return replace(parts, blame=np.where(after, blame, NONE).astype(np.int32))

    def _blocking_of(self, code: int) -> _Blocking:
        if code not in self._blocks:
            calls = np.flatnonzero(self._blocking & (self.trace.api_calls.thread == code))
            # of calls inside one another, the one that lasts longest
            ends = self._call_end[calls]
            longest = np.ones(len(calls), np.bool_)
            longest[1:] = ends[1:] > np.maximum.accumulate(ends)[:-1]
            lasting = np.maximum.accumulate(np.where(longest, np.arange(len(calls)), 0))
            self._blocks[code] = _Blocking(calls, self._block_start[calls], lasting)
        return self._blocks[code]

    def _named_python(self, parts: Parts) -> Parts:
        """Without stacks, a thread inside a step but outside every op is running Python."""
        if self.host.has_stacks() or not self.host.tells_python():
            return parts
        silent = np.flatnonzero(parts.cause == Cause.UNTRACED)
        if len(silent) == 0:
            return parts
        pieces, _ = parts.take(silent).cut(edges(self._stepping))
        inside = covers(self._stepping, pieces.start)
        code = np.where(inside, Cause.PYTHON, Cause.UNTRACED).astype(np.int8)
        named = replace(pieces, cause=code)
        return together([parts.take(parts.cause != Cause.UNTRACED), named])

    def _overlays(self, code: int) -> list[_Overlay]:
        """What lies over whatever a thread seems to do, in this order.

        While it captures, its launches and ops run nothing. The profiler's own work, and kernels
        being loaded, stop every thread of the process.
        """
        if code == NONE:
            return []
        found = []
        if code in self._capturing:
            found.append(_Overlay(self._capturing[code], Cause.CAPTURE, _CAPTURED))
        if code in self._switching:
            found.append(_Overlay(self._switching[code], Cause.PROFILER, tuple(Cause)))
        owner = self.trace.threads[code].process
        for (process, cause), stopped in self._overheads.items():
            if process == owner:
                found.append(_Overlay(stopped, cause, tuple(Cause)))
        return found


def profiler_steps(trace: Trace, clock: Clock) -> dict[int, Intervals]:
    """thread -> when it was in torch.profiler's own `step()`.

    `step()` ends the range of one ProfilerStep and begins that of the next: what lies between them
    is the profiler's, not the program's.
    """
    ops = trace.host_ops
    numbers = {
        code: int(found[1])
        for code in distinct_codes(ops.name).tolist()
        if (found := _PROFILER_STEP.fullmatch(trace.names[code]))
    }
    rows = np.flatnonzero(np.isin(ops.name, list(numbers)) & (ops.kind == HostKind.ANNOTATION))
    number = np.array([numbers[code] for code in ops.name[rows].tolist()], np.int64)
    spans: dict[int, Intervals] = {}
    for thread in np.unique(ops.thread[rows]).tolist():
        mine = ops.thread[rows] == thread
        at, of = rows[mine], number[mine]
        next_one = (np.diff(of) == 1) & (ops.start[at[1:]] > ops.end[at[:-1]])
        start, end = ops.end[at[:-1]][next_one], ops.start[at[1:]][next_one]
        spans[thread] = union(clock.to_gpu(start), clock.to_gpu(end))
    return spans


def _painted(parts: Parts, overlay: _Overlay) -> Parts:
    """The pieces, with the overlay's cause inside it where they had one of those it hides.

    Args:
        parts: pieces that are cut at the overlay's edges.
    """
    inside = covers(overlay.spans, parts.start)
    if not inside.any():
        return parts
    inside &= np.isin(parts.cause, overlay.hides)
    return replace(parts, cause=np.where(inside, overlay.cause, parts.cause).astype(np.int8))


def _gather(values: NDArray[np.signedinteger], index: Int32, known: Bool) -> Int64:
    """`values[index]` where known, else 0; `values` may be empty where nothing is known."""
    out = np.zeros(len(index), np.int64)
    out[known] = values[index[known]]
    return out


def _of(gaps: Intervals, gap: NDArray[np.intp], cause: Cause) -> Parts:
    return bare(gap, gaps.start[gap], gaps.end[gap], cause)
