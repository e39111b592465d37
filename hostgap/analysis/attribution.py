"""One cause for every idle nanosecond.

For a gap `[g0, g1)`: `K` is the op that ended it, `C` the call that launched `K`, `T` the thread of
`C`. Either the GPU had the order for `K` in hand (then the gap is the GPU's own: between graph
nodes, in the queue, launch latency), or it had not, and then `T` was late: what `T` was doing from
g0 until `C` returned is the cause, innermost event first. The pieces of a gap add up to it exactly.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis import causes
from hostgap.analysis.causes import Cause
from hostgap.analysis.clock import Clock, download_syncs
from hostgap.analysis.host import CALL, Host, sweep
from hostgap.analysis.intervals import Intervals, covers, union
from hostgap.analysis.parts import NONE, Parts, bare, joined, sum_by
from hostgap.analysis.timeline import Lane, collectives
from hostgap.trace.model import Bool, GpuKind, HostKind, Int64, Role, Trace
from hostgap.trace.vocabulary import BLOCKING_COPIES

STALL_FACTOR = 10  # a gap this many times its graph's usual one waits for the submission
STALL_FLOOR_NS = 2_000
LONGEST_LATENCY_NS = 1_000_000  # the longest that starting an op can take by itself


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

    def _overhead(self, clock: Clock) -> list[tuple[Cause, Intervals]]:
        ops = self.trace.host_ops
        rows = np.flatnonzero(ops.kind == HostKind.OVERHEAD)
        by_cause: dict[Cause, list[int]] = {}
        for row in rows.tolist():
            by_cause.setdefault(causes.overhead_cause(self.trace.names[ops.name[row]]), []).append(
                row
            )
        return [
            (cause, union(clock.to_gpu(ops.start[at]), clock.to_gpu(ops.end[at])))
            for cause, at in by_cause.items()
        ]

    def attribute(self, lane: Lane, gaps: Intervals, *, device: Lane | None = None) -> Parts:
        """Causes of the gaps of a device's lane, or of one of its streams.

        Args:
            lane: the ops the gaps lie between.
            gaps: merged; what `lane.gaps()` gives.
            device: for a stream's own gaps the device's lane: waiting while the device works
                elsewhere is a `dependency`.

        Returns:
            Pieces whose lengths add up to each gap exactly.
        """
        index = np.arange(len(gaps.start))
        next_op = self._next_op(lane, gaps, whole_device=device is None)
        call = np.where(next_op >= 0, self.trace.gpu_ops.call[next_op], NONE).astype(np.int64)
        known = call >= 0
        missing = (next_op >= 0) & ~known
        parts = [self._orphans(index[missing], gaps, next_op[missing])]
        trailing = next_op < 0
        if not self._reconciled:
            internal = self._graph_internal(gaps, call, known)
            parts.append(_of(gaps, index[internal], Cause.GRAPH_INTERNAL))
            parts.append(_of(gaps, index[(known & ~internal) | trailing], Cause.UNATTRIBUTABLE))
            return self._with_dependencies(joined(parts), device)

        internal = self._graph_internal(gaps, call, known)
        stalled = internal & self._stalled(gaps, call, internal)
        parts.append(_of(gaps, index[internal & ~stalled], Cause.GRAPH_INTERNAL))
        parts.append(self._in_call(index[stalled], gaps, call[stalled]))

        rest = known & ~internal
        call_end = _gather(self._call_end, call, rest)
        queued = rest & (call_end < gaps.start)
        parts.append(_of(gaps, index[queued], Cause.QUEUE_GAP))

        late = np.flatnonzero((rest & ~queued) | trailing)
        until = np.where(trailing, gaps.end, np.minimum(call_end, gaps.end))[late]
        latency = until < gaps.end[late]
        delay = (gaps.end[late] - until)[latency]
        # an order that lies for milliseconds waits for something, recorded or not
        own = np.where(delay > LONGEST_LATENCY_NS, Cause.QUEUE_GAP, Cause.LAUNCH_LATENCY)
        parts.append(
            bare(late[latency], until[latency], gaps.end[late][latency], own.astype(np.int8))
        )
        launched = _gather(self.trace.api_calls.thread, call, known)
        thread = np.where(trailing, self._step_thread, launched)[late]
        held = until > gaps.start[late]
        host = self._host_parts(late[held], gaps.start[late][held], until[held], thread[held])
        parts.append(self._with_overhead(host))
        return self._with_dependencies(joined(parts), device)

    # --- which op, which call ----------------------------------------------------------------

    def _next_op(self, lane: Lane, gaps: Intervals, *, whole_device: bool) -> NDArray[np.intp]:
        """Row of gpu_ops that ended each gap, -1 where none did.

        A copy on a side stream or a collective that happens to come first says nothing about why
        the device had no work: then it is the compute stream's next kernel.
        """
        gpu, rows = self.trace.gpu_ops, lane.rows
        start = gpu.start[rows]
        at = np.searchsorted(start, gaps.end, "left")
        exists = at < len(rows)
        found = np.where(exists, rows[np.minimum(at, len(rows) - 1)] if len(rows) else NONE, NONE)
        if not whole_device or len(rows) == 0:
            return found
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
        return found

    def _compute_stream(self, rows: NDArray[np.intp]) -> int:
        """The stream with the most kernel time, collectives aside."""
        gpu = self.trace.gpu_ops
        work = rows[self._works[rows] & ~self._collective[rows]]
        if len(work) == 0:
            work = rows
        streams, which = np.unique(gpu.stream[work], return_inverse=True)
        return int(streams[sum_by(which, gpu.end[work] - gpu.start[work], len(streams)).argmax()])

    def _orphans(self, gap: NDArray[np.intp], gaps: Intervals, op: NDArray[np.intp]) -> Parts:
        """Before the first launched op the orders were given before recording began."""
        early = (op < self._first_launched) & (self._first_launched < len(self.trace.gpu_ops))
        code = np.where(early, Cause.QUEUE_GAP, Cause.UNATTRIBUTABLE).astype(np.int8)
        return bare(gap, gaps.start[gap], gaps.end[gap], code)

    # --- the GPU's own gaps ------------------------------------------------------------------

    def _graph_internal(self, gaps: Intervals, call: Int64, known: Bool) -> Bool:
        internal = np.zeros(len(gaps.start), np.bool_)
        at = np.flatnonzero(known)
        at = at[self._is_graph[call[at]]]
        internal[at] = self._first_start[call[at]] <= gaps.start[at]
        return internal

    def _stalled(self, gaps: Intervals, call: Int64, internal: Bool) -> Bool:
        """Gaps inside a graph in which its nodes waited to be submitted.

        cudaGraphLaunch submits in batches and nodes start before it returns: a gap that ends before
        the call does and is far longer than this graph's usual one is the call's.
        """
        stalled = np.zeros(len(gaps.start), np.bool_)
        at = np.flatnonzero(internal)
        if len(at) == 0:
            return stalled
        length = (gaps.end - gaps.start)[at]
        overall = float(np.median(length))
        launches, which = np.unique(call[at], return_inverse=True)
        usual = np.full(len(launches), overall)
        for i in np.flatnonzero(np.bincount(which) >= 5):
            usual[i] = np.median(length[which == i])
        limit = np.maximum(usual * STALL_FACTOR, STALL_FLOOR_NS)
        stalled[at] = (gaps.end[at] <= self._call_end[call[at]]) & (length > limit[which])
        return stalled

    def _in_call(self, gap: NDArray[np.intp], gaps: Intervals, call: Int64) -> Parts:
        return replace(
            _of(gaps, gap, Cause.LAUNCH_CALL),
            thread=self.trace.api_calls.thread[call],
            table=np.full(len(gap), CALL, np.int8),
            row=call.astype(np.int32),
            site=self.host.call_sites(call),
        )

    # --- the host's gaps ---------------------------------------------------------------------

    def _host_parts(
        self, gap: NDArray[np.intp], start: Int64, end: Int64, thread: NDArray[np.generic]
    ) -> Parts:
        """What each gap's launching thread was doing, with the shadows of its blocking calls."""
        parts = []
        for code in np.unique(thread):
            mine = np.flatnonzero(thread == code)
            windows = Intervals(start[mine], end[mine])
            swept = self._sweep(int(code), gap[mine], windows)
            swept = self._handed_off(swept, int(code))
            parts.append(self._with_shadows(swept, gap[mine], windows.start, int(code)))
        if not parts:
            return bare(gap, start, end, Cause.UNTRACED)
        return self._named_python(joined(parts))

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
            parts = self._replaced(parts, silent, self._step_thread)
        waiting = parts.cause == Cause.INPUT_WAIT
        if waiting.any():
            helper = self._busiest(code, union(parts.start[waiting], parts.end[waiting]))
            if helper is not None:
                parts = self._replaced(parts, waiting, helper)
        return parts

    def _same_process(self, one: int, other: int) -> bool:
        threads = self.trace.threads
        return NONE not in (one, other) and threads[one].process == threads[other].process

    def _replaced(self, parts: Parts, which: Bool, helper: int) -> Parts:
        old = parts.take(which)
        new = self._sweep(helper, np.arange(len(old)), Intervals(old.start, old.end))
        origin = old.take(new.gap)
        idle = np.isin(new.cause, (Cause.UNTRACED, Cause.INPUT_WAIT))
        taken = Parts(
            *(
                np.where(idle, getattr(origin, column.name), getattr(new, column.name))
                for column in fields(Parts)
            )
        )
        taken = replace(taken, gap=origin.gap, start=new.start, end=new.end)
        return joined([parts.take(~which), taken])

    def _busiest(self, code: int, waits: Intervals) -> int | None:
        """The other thread of the process that did the most work during the waits."""
        best: tuple[int, int] | None = None
        for other in self.host.threads():
            if other == code or not self._same_process(other, code):
                continue
            swept = self._sweep(other, np.arange(len(waits.start)), waits)
            busy = ~np.isin(swept.cause, (Cause.UNTRACED, Cause.INPUT_WAIT))
            worked = int(swept.length[busy].sum())
            if worked and (best is None or worked > best[0]):
                best = (worked, other)
        return best[1] if best else None

    def _with_shadows(
        self, parts: Parts, gap: NDArray[np.intp], gap_start: Int64, code: int
    ) -> Parts:
        """Blame what follows a blocking call in a gap that began inside it on that call."""
        api = self.trace.api_calls
        calls = np.flatnonzero(self._blocking & (api.thread == code))
        if len(calls) == 0:
            return parts
        # of calls inside one another, the one that lasts longest
        ends = self._call_end[calls]
        longest = np.concatenate(([True], ends[1:] > np.maximum.accumulate(ends)[:-1]))
        lasting = np.maximum.accumulate(np.where(longest, np.arange(len(calls)), 0))
        at = np.searchsorted(self._block_start[calls], gap_start, "right") - 1
        candidate = calls[lasting[np.maximum(at, 0)]]
        blocked = (at >= 0) & (self._call_end[candidate] > gap_start)
        culprit = np.full(int(gap.max()) + 1 if len(gap) else 0, NONE, np.int64)
        culprit[gap[blocked]] = candidate[blocked]
        blame = culprit[parts.gap]
        after = (blame >= 0) & (parts.start >= self._call_end[blame])
        return replace(parts, blame=np.where(after, blame, NONE).astype(np.int32))

    def _named_python(self, parts: Parts) -> Parts:
        """Without stacks, a thread inside a step but outside every op is running Python."""
        if self.host.has_stacks():
            return parts
        silent = np.flatnonzero(parts.cause == Cause.UNTRACED)
        if len(silent) == 0:
            return parts
        edges = np.unique(np.concatenate((self._stepping.start, self._stepping.end)))
        pieces, _ = parts.take(silent).cut(edges)
        inside = covers(self._stepping, pieces.start)
        code = np.where(inside, Cause.PYTHON, Cause.UNTRACED).astype(np.int8)
        named = replace(pieces, cause=code)
        return joined([parts.take(parts.cause != Cause.UNTRACED), named])

    # --- over all ----------------------------------------------------------------------------

    def _with_overhead(self, parts: Parts) -> Parts:
        """The profiler's own work, and kernels being loaded, stop every host thread."""
        for cause, merged in self._overheads:
            pieces, _ = parts.cut(np.unique(np.concatenate(merged)))
            over = covers(merged, pieces.start)
            parts = replace(pieces, cause=np.where(over, cause, pieces.cause).astype(np.int8))
        return parts

    def _with_dependencies(self, parts: Parts, device: Lane | None) -> Parts:
        """In a stream's gap, orders in hand while the device works elsewhere: a dependency."""
        if device is None or len(parts) == 0:
            return parts
        pieces, _ = parts.cut(np.unique(np.concatenate(device.busy)))
        waits = (pieces.cause == Cause.QUEUE_GAP) & covers(device.busy, pieces.start)
        code = np.where(waits, Cause.DEPENDENCY, pieces.cause).astype(np.int8)
        return replace(pieces, cause=code)


def _gather(values: NDArray[np.signedinteger], index: Int64, known: Bool) -> Int64:
    """`values[index]` where known, else 0; `values` may be empty where nothing is known."""
    out = np.zeros(len(index), np.int64)
    out[known] = values[index[known]]
    return out


def _of(gaps: Intervals, gap: NDArray[np.intp], cause: Cause) -> Parts:
    return bare(gap, gaps.start[gap], gaps.end[gap], cause)


def blocking_calls(trace: Trace) -> Bool:
    """Per API call: does it block its thread until the GPU has caught up?

    Synchronize calls do, and copies that return only when they are done.
    """
    api = trace.api_calls
    copies = np.array([BLOCKING_COPIES.fullmatch(name) is not None for name in trace.names])
    if len(api) == 0:
        return np.zeros(0, np.bool_)
    return np.asarray((api.role == Role.SYNC) | ((api.role == Role.COPY) & copies[api.name]))
