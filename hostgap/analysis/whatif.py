"""What a step would take without something: a replay of the host's calls and the GPU's ops.

The host runs its calls in the order it made them; what lies between them keeps its length. A GPU op
starts when its launch has reached the GPU and when what ran before it is done; a blocking call
returns when the op it waits for has ended. Replayed unchanged, the recorded steps come out as they
were, by construction: each op keeps the delay that it had, after its launch where the host was
late, after the op before it where the GPU was. An `Edit` then takes something away.

The profiler slows the host and not the GPU, so a replay of a trace promises too much. A second
replay, in which the host is as much faster as profilers have been measured to slow it, gives the
other end: what of a saving is left then cannot be the profiler's doing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.attribution import profiler_steps
from hostgap.analysis.causes import Cause
from hostgap.analysis.edit import Edit, joined
from hostgap.analysis.examine import Analysis
from hostgap.analysis.intervals import EMPTY, Intervals, clip, cut, edges, union
from hostgap.analysis.syncs import blocking_calls
from hostgap.trace.model import Bool, Int64, Memory, Role, Trace

MOST_EVENTS = 6_000  # calls and ops replayed: whole steps, as many as fit, but at least one
# How much longer tracing makes host time, measured on an H200 with torch 2.11: an eager step 1.3 to
# 2.3 times, a graph launch 3 to 4 times. The replay without it assumes the most.
INFLATION = 2.3
GRAPH_INFLATION = 4.0
# A recorded Python frame costs 4.6 us (a compiled step of 5,949 frames: 33.9 ms traced, 6.0 not).
FRAME_NS = 5_000
LEAST_RATE = 0.1  # of what is traced, that is left without frames
# A graph launch as it would be traced: fixed part and per node; and the gap between its nodes.
GRAPH_LAUNCH_NS, GRAPH_NODE_NS, GRAPH_GAP_NS = 6_000, 600, 400
LEAD_NS = 3_000  # from a call's start to its op's, where the trace has no example
POLLS = 8  # queries in a row that are a wait
ASYNC_NS = 3_000  # what a blocking call takes where there is nothing to wait for
_NEVER = -(1 << 62)
_MAY_DRAIN = (Role.FREE, Role.HOST_ALLOC)  # cudaFree and cudaFreeHost wait for the device
STAGED_NS = 20_000  # by which a staged copy may outlast its call
STAGED_BYTES = 64 * 1024  # an upload of at most so much from pageable memory is only staged
_NOT_WORKING = (Cause.INPUT_WAIT, Cause.REMOTE_WAIT, Cause.PREEMPTED, Cause.NO_WORK, Cause.GC)


@dataclass(frozen=True, slots=True)
class _Unit:
    """GPU ops of one call: they keep their places relative to the first. Columns over n units."""

    call: NDArray[np.intp]  # index among the replayed calls
    start: Int64
    end: Int64
    before: NDArray[np.intp]  # unit that had to end first, -1 for none
    lead: Int64  # from the call's start
    gap: Int64  # from the end of the unit before
    late: Bool  # the host was late for it


class Replay:
    """Some consecutive steps of one device, ready to be replayed.

    Args:
        analysis: what was examined.
        device: code of the device.
        most: how many calls and ops to replay at most; one step at least.
    """

    def __init__(self, analysis: Analysis, device: int, most: int = MOST_EVENTS) -> None:
        self._analysis = analysis
        steps, trace = analysis.steps, analysis.trace
        gpu, api = trace.gpu_ops, trace.api_calls
        mine = gpu.device == device
        launching = np.zeros(len(api), np.bool_)
        launching[gpu.call[mine & (gpu.call >= 0)]] = True
        threads = np.unique(api.thread[launching])
        # calls that neither launch nor wait only take time, which lies between the others
        polls = poll_runs(trace)
        acts = launching | blocking_calls(trace) | np.isin(api.role, _MAY_DRAIN) | (polls >= 0)
        follows = acts & np.isin(api.thread, threads)
        self.steps = self._sample(follows, mine, most)
        low, high = self.steps.start, self.steps.stop
        self.low = int(steps.boundaries[low])
        self.high = int(steps.boundaries[high])
        chosen = follows & (steps.call_step >= low) & (steps.call_step < high)
        self._calls = np.flatnonzero(chosen)
        rows = np.flatnonzero(mine & (steps.op_step >= low) & (steps.op_step < high))
        clock = analysis.clock
        begun = np.where(polls >= 0, polls, np.arange(len(api)))[chosen]
        self._start, self._end = clock.to_gpu(api.start[begun]), clock.to_gpu(api.end[chosen])
        self._graph = api.role[chosen] == Role.GRAPH_LAUNCH
        self._waiting = self._not_working(threads.tolist())
        switching = profiler_steps(trace, clock)
        self._threads = threads
        self._profiler = joined(EMPTY, *(switching[t] for t in threads.tolist() if t in switching))
        self._units(rows)
        self._waits()
        self._first_calls = self._calls[steps.call_step[self._calls] == low]
        self._unedited: dict[bool, Int64] = {}

    def _sample(self, follows: NDArray[np.bool_], mine: NDArray[np.bool_], most: int) -> range:
        """The first of the chosen steps, as many as hold at most `most` calls and ops."""
        steps, chosen = self._analysis.steps, self._analysis.chosen
        n = len(steps)
        events = np.bincount(steps.call_step[follows & (steps.call_step >= 0)], minlength=n)
        events = events + np.bincount(steps.op_step[mine & (steps.op_step >= 0)], minlength=n)
        fits = np.cumsum(events[chosen.start : chosen.stop]) <= most
        return range(chosen.start, chosen.start + max(1, int(fits.sum())))

    def _not_working(self, threads: list[int]) -> Intervals:
        """When the host did not work: no profiler makes that longer."""
        spans = []
        for code in threads:
            thread = self._analysis.host[code]
            who = thread.timeline.who[:-1]
            idle = (who >= 0) & np.isin(thread.cause[who], _NOT_WORKING)
            time = thread.timeline.time
            spans.append(Intervals(time[:-1][idle], time[1:][idle]))
        return joined(*spans) if spans else EMPTY

    @cached_property
    def _untraced_rate(self) -> float:
        """The share of its time that host work may have taken without the profiler."""
        frames, clock = self._analysis.trace.frames, self._analysis.clock
        if len(self._start) == 0:
            return 1 / INFLATION
        begun = clock.to_gpu(frames.start[np.isin(frames.thread, self._threads)])
        low, high = int(self._start[0]), int(self._end[-1])
        recorded = np.count_nonzero((begun >= low) & (begun < high))
        waited = (self._end - self._start)[self._wait >= 0].sum()
        left = 1 - recorded * FRAME_NS / max(1, high - low - int(waited))
        return min(max(left, LEAST_RATE), 1 / INFLATION)

    # --- what is replayed ----------------------------------------------------------------------

    def _units(self, rows: NDArray[np.intp]) -> None:
        gpu = self._analysis.trace.gpu_ops
        call = gpu.call[rows].astype(np.int64)
        # ops of one call stand together; an orphan stands alone and follows what ran before it
        key = np.where(call >= 0, call, -1 - rows)
        order = np.lexsort((gpu.start[rows], key))
        rows, key, call = rows[order], key[order], call[order]
        first = np.flatnonzero(np.diff(key, prepend=key[:1] - 1))
        start = gpu.start[rows[first]]
        end = np.maximum.reduceat(gpu.end[rows], first) if len(first) else start
        unit_call = call[first]
        by_start = np.argsort(start, kind="stable")
        unit_of = np.empty(len(first), np.intp)
        unit_of[by_start] = np.arange(len(first))
        self._rows, self._unit_of_row = rows, unit_of[np.cumsum(_heads(first, len(rows))) - 1]
        start, end, unit_call = start[by_start], end[by_start], unit_call[by_start]
        of_step = self._analysis.steps.op_step[rows[first]][by_start]
        self._unit_step = of_step - self.steps.start
        stream = gpu.stream[rows[first]][by_start]
        at = np.searchsorted(self._calls, unit_call)
        known = (unit_call >= 0) & (at < len(self._calls))
        at = np.minimum(at, max(0, len(self._calls) - 1))
        known[known] = self._calls[at[known]] == unit_call[known]
        before = _before(start, end, stream)
        prior_end = np.where(before >= 0, end[before], self.low)
        call_start, call_end = np.full((2, len(start)), _NEVER, np.int64)
        call_start[known], call_end[known] = self._start[at[known]], self._end[at[known]]
        late = known & (call_end >= prior_end)
        lead, gap = start - call_start, start - prior_end
        usual = int(np.median(lead[late])) if late.any() else LEAD_NS
        spare = int(np.median(gap[~late])) if (~late).any() else GRAPH_GAP_NS
        lead = np.where(known, np.where(late, lead, np.minimum(lead, usual)), _NEVER)
        gap = np.where(late, np.minimum(gap, max(spare, 0)), gap)
        # an orphan runs after the unit before it, whoever launched that
        owner = np.where(known, at, -1)
        latest = np.maximum.accumulate(np.where(owner >= 0, np.arange(len(owner)), 0))
        owner = owner[latest] if len(owner) else owner
        owner = np.maximum(owner, 0)
        self._unit = _Unit(owner.astype(np.intp), start, end, before, lead, gap, late)

    def _waits(self) -> None:
        """Per call: the unit whose end it waited for, -1 without one, and how long it then took."""
        trace, unit = self._analysis.trace, self._unit
        n = len(self._calls)
        self._wait = np.full(n, -1, np.intp)
        self._wake = np.zeros(n, np.int64)
        role = trace.api_calls.role[self._calls]
        may = blocking_calls(trace)[self._calls] | np.isin(role, _MAY_DRAIN) | self._pageable()
        may |= role == Role.QUERY
        calls = np.flatnonzero(may)
        if len(calls) == 0 or len(unit.end) == 0:
            return
        by_end = np.argsort(unit.end, kind="stable")
        found = np.searchsorted(unit.end[by_end], self._end[calls], "right") - 1
        waited = by_end[np.maximum(found, 0)]
        real = (found >= 0) & (unit.end[waited] > self._start[calls])
        real &= unit.call[waited] <= calls
        # a copy of pageable memory is staged piece by piece: the call lasts about as long as its op
        own = np.full(n, -1, np.intp)
        own[unit.call[::-1]] = np.arange(len(unit.call))[::-1]
        staged = self._pageable()[calls] & (own[calls] >= 0)
        lasts = unit.end[own[calls]] - unit.start[own[calls]]
        staged &= unit.end[own[calls]] <= self._end[calls] + STAGED_NS + lasts // 20
        waited = np.where(staged, own[calls], waited)
        real |= staged & (unit.end[waited] > self._start[calls])
        self._wait[calls[real]] = waited[real]
        self._wake[calls[real]] = self._end[calls[real]] - unit.end[waited[real]]

    def _pageable(self) -> NDArray[np.bool_]:
        """Per call: is it a copy to or from pageable memory, which holds the host?"""
        gpu = self._analysis.trace.gpu_ops
        up = (gpu.src_mem == Memory.PAGEABLE) & ~((gpu.bytes >= 0) & (gpu.bytes <= STAGED_BYTES))
        pageable = up | (gpu.dst_mem == Memory.PAGEABLE)
        return np.isin(self._calls, gpu.call[pageable & (gpu.call >= 0)])

    # --- replaying -------------------------------------------------------------------------------

    @property
    def events(self) -> int:
        """How many calls and ops (or whole graphs) are replayed."""
        return len(self._calls) + len(self._unit.start)

    @cached_property
    def residual_ns(self) -> int:
        """By how much the unedited replay misses the recorded steps."""
        return abs(self.length(Edit()) - (self.high - self.low))

    def saving(self, edit: Edit, *, untraced: bool = False) -> int:
        """How much shorter the replayed steps are with an edit, in ns for all of them.

        Args:
            edit: what is taken away.
            untraced: with the host as fast as it may be without a profiler.
        """
        if untraced not in self._unedited:
            self._unedited[untraced] = self._ends(Edit(), untraced=untraced)
        before, after = self._unedited[untraced], self._ends(edit, untraced=untraced)
        whole = int(before[-1] - after[-1])
        n = len(self.steps)
        if n == 1:
            return whole
        gains = np.diff(before, prepend=self.low) - np.diff(after, prepend=self.low)
        if untraced:
            # one stalled step must not make a fault of what costs nothing in the others
            often = 2 * self._touched(edit) > n
            return int(np.median(gains) * n) if often else whole
        if not np.isin(edit.unblock, self._first_calls).any():
            return whole
        # The first step begins where the one before left the host, which had the fault: the steps
        # after it say what a step gains.
        behind = int(gains[1:].sum()) * n // (n - 1)
        return max(whole, min(behind, int(before[-1]) - self.low))

    def _touched(self, edit: Edit) -> int:
        """In how many of the replayed steps an edit changes anything."""
        edit = self._local(edit)
        of_call = self._analysis.steps.call_step[self._calls]
        changed = [of_call[np.isin(self._calls, edit.unblock)]]
        for spans in (edit.cut, edit.capture):
            at = np.searchsorted(self._start, spans.end, "left") - 1
            if len(of_call):
                changed.append(of_call[np.maximum(at, 0)])
        ops = np.concatenate((edit.drop, np.array(list(edit.length), np.int64))).astype(np.int64)
        changed.append(self._analysis.steps.op_step[self._rows[np.isin(self._rows, ops)]])
        return len(np.unique(np.concatenate(changed)))

    def shortened(self, edit: Edit) -> int:
        """GPU time, in ns, that an edit takes from the ops of the replayed steps."""
        edit = self._local(edit)
        before = self._unit.end - self._unit.start
        after, gone = self._lengths(edit, before)
        return int((before - np.where(gone, 0, after)).sum())

    def length(self, edit: Edit, *, untraced: bool = False) -> int:
        """What the replayed steps take, in ns: from the end of the step before to their last op's.

        Args:
            edit: what is taken away.
            untraced: with the host as fast as it may be without a profiler.
        """
        return int(self._ends(edit, untraced=untraced)[-1]) - self.low

    def _ends(self, edit: Edit, *, untraced: bool) -> Int64:
        """When the last op of each step ends; a step without ops ends with the one before."""
        edit = self._local(edit)
        unit = self._unit
        lead, gap = unit.lead, unit.gap
        length = unit.end - unit.start
        captured = self._captured(edit)
        if captured.any():
            lead = np.where(captured, np.minimum(lead, LEAD_NS), lead)
            # between ops that were queued the gap is the GPU's own, graph or not
            gap = np.where(captured & unit.late, np.minimum(gap, GRAPH_GAP_NS), gap)
        host_start, host_end, lead = self._host(edit, lead, untraced=untraced)
        length, gone = self._lengths(edit, length)
        own = np.minimum(ASYNC_NS, host_end - host_start)
        waits = np.where(np.isin(self._calls, edit.unblock), -2, self._wait)
        ends = self._run(host_start, host_end, own, waits, lead, gap, length, gone)
        last = np.full(len(self.steps), self.low, np.int64)
        np.maximum.at(last, self._unit_step[~gone], ends[~gone])
        return np.maximum.accumulate(last)

    def _local(self, edit: Edit) -> Edit:
        """The part of an edit that touches what is replayed."""
        if len(self._calls) == 0:
            return Edit(drop=edit.drop, length=edit.length)
        low, high = min(self.low, int(self._start[0])), int(self._end.max())
        first, last = int(self._calls[0]), int(self._calls[-1])

        return Edit(
            clip(edit.cut, low, high),
            edit.unblock[(edit.unblock >= first) & (edit.unblock <= last)],
            edit.drop[np.isin(edit.drop, self._rows)] if len(edit.drop) else edit.drop,
            clip(edit.capture, low, high),
            edit.length,
        )

    def _run(
        self,
        host_start: Int64,
        host_end: Int64,
        own: Int64,
        waits: NDArray[np.intp],
        lead: Int64,
        gap: Int64,
        length: Int64,
        gone: NDArray[np.bool_],
    ) -> Int64:
        """Walk through the calls in order; see the head of this file. Returns the units' ends."""
        unit = self._unit
        n = len(unit.start)
        order = np.lexsort((np.arange(n), unit.call))
        first = np.searchsorted(unit.call[order], np.arange(len(self._calls) + 1)).tolist()
        units = order.tolist()
        befores, leads, gaps = unit.before.tolist(), lead.tolist(), gap.tolist()
        lengths, without = length.tolist(), gone.tolist()
        wakes, owns = self._wake.tolist(), own.tolist()
        ends = unit.end.tolist()
        shift = 0
        rows = zip(host_start.tolist(), host_end.tolist(), waits.tolist(), strict=True)
        for i, (begin, finish, wait) in enumerate(rows):
            for j in units[first[i] : first[i + 1]]:
                before = befores[j]
                free = ends[before] if before >= 0 else self.low
                ready = free + gaps[j]
                launched = begin + shift + leads[j]
                if launched > ready:
                    ready = launched
                # what comes after an op that is gone follows the one before it
                ends[j] = min(free, ready) if without[j] else ready + lengths[j]
            if wait == -1:
                continue
            done = begin + shift + owns[i]
            if wait >= 0:
                done = max(done, ends[wait] + wakes[i])
            shift = done - finish
        return np.array(ends, np.int64)

    def _captured(self, edit: Edit) -> NDArray[np.bool_]:
        """Per unit: is it launched inside an interval that becomes one graph?"""
        if len(edit.capture.start) == 0 or len(self._calls) == 0:
            return np.zeros(len(self._unit.start), np.bool_)
        at = self._start[self._unit.call]
        index = np.searchsorted(edit.capture.start, at, "right") - 1
        return (index >= 0) & (at < edit.capture.end[np.maximum(index, 0)])

    def _host(self, edit: Edit, lead: Int64, *, untraced: bool) -> tuple[Int64, Int64, Int64]:
        """When calls start and end, were there no waits, and the leads of their units.

        Host time is stretched piece by piece: a cut one has no length, an untraced one less.
        """
        cuts = [edit.cut]
        if len(edit.capture.start) and len(self._calls):
            begin, end = edit.capture.start, edit.capture.end
            at = self._start[self._unit.call[self._captured(edit)]]
            which = np.searchsorted(begin, at, "right") - 1
            nodes = np.bincount(which, minlength=len(begin))
            left = np.minimum(begin + GRAPH_LAUNCH_NS + GRAPH_NODE_NS * nodes, end)
            cuts.append(Intervals(left, end))
        removed = joined(*cuts)
        times = np.concatenate((self._start, self._end))
        if len(times) == 0:
            return self._start, self._end, lead
        graphs = union(self._start[self._graph], self._end[self._graph])
        if len(edit.capture.start):
            graphs = joined(graphs, edit.capture)
        waits, profiler = (self._waiting, self._profiler) if untraced else (EMPTY, EMPTY)
        # how long a wait lasts its end says, not what is cut from it
        still = (self._wait >= 0) & ~np.isin(self._calls, edit.unblock)
        waited = union(self._start[still], self._end[still])
        sets = (removed, graphs, waits, profiler, waited)
        marks = (times, *(edges(each) for each in sets))
        points = np.unique(np.concatenate(marks))
        rate = np.ones(len(points) - 1)
        if untraced:
            rate *= self._untraced_rate
            rate[_inside(graphs, points)] = 1 / GRAPH_INFLATION
            rate[_inside(waits, points)] = 1.0
            rate[_inside(profiler, points)] = 0.0
        rate[_inside(removed, points)] = 0.0
        rate[_inside(waited, points)] = 1.0
        work = np.concatenate(([0.0], np.cumsum(np.diff(points) * rate)))
        at = points[0] + np.round(work[np.searchsorted(points, times)]).astype(np.int64)
        n = len(self._start)
        start, end = at[:n], at[n:]
        # the part of a lead that lies in its call shrinks with the call
        call = self._unit.call
        long, short = (self._end - self._start)[call], (end - start)[call]
        held = np.minimum(np.maximum(lead, 0), long)
        shrunk = (held * (short / np.maximum(long, 1))).astype(np.int64)
        lead = np.where((lead > 0) & (short < long), lead - held + shrunk, lead)
        return start, end, lead

    def _lengths(self, edit: Edit, length: Int64) -> tuple[Int64, NDArray[np.bool_]]:
        """Lengths of the units, and which do not run at all."""
        n = len(length)
        if not len(edit.drop) and not edit.length:
            return length, np.zeros(n, np.bool_)
        gpu = self._analysis.trace.gpu_ops
        dropped = np.isin(self._rows, edit.drop)
        all_gone = np.ones(n, np.bool_)
        all_gone[self._unit_of_row[~dropped]] = False
        whole = (gpu.end - gpu.start)[self._rows]
        change = np.where(dropped, -whole, 0)
        if edit.length:
            new = np.array([edit.length.get(row, -1) for row in self._rows.tolist()], np.int64)
            change = np.where(new >= 0, new - whole, change)
        less = np.zeros(n, np.int64)
        np.add.at(less, self._unit_of_row, change)
        return np.maximum(length + less, 0), all_gone


