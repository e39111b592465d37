"""Recorded steps of one device, ready to be played again: the host's calls and the GPU's ops.

The host runs its calls in the order it made them; what lies between them keeps its length. A GPU op
starts when its launch has reached the GPU and when what ran before it is done; a blocking call
returns when the op it waits for has ended. Played unchanged and as traced, the recorded steps come
out as they were, by construction: each op keeps the delay that it had, after its launch where the
host was late, after the op before it where the GPU was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.attribution import profiler_steps
from hostgap.analysis.causes import Cause
from hostgap.analysis.edit import Edit, joined
from hostgap.analysis.examine import Analysis
from hostgap.analysis.intervals import EMPTY, Intervals, clip, union
from hostgap.analysis.nesting import when
from hostgap.analysis.order import NEVER, prior_on_stream, waited_for
from hostgap.analysis.pace import HostSpans, Pace, paced
from hostgap.analysis.syncs import blocking_calls, closing_sync
from hostgap.trace.model import Bool, GpuKind, Int64, Memory, Role, Trace

# A graph launch as it would be traced: fixed part and per node; and the gap between its nodes.
GRAPH_LAUNCH_NS, GRAPH_NODE_NS, GRAPH_GAP_NS = 6_000, 600, 400
LEAD_NS = 3_000  # from a call's start to its op's, where the trace has no example
POLLS = 8  # queries in a row that are a wait
ASYNC_NS = 3_000  # what a blocking call takes where there is nothing to wait for
NOTHING, BEFORE, NO_MORE = -1, -2, -3  # what a call waits for that waits for no replayed unit
_MAY_DRAIN = (Role.FREE, Role.HOST_ALLOC)  # cudaFree and cudaFreeHost wait for the device
STAGED_NS = 20_000  # by which a staged copy may outlast its call
STAGED_BYTES = 64 * 1024  # an upload of at most so much from pageable memory is only staged
_NOT_WORKING = (Cause.INPUT_WAIT, Cause.REMOTE_WAIT, Cause.PREEMPTED, Cause.NO_WORK)


@dataclass(frozen=True, slots=True)
class Units:
    """GPU ops of one call: they keep their places relative to the first. Columns over n units."""

    call: NDArray[np.intp]  # index among the replayed calls
    start: Int64
    end: Int64
    before: NDArray[np.intp]  # unit that had to end first and did so last, -1 for none
    prior: NDArray[np.intp]  # the one before it on its stream, -1 for none
    lead: Int64  # from the call's start
    gap: Int64  # from the end of the unit before
    late: Bool  # the host was late for it
    graph: Bool  # the call is a graph launch
    beside: Bool  # on a stream that runs no kernels


class Playback:
    """Some consecutive steps of one device.

    Args:
        analysis: what was examined.
        device: code of the device.
        most: how many calls and ops to play at most; one step at least.
        whole: leave out the trace's last step, which may be cut short, where there are others.

    Attributes:
        steps: which steps are played.
        low, high: ns, when the last op before them ended, and their own last one.
    """

    def __init__(self, analysis: Analysis, device: int, most: int, *, whole: bool = False) -> None:
        self.analysis = analysis
        steps, trace = analysis.steps, analysis.trace
        gpu, api = trace.gpu_ops, trace.api_calls
        mine = gpu.device == device
        launching = np.zeros(len(api), np.bool_)
        launching[gpu.call[mine & (gpu.call >= 0)]] = True
        threads = np.unique(api.thread[launching])
        # calls that neither launch nor wait only take time, which lies between the others
        polls = poll_runs(trace)
        acts = launching | blocking_calls(trace) | np.isin(api.role, _MAY_DRAIN) | (polls >= 0)
        # what a recording ends with is not the step's
        follows = acts & np.isin(api.thread, threads) & ~closing_sync(trace)
        self.steps = self._sample(follows, mine, most, whole)
        low, high = self.steps.start, self.steps.stop
        self.low = int(steps.boundaries[low])
        self.high = int(steps.boundaries[high])
        chosen = follows & (steps.call_step >= low) & (steps.call_step < high)
        self.calls = np.flatnonzero(chosen)
        rows = np.flatnonzero(mine & (steps.op_step >= low) & (steps.op_step < high))
        clock = analysis.clock
        begun = np.where(polls >= 0, polls, np.arange(len(api)))[chosen]
        self.start, self.end = clock.to_gpu(api.start[begun]), clock.to_gpu(api.end[chosen])
        self.call_step = steps.call_step[self.calls]
        self.graph_call = api.role[self.calls] == Role.GRAPH_LAUNCH
        self.launching = launching[self.calls]
        self.still = self._host_time(threads.tolist(), _NOT_WORKING)
        self.collecting = self._host_time(threads.tolist(), (Cause.GC,))
        switching = profiler_steps(trace, clock)
        self.threads = threads
        self.gone = joined(EMPTY, *(switching[t] for t in threads.tolist() if t in switching))
        self._next = self._next_start(clock.to_gpu(api.start[follows & (steps.call_step == high)]))
        self._units(rows)
        self._waits()

    def _sample(self, follows: Bool, mine: Bool, most: int, whole: bool) -> range:
        """The first of the chosen steps, as many as hold at most `most` calls and ops."""
        steps, chosen = self.analysis.steps, self.analysis.chosen
        n = len(steps)
        if whole and len(chosen) > 1 and chosen.stop == n:
            chosen = chosen[:-1]
        events = np.bincount(steps.call_step[follows & (steps.call_step >= 0)], minlength=n)
        events = events + np.bincount(steps.op_step[mine & (steps.op_step >= 0)], minlength=n)
        fits = np.cumsum(events[chosen.start : chosen.stop]) <= most
        return range(chosen.start, chosen.start + max(1, int(fits.sum())))

    def _host_time(self, threads: list[int], causes: tuple[Cause, ...]) -> Intervals:
        """When the host's time went to one of some causes."""
        host = self.analysis.host
        found = [when(host[t].nested, np.isin(host[t].cause, causes)) for t in threads]
        return joined(EMPTY, *found)

    def _next_start(self, following: Int64) -> int:
        """When, as traced, the host would begin these steps again."""
        if len(self.start) == 0:
            return self.low
        if len(following):
            return max(int(following.min()), int(self.start[-1]))
        change = np.flatnonzero(np.diff(self.call_step))
        between = np.maximum(self.start[change + 1] - self.end[change], 0)
        return int(self.end.max()) + (int(np.median(between)) if len(between) else 0)

    # --- what is replayed ----------------------------------------------------------------------

    def _units(self, rows: NDArray[np.intp]) -> None:
        gpu = self.analysis.trace.gpu_ops
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
        of_step = self.analysis.steps.op_step[rows[first]][by_start]
        self.unit_step = of_step - self.steps.start
        stream = gpu.stream[rows[first]][by_start]
        at = np.searchsorted(self.calls, unit_call)
        known = (unit_call >= 0) & (at < len(self.calls))
        at = np.minimum(at, max(0, len(self.calls) - 1))
        known[known] = self.calls[at[known]] == unit_call[known]
        prior = prior_on_stream(stream)
        before = waited_for(start, end, unit_call, prior)
        prior_end = np.where(before >= 0, end[before], self.low)
        call_start, call_end = np.full((2, len(start)), NEVER, np.int64)
        call_start[known], call_end[known] = self.start[at[known]], self.end[at[known]]
        # a copy of pageable memory returns once it is done: whether it was queued, its start says
        holds = self._pageable()[at] if len(self.calls) else known
        late = known & (np.where(holds, call_start, call_end) >= prior_end)
        lead, gap = start - call_start, start - prior_end
        # an orphan runs after the unit before it, whoever launched that
        owner = np.where(known, at, -1)
        latest = np.maximum.accumulate(np.where(owner >= 0, np.arange(len(owner)), 0))
        owner = owner[latest] if len(owner) else owner
        owner = np.maximum(owner, 0).astype(np.intp)
        graph = known & self.graph_call[owner] if len(self.calls) else known
        usual = np.where(graph, _median(lead[late & graph]), _median(lead[late & ~graph]))
        spare = int(np.median(gap[~late])) if (~late).any() else GRAPH_GAP_NS
        lead = np.where(known, np.where(late, lead, np.minimum(lead, usual)), NEVER)
        gap = np.where(late, np.minimum(gap, max(spare, 0)), gap)
        works = np.isin(gpu.kind[self._rows], (GpuKind.KERNEL, GpuKind.GRAPH))
        beside = ~np.isin(stream, stream[self._unit_of_row[works]])
        self.units = Units(owner, start, end, before, prior, lead, gap, late, graph, beside)

    def _waits(self) -> None:
        """Per call: the unit whose end it waited for, and how long it then took."""
        trace, unit = self.analysis.trace, self.units
        n = len(self.calls)
        self.wait = np.full(n, NOTHING, np.intp)
        self._wake = np.zeros(n, np.int64)
        self.drained = np.zeros(n, np.bool_)  # nothing was left to wait for
        role = trace.api_calls.role[self.calls]
        may = blocking_calls(trace)[self.calls] | np.isin(role, _MAY_DRAIN) | self._pageable()
        may |= role == Role.QUERY
        calls = np.flatnonzero(may)
        if len(calls) == 0 or len(unit.end) == 0:
            return
        by_end = np.argsort(unit.end, kind="stable")
        found = np.searchsorted(unit.end[by_end], self.end[calls], "right") - 1
        waited = by_end[np.maximum(found, 0)]
        real = (found >= 0) & (unit.end[waited] > self.start[calls])
        real &= unit.call[waited] <= calls
        # a call that waited until the step before had ended: for the last op of that
        first = ~real & (self.start[calls] < self.low) & (self.low <= self.end[calls])
        # a copy of pageable memory is staged piece by piece: the call lasts about as long as its op
        own = np.full(n, -1, np.intp)
        own[unit.call[::-1]] = np.arange(len(unit.call))[::-1]
        staged = self._pageable()[calls] & (own[calls] >= 0)
        lasts = unit.end[own[calls]] - unit.start[own[calls]]
        staged &= unit.end[own[calls]] <= self.end[calls] + STAGED_NS + lasts // 20
        waited = np.where(staged, own[calls], waited)
        real |= staged & (unit.end[waited] > self.start[calls])
        self.wait[calls[first]] = BEFORE
        self._wake[calls[first]] = self.end[calls[first]] - self.low
        self.wait[calls[real]] = waited[real]
        # a synchronize that found the GPU done would have waited, had another not done so before
        idle = (found >= 0) & ~real & ~first & self._drains()[calls] & (unit.call[waited] < calls)
        self.wait[calls[idle]] = waited[idle]
        self.drained[calls[idle]] = True
        self._wake[calls[real]] = self.end[calls[real]] - unit.end[waited[real]]
        lasted = (self.end - self.start)[calls[idle]]
        self._wake[calls[idle]] = np.minimum(ASYNC_NS, lasted)

    def _drains(self) -> Bool:
        """Per call: does it wait for all that a stream or the device has been given?"""
        trace = self.analysis.trace
        names = [name.endswith(("DeviceSynchronize", "StreamSynchronize")) for name in trace.names]
        return np.array(names, np.bool_)[trace.api_calls.name[self.calls]]

    def _pageable(self) -> NDArray[np.bool_]:
        """Per call: is it a copy to or from pageable memory, which holds the host?"""
        gpu = self.analysis.trace.gpu_ops
        up = (gpu.src_mem == Memory.PAGEABLE) & ~((gpu.bytes >= 0) & (gpu.bytes <= STAGED_BYTES))
        pageable = up | (gpu.dst_mem == Memory.PAGEABLE)
        return np.isin(self.calls, gpu.call[pageable & (gpu.call >= 0)])

    def touched(self, edit: Edit) -> int:
        """In how many of the replayed steps an edit changes anything."""
        edit = self.local(edit)
        of_call = self.call_step
        changed = [of_call[np.isin(self.calls, edit.unblock)]]
        for spans in (edit.cut, edit.capture):
            at = np.searchsorted(self.start, spans.end, "left") - 1
            if len(of_call):
                changed.append(of_call[np.maximum(at, 0)])
        ops = np.concatenate((edit.drop, np.array(list(edit.length), np.int64))).astype(np.int64)
        changed.append(self.analysis.steps.op_step[self._rows[np.isin(self._rows, ops)]])
        return len(np.unique(np.concatenate(changed)))

    def shortened(self, edit: Edit) -> int:
        """GPU time, in ns, that an edit takes from the ops of the replayed steps."""
        edit = self.local(edit)
        before = self.units.end - self.units.start
        after, gone = self._lengths(edit, before)
        return int((before - np.where(gone, 0, after)).sum())

    @cached_property
    def frames(self) -> Int64:
        """When Python frames began on the replayed threads, sorted (GPU clock)."""
        frames = self.analysis.trace.frames
        begun = self.analysis.clock.to_gpu(frames.start[np.isin(frames.thread, self.threads)])
        return np.sort(begun)

    @cached_property
    def nodes(self) -> Int64:
        """How many GPU ops each unit has."""
        return np.bincount(self._unit_of_row, minlength=len(self.units.start))

    # --- playing ---------------------------------------------------------------------------------

    def play(self, edit: Edit, pace: Pace, *, host: bool = True) -> Int64:
        """How long each step takes, in ns: from one step's last op to its own. A step without ops
        takes none.

        Args:
            edit: what is taken away.
            pace: how fast host and GPU are.
            host: False for the GPU alone, with all its launches in hand.
        """
        edit = self.local(edit)
        unit = self.units
        lead, gap = pace.lead, pace.gap
        captured = self._captured(edit)
        if captured.any():
            lead = np.where(captured, np.minimum(lead, LEAD_NS), lead)
            # between ops that were queued the gap is the GPU's own, graph or not
            gap = np.where(captured & unit.late, np.minimum(gap, GRAPH_GAP_NS), gap)
        length, gone = self._lengths(edit, pace.length)
        # how long a wait lasts its end says, not what is cut from it
        waits = np.where(np.isin(self.calls, edit.unblock), NO_MORE, self.wait)
        if not pace.steady:
            waits = np.where(waits == BEFORE, NOTHING, waits)
        start, end, following, lead = self._host(edit, lead, pace, waits)
        wake = np.round(self._wake * pace.host).astype(np.int64) if pace.steady else self._wake
        if not host:
            start, end, wake = np.zeros_like(start), np.zeros_like(end), np.zeros_like(wake)
            following, waits, lead = 0, np.full_like(waits, NOTHING), np.full_like(lead, NEVER)
        own = np.where(self.drained & (waits >= 0), end - start, np.minimum(ASYNC_NS, end - start))
        walk = (start, end, own, waits, wake, lead, gap, length, gone)
        first = int(start[0]) if len(start) else self.low
        low, shift = self.low, self.low - first if pace.steady else 0
        if pace.steady:  # a first round, to see where the host is when the steps come again
            ends, shift = self._run(low, shift, *walk)
            shift += following - first
            low = max(low, int(ends[~gone].max(initial=low)))
        ends, _ = self._run(low, shift, *walk)
        last = np.full(len(self.steps), low, np.int64)
        np.maximum.at(last, self.unit_step[~gone], ends[~gone])
        return np.diff(np.maximum.accumulate(last), prepend=low)

    def spans(self, pace: Pace) -> Int64:
        """GPU time of each step with its launches in hand, in ns: from its first op's start, and
        without the copies that run beside its kernels."""
        unit = self.units
        gap = np.where(unit.beside, np.minimum(pace.gap, 0), pace.gap)
        kept = np.flatnonzero(~unit.beside)
        gap[kept[np.unique(self.unit_step[kept], return_index=True)[1]]] = 0
        length = np.where(unit.beside, 0, pace.length)
        return self.play(Edit(), replace(pace, gap=gap, length=length), host=False)

    def local(self, edit: Edit) -> Edit:
        """The part of an edit that touches what is replayed."""
        if len(self.calls) == 0:
            return Edit(drop=edit.drop, length=edit.length)
        low, high = min(self.low, int(self.start[0])), max(int(self.end.max()), self._next)
        first, last = int(self.calls[0]), int(self.calls[-1])

        return Edit(
            clip(edit.cut, low, high),
            edit.unblock[(edit.unblock >= first) & (edit.unblock <= last)],
            edit.drop[np.isin(edit.drop, self._rows)] if len(edit.drop) else edit.drop,
            clip(edit.capture, low, high),
            edit.length,
        )

    def _run(
        self,
        low: int,
        shift: int,
        host_start: Int64,
        host_end: Int64,
        own: Int64,
        waits: NDArray[np.intp],
        wake: Int64,
        lead: Int64,
        gap: Int64,
        length: Int64,
        gone: Bool,
    ) -> tuple[Int64, int]:
        """Walk through the calls in order; see the head of this file.

        Returns:
            The units' ends, and by how much the host is later than its times say.
        """
        unit = self.units
        n = len(unit.start)
        order = np.lexsort((np.arange(n), unit.call))
        first = np.searchsorted(unit.call[order], np.arange(len(self.calls) + 1)).tolist()
        units = order.tolist()
        befores, priors = unit.before.tolist(), unit.prior.tolist()
        leads, gaps = lead.tolist(), gap.tolist()
        lengths, without = length.tolist(), gone.tolist()
        wakes, owns = wake.tolist(), own.tolist()
        ends = unit.end.tolist()
        rows = zip(host_start.tolist(), host_end.tolist(), waits.tolist(), strict=True)
        for i, (begin, finish, wait) in enumerate(rows):
            for j in units[first[i] : first[i + 1]]:
                before, prior = befores[j], priors[j]
                free = ends[before] if before >= 0 else low
                if prior >= 0 and ends[prior] > free:  # once what it waited for is shorter
                    free = ends[prior]
                ready = free + gaps[j]
                launched = begin + shift + leads[j]
                if launched > ready:
                    ready = launched
                # what comes after an op that is gone follows the one before it
                ends[j] = min(free, ready) if without[j] else ready + lengths[j]
            if wait == NOTHING:
                continue
            done = begin + shift + owns[i]
            if wait != NO_MORE:
                done = max(done, (ends[wait] if wait >= 0 else low) + wakes[i])
            shift = done - finish
        return np.array(ends, np.int64), shift

    def _captured(self, edit: Edit) -> NDArray[np.bool_]:
        """Per unit: is it launched inside an interval that becomes one graph?"""
        if len(edit.capture.start) == 0 or len(self.calls) == 0:
            return np.zeros(len(self.units.start), np.bool_)
        at = self.start[self.units.call]
        index = np.searchsorted(edit.capture.start, at, "right") - 1
        return (index >= 0) & (at < edit.capture.end[np.maximum(index, 0)])

    def _host(
        self, edit: Edit, lead: Int64, pace: Pace, waits: NDArray[np.intp]
    ) -> tuple[Int64, Int64, int, Int64]:
        """When calls start and end, were there no waits, when the host would begin again, and the
        leads of the units.

        Host time is stretched piece by piece: a cut one has no length.
        """
        cuts = [edit.cut]
        if len(edit.capture.start) and len(self.calls):
            begin, end = edit.capture.start, edit.capture.end
            at = self.start[self.units.call[self._captured(edit)]]
            which = np.searchsorted(begin, at, "right") - 1
            nodes = np.bincount(which, minlength=len(begin))
            left = np.minimum(begin + GRAPH_LAUNCH_NS + GRAPH_NODE_NS * nodes, end)
            cuts.append(Intervals(left, end))
        n = len(self.start)
        if n == 0:
            return self.start, self.end, self.low, lead
        graphs = union(self.start[self.graph_call], self.end[self.graph_call])
        if len(edit.capture.start):
            graphs = joined(graphs, edit.capture)
        waiting = ((waits >= 0) & ~self.drained) | (waits == BEFORE)
        spans = HostSpans(
            calls=Intervals(self.start, self.end),
            graphs=graphs,
            removed=joined(*cuts),
            waited=union(self.start[waiting], self.end[waiting]),
        )
        at = paced(np.concatenate((self.start, self.end, [self._next])), spans, pace)
        start, end = at[:n], at[n : 2 * n]
        # the part of a lead that lies in its call is stretched with the call
        call = self.units.call
        traced, now = (self.end - self.start)[call], (end - start)[call]
        held = np.minimum(np.maximum(lead, 0), traced)
        inside = (held * (now / np.maximum(traced, 1))).astype(np.int64)
        lead = np.where((lead > 0) & (now != traced), lead - held + inside, lead)
        return start, end, int(at[-1]), lead

    def _lengths(self, edit: Edit, length: Int64) -> tuple[Int64, NDArray[np.bool_]]:
        """Lengths of the units, which are `length` without the edit, and which do not run."""
        n = len(length)
        if not len(edit.drop) and not edit.length:
            return length, np.zeros(n, np.bool_)
        gpu = self.analysis.trace.gpu_ops
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
        traced = self.units.end - self.units.start
        left = np.maximum(traced + less, 0)
        # what is taken from ops that are shorter than traced is shorter, too
        kept = np.where(less == 0, length, left * (length / np.maximum(traced, 1)))
        return np.where(length == traced, left, kept).astype(np.int64), all_gone


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


def _median(lead: Int64) -> int:
    return int(np.median(lead)) if len(lead) else LEAD_NS


def _heads(first: NDArray[np.intp], n: int) -> NDArray[np.intp]:
    heads = np.zeros(n, np.intp)
    heads[first] = 1
    return heads