def poll_runs(trace: Trace) -> Int64:
    """Per API call: the first query of the run that it ends, -1 for any other call.

    A thread that asks again and again whether an event has happened waits for it, as if it
    synchronized: a run is at least `POLLS` queries with no launch, copy or wait between them.
    """
    api = trace.api_calls
    first = np.full(len(api), -1, np.int64)
    rows = np.flatnonzero(~np.isin(api.role, (Role.OTHER, Role.EVENT)))
    rows = rows[np.argsort(api.thread[rows], kind="stable")]
    query = api.role[rows] == Role.QUERY
    new = np.ones(len(rows), np.bool_)
    new[1:] = ~(query[1:] & query[:-1]) | (api.thread[rows][1:] != api.thread[rows][:-1])
    begin = np.flatnonzero(new)
    last = np.append(begin[1:], len(rows)) - 1
    run = query[begin] & (last - begin + 1 >= POLLS)
    first[rows[last[run]]] = rows[begin[run]]
    return first


def _heads(first: NDArray[np.intp], n: int) -> NDArray[np.intp]:
    heads = np.zeros(n, np.intp)
    heads[first] = 1
    return heads


def _before(start: Int64, end: Int64, stream: NDArray[np.int32]) -> NDArray[np.intp]:
    """Per unit: the one that had to end first, -1 for none.

    That is the one before it on its stream; where another stream's ended later and still before
    this one began, that one (an event, or the stream's order, held it back).
    """
    n = len(start)
    before = np.full(n, -1, np.intp)
    for code in np.unique(stream).tolist():
        mine = np.flatnonzero(stream == code)
        before[mine[1:]] = mine[:-1]
    by_end = np.argsort(end, kind="stable")
    found = np.searchsorted(end[by_end], start, "right") - 1
    other = np.where(found >= 0, by_end[np.maximum(found, 0)], -1)
    own_end = np.where(before >= 0, end[before], _NEVER)
    later = (other >= 0) & (other < np.arange(n)) & (end[other] > own_end)
    return np.where(later, other, before)


def _inside(merged: Intervals, points: Int64) -> NDArray[np.intp]:
    """Cells between sorted points that merged intervals, which begin and end at points, cover."""
    return cut(merged, points).cell if len(merged.start) else np.zeros(0, np.intp)
