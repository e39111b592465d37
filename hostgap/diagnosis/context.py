"""What rules ask of a trace: its window, its waits, its launches, sites, and edits of a replay."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.causes import Cause, host_cause
from hostgap.analysis.examine import Analysis
from hostgap.analysis.host import CALL, FRAME, OP, Host
from hostgap.analysis.intervals import Intervals, union
from hostgap.analysis.metrics import in_window
from hostgap.analysis.parts import NONE, Parts, sum_by
from hostgap.analysis.sites import (
    call_sites,
    exact_sites,
    frame_precision,
    op_names,
    site_of_frame,
    site_of_op,
)
from hostgap.analysis.syncs import copy_syncs
from hostgap.analysis.timeline import collectives
from hostgap.analysis.whatif import Edit, Replay
from hostgap.diagnosis.chains import KernelSequence
from hostgap.diagnosis.model import Site
from hostgap.diagnosis.regions import Launches, launches
from hostgap.diagnosis.rule import Match, Need, WaitRule
from hostgap.diagnosis.waits import Wait, Waits, find_waits, pageable_copies
from hostgap.trace.model import Bool, HostKind, Int64, Role, Trace

RANK_SAMPLES = 8
# Where serving engines stand while no request is running: vLLM, SGLang.
_ENGINE_IDLE = re.compile(
    r"vllm/\S*engine/core\.py\(\d+\): _process_input_queue$"
    r"|sglang/\S*\(\d+\): (?:self_check_during_idle|maybe_sleep_on_idle|on_idle)$"
)


@dataclass(frozen=True, slots=True)
class Launched:
    """GPU ops of the window in the order their calls were made; columns over n ops.

    Attributes:
        op: rows of gpu_ops.
        call: rows of api_calls that launched them; orphans are left out.
        graph: launched by a graph launch.
        step: the step each belongs to.
    """

    op: Int64
    call: Int64
    graph: Bool
    step: NDArray[np.int32]


class Context:
    """A trace under diagnosis.

    Attributes:
        analysis: the tables; `trace` and `host` are short for its own.
        device: what the device with the most idle time did, `code` its code; rules are about it.
        ops, calls: masks over gpu_ops and api_calls of what belongs to the window.
        steps: how many steps the window has, at least 1.
        window_ns: its length on that device.
        replay: the what-if, None where host and GPU clocks cannot be reconciled.
    """

    def __init__(self, analysis: Analysis, wait_rules: Sequence[WaitRule] = ()) -> None:
        self.analysis = analysis
        self.trace: Trace = analysis.trace
        self.host: Host = analysis.host
        self.code, self.device = max(analysis.devices.items(), key=lambda item: item[1].gaps.total)
        self.ops, self.calls = in_window(analysis)
        self.window_ns = self.device.high - self.device.low
        self.steps = max(1, len(analysis.chosen)) if analysis.options.window == "steps" else 1
        self._wait_rules = sorted(wait_rules, key=lambda rule: (rule.order, rule.code))

    # --- what the trace has -------------------------------------------------------------------

    def lacks(self, needs: Sequence[Need]) -> Need | None:
        """The first of the needs that the trace does not meet, None when it meets all."""
        return next((need for need in needs if not self._has(need)), None)

    def _has(self, need: Need) -> bool:
        kinds = self.trace.host_ops.kind
        if need is Need.API_CALLS:
            return len(self.trace.api_calls) > 0
        if need is Need.OPS:
            return bool((kinds == HostKind.OP).any())
        if need is Need.STACKS:
            return len(self.trace.frames) > 0
        if need is Need.STEPS:
            return self.analysis.steps.marks.source != "whole" and len(self.analysis.steps) > 1
        if need is Need.SCHEDULING:
            return bool((kinds == HostKind.OFF_CPU).any())
        if need is Need.GC:
            return self.host.has_stacks() or bool(self._gc_names[self.trace.host_ops.name].any())
        if need is Need.RANKS:
            return bool(self.collective.any())
        return False

    @cached_property
    def _gc_names(self) -> Bool:
        """Mask over Trace.names: ranges that mark a collection, such as `gc`."""
        found = [host_cause(name, frame=False) is Cause.GC for name in self.trace.names]
        return np.array(found, np.bool_)

    # --- GPU ----------------------------------------------------------------------------------

    @cached_property
    def collective(self) -> Bool:
        """Per row of gpu_ops: is it a collective?"""
        return collectives(self.trace)

    @cached_property
    def rank_wait_ns(self) -> int:
        """Time of the window in collectives beyond their own cost, an upper bound.

        A collective's own cost is taken to be the 5th percentile of those of the same name; with
        fewer than `RANK_SAMPLES` of a name nothing can be said of it.
        """
        gpu = self.trace.gpu_ops
        rows = np.flatnonzero(self.ops & self.collective & (gpu.device == self.code))
        length = (gpu.end - gpu.start)[rows]
        total = 0
        for name in np.unique(gpu.name[rows]).tolist():
            mine = length[gpu.name[rows] == name]
            if len(mine) >= RANK_SAMPLES:
                total += int(np.maximum(mine - np.percentile(mine, 5), 0).sum())
        return total

    @cached_property
    def ranks(self) -> list[int]:
        """Codes of the devices of the trace that run collectives."""
        gpu = self.trace.gpu_ops
        found = np.unique(gpu.device[self.collective]).tolist()
        return [code for code in found if code in self.analysis.devices]

    def collectives_of(self, device: int, name: int) -> Int64:
        """Rows of gpu_ops of a device's collectives of one name, in order."""
        gpu = self.trace.gpu_ops
        mine = self.collective & (gpu.device == device) & (gpu.name == name)
        return np.flatnonzero(mine).astype(np.int64)

    @cached_property
    def arrivals(self) -> dict[int, Int64]:
        """Collectives of the window that all ranks of the trace run equally often: name -> rows of
        gpu_ops, a line per rank of `ranks` and a column per collective; empty with one rank."""
        if len(self.ranks) < 2:
            return {}
        gpu, found = self.trace.gpu_ops, {}
        for name in np.unique(gpu.name[self.collective]).tolist():
            rows = [self.collectives_of(code, name) for code in self.ranks]
            if len({len(of_rank) for of_rank in rows}) == 1:
                table = np.stack(rows)
                found[name] = table[:, self.ops[table].all(axis=0)]
        return {name: table for name, table in found.items() if table.size}

    @cached_property
    def parts(self) -> Parts:
        """The idle time of the device in the window, cut by cause."""
        return self.device.parts

    def idle(self, *causes: Cause) -> int:
        """Idle ns of the device under any of these causes, all of it without any."""
        if not causes:
            return self.device.gaps.total
        return sum(self._by_cause.get(cause, 0) for cause in causes)

    @cached_property
    def _by_cause(self) -> dict[Cause, int]:
        return self.parts.by_cause()

    @cached_property
    def launched(self) -> Launched:
        """The device's ops of the window, in launch order."""
        gpu, api = self.trace.gpu_ops, self.trace.api_calls
        rows = np.flatnonzero(self.ops & (gpu.device == self.code) & (gpu.call >= 0))
        rows = rows[np.lexsort((gpu.start[rows], gpu.call[rows]))]
        call = gpu.call[rows].astype(np.int64)
        graph = api.role[call] == Role.GRAPH_LAUNCH
        return Launched(rows.astype(np.int64), call, graph, self.analysis.steps.op_step[rows])

    @cached_property
    def sequence(self) -> KernelSequence:
        """The same ops as letters and columns, for patterns of kernels."""
        return KernelSequence(self)

    @cached_property
    def launches(self) -> Launches:
        """The calls that launched the device's ops, with the graph launches around each."""
        return launches(self)

    # --- host ---------------------------------------------------------------------------------

    @cached_property
    def call_start(self) -> Int64:
        """Start of every API call, on the GPU's clock."""
        return self.analysis.clock.to_gpu(self.trace.api_calls.start)

    @cached_property
    def call_end(self) -> Int64:
        """End of every API call, on the GPU's clock."""
        return self.analysis.clock.to_gpu(self.trace.api_calls.end)

    def calls_of(self, *roles: Role, name: str = "") -> Int64:
        """Rows of api_calls of the window with one of these roles, and `name` in their names."""
        api = self.trace.api_calls
        rows = np.flatnonzero(self.calls & np.isin(api.role, roles))
        if name:
            has = np.array([name in text for text in self.trace.names], np.bool_)
            rows = rows[has[api.name[rows]]]
        return rows.astype(np.int64)

    def in_steps(self, time: Int64) -> Bool:
        """Which host times (GPU clock) lie in the chosen steps; all with `--window trace`."""
        if self.analysis.options.window == "trace" or len(self.analysis.steps) == 0:
            return np.ones(len(time), np.bool_)
        spans = self.step_spans()
        return np.asarray((time >= spans.start[0]) & (time < spans.end[-1]))

    def step_spans(self) -> Intervals:
        """Host time (GPU clock) of each chosen step: from its start to that of the next."""
        marks, chosen = self.analysis.steps.marks, self.analysis.chosen
        last = self.device.high if marks.stop is None else marks.stop
        if len(self.call_end):
            last = max(last, int(self.call_end.max()))
        edges = np.append(marks.start, last)
        return Intervals(
            edges[chosen.start : chosen.stop], edges[chosen.start + 1 : chosen.stop + 1]
        )

    @cached_property
    def waits(self) -> Waits:
        """The calls of the window in which the host waits for the GPU."""
        return find_waits(self.host, self.calls)

    def waits_of(self, code: str) -> Int64:
        """Rows of api_calls of the waits that are the wait rule `code`'s."""
        owner = [self._owner(kind) for kind in self.waits.kinds]
        mine = np.array([name == code for name in owner], np.bool_)
        return self.waits.call[mine[self.waits.kind]] if len(owner) else self.waits.call

    def _owner(self, kind: Wait) -> str:
        """Code of the wait rule that claims a kind of waits, "" for none."""
        for rule in self._wait_rules:
            try:
                if rule.claims(kind):
                    return rule.code
            except Exception:  # noqa: BLE001  a rule of a user's own claims nothing then
                continue
        return ""

    @cached_property
    def copy_before(self) -> Int64:
        """Per API call: the copy (row of api_calls) that it stands right behind and waits for, -1
        where it is no such synchronize."""
        syncs = copy_syncs(self.trace)
        copies = np.flatnonzero(syncs >= 0)
        before = np.full(len(syncs), -1, np.int64)
        before[syncs[copies]] = copies
        return before

    def with_copies(self, calls: Int64) -> Int64:
        """Calls that wait, and with each synchronize the copy that it waits for."""
        copies = self.copy_before[calls]
        return np.union1d(calls, copies[copies >= 0]).astype(np.int64)

    def waiting(self, calls: Int64) -> Int64:
        """Those of some calls in which the host waits, and the pageable copies before them."""
        mine = np.isin(self.waits.call, calls)
        copies = self.copy_before[self.waits.call[mine]]
        held = copies[(copies >= 0) & self._pageable[np.maximum(copies, 0)]]
        return np.union1d(self.waits.call[mine], held).astype(np.int64)

    @cached_property
    def shadow_ns(self) -> Int64:
        """Per API call: idle time of the device that its return was followed by."""
        blamed = np.flatnonzero(self.parts.blame != NONE)
        length = self.parts.end[blamed] - self.parts.start[blamed]
        return sum_by(self.parts.blame[blamed], length, len(self.trace.api_calls))

    @cached_property
    def _pageable(self) -> Bool:
        return pageable_copies(self.trace)

    def op_names(self, calls: Int64) -> list[tuple[str, ...]]:
        """The framework ops around n API calls, outermost first."""
        return op_names(self.host, calls)

    def by_site(self, calls: Int64) -> Iterator[tuple[Site | None, Int64]]:
        """API calls put together by where the user's code makes them."""
        grouped: dict[Site | None, list[int]] = {}
        rows32 = calls.astype(np.int32)
        roots = self.analysis.options.source_roots
        sites = exact_sites(self.host, rows32, call_sites(self.host, rows32), roots)
        for row, site in zip(calls.tolist(), sites, strict=True):
            grouped.setdefault(site, []).append(row)
        for site, rows in grouped.items():
            yield site, np.array(rows, np.int64)

    def region_site(self, calls: Int64) -> Site | None:
        """The innermost user frame around all of these calls of one thread, in one step.

        Args:
            calls: rows of api_calls; those of the first one's thread and step say where.
        """
        if len(calls) == 0:
            return None
        api, steps = self.trace.api_calls, self.analysis.steps
        like = (api.thread[calls] == api.thread[calls[0]]) & (
            steps.call_step[calls] == steps.call_step[calls[0]]
        )
        thread = self.host[int(api.thread[calls[0]])]
        events = thread.events_of(calls[like])
        events = events[events >= 0]
        if len(events) == 0:
            return None
        low, high = int(thread.nested.start[events].min()), int(thread.nested.end[events].max())
        at = int(events[0])
        while at >= 0 and not (thread.nested.start[at] <= low and thread.nested.end[at] >= high):
            at = int(thread.nested.parent[at])
        if at < 0 or thread.site[at] < 0:
            return None
        name = self.trace.names[thread.site[at]]
        return site_of_frame(name, frame_precision(self.trace))

    # --- idle time by what the host did -------------------------------------------------------

    @cached_property
    def launchers(self) -> NDArray[np.int32]:
        """The threads that launch kernels or graphs, and the one that marks the steps."""
        api, marks = self.trace.api_calls, self.analysis.steps.marks
        threads = np.unique(api.thread[np.isin(api.role, (Role.LAUNCH, Role.GRAPH_LAUNCH))])
        return np.union1d(threads, [marks.thread] if marks.thread >= 0 else []).astype(np.int32)

    @cached_property
    def between_steps(self) -> Intervals:
        """Host time (GPU clock) from a step's last launch or copy to the next one's first."""
        api, steps, chosen = self.trace.api_calls, self.analysis.steps, self.analysis.chosen
        is_launch = np.isin(api.role, (Role.LAUNCH, Role.GRAPH_LAUNCH, Role.COPY))
        rows = np.flatnonzero(is_launch & (steps.call_step >= 0))
        far = np.iinfo(np.int64).max
        first, last = np.full(len(steps), far), np.full(len(steps), -far)
        np.minimum.at(first, steps.call_step[rows], self.call_start[rows])
        np.maximum.at(last, steps.call_step[rows], self.call_end[rows])
        at = np.arange(max(chosen.start, 1), chosen.stop)
        at = at[(last[at - 1] > -far) & (first[at] < far) & (last[at - 1] < first[at])]
        return union(last[at - 1], first[at])

    def named(self, pattern: re.Pattern[str]) -> Bool:
        """Mask over Trace.names: those in which the pattern is found."""
        found = [pattern.search(name) is not None for name in self.trace.names]
        return np.array(found, np.bool_)

    def event_names(self, code: int) -> Int64:
        """Per event of a thread: the code of its name in Trace.names."""
        thread, trace = self.host[code], self.trace
        names = np.zeros(len(thread.row), np.int64)
        for which, table in ((FRAME, trace.frames), (OP, trace.host_ops), (CALL, trace.api_calls)):
            mine = thread.table == which
            names[mine] = table.name[thread.row[mine]]
        return names

    def events_at(self, code: int, time: Int64) -> NDArray[np.intp]:
        """The innermost event of a thread at each of n times (GPU clock), -1 for none."""
        timeline = self.host[code].timeline
        if len(timeline.time) == 0:
            return np.full(len(time), -1, np.intp)
        cell = np.searchsorted(timeline.time, time, "right") - 1
        return np.where(cell >= 0, timeline.who[np.maximum(cell, 0)], -1).astype(np.intp)

    def events_under(self, code: int, names: Bool) -> Bool:
        """Per event of a thread: is it, or lies it under, one with one of these names?"""
        under = names[self.event_names(code)]
        nested = self.host[code].nested
        for level in nested.levels[1:]:
            under[level] |= under[nested.parent[level]]
        return under

    def outermost_caused(self, code: int, cause: Cause) -> NDArray[np.intp]:
        """Per event of a thread: the outermost one with this cause at or above it, -1 for none."""
        thread = self.host[code]
        outer = np.where(thread.cause == cause, np.arange(len(thread.cause)), -1)
        for level in thread.nested.levels[1:]:
            above = outer[thread.nested.parent[level]]
            outer[level] = np.where(above >= 0, above, outer[level])
        return outer

    def parts_under(self, names: Bool) -> Bool:
        """Per part: does it lie under a frame, op or annotation with one of these names?"""
        parts = self.parts
        under = np.zeros(len(parts), np.bool_)
        if not names.any():
            return under
        for code in np.unique(parts.thread[parts.thread >= 0]).tolist():
            mine = np.flatnonzero(parts.thread == code)
            event = self.events_at(code, parts.start[mine])
            has = event >= 0
            under[mine[has]] = self.events_under(code, names)[event[has]]
        return under

    def caused_by(self, *causes: Cause) -> Bool:
        """Per part: has it one of these causes?"""
        wanted = np.zeros(len(Cause), np.bool_)
        wanted[list(causes)] = True
        return wanted[self.parts.cause]

    def parts_in(self, merged: Intervals) -> Bool:
        """Per part: does it begin inside a merged set?"""
        inside = np.zeros(len(self.parts) + 1, np.int8)
        # parts are in order of start
        np.add.at(inside, np.searchsorted(self.parts.start, merged.start, "left"), 1)
        np.add.at(inside, np.searchsorted(self.parts.start, merged.end, "left"), -1)
        return np.cumsum(inside[:-1], dtype=np.int8) > 0

    @cached_property
    def no_work(self) -> Bool:
        """Per part: had the engine no request to run? Its idle loop, or the cause, says so."""
        return self.caused_by(Cause.NO_WORK) | self.parts_under(self.named(_ENGINE_IDLE))

    def idle_by_place(
        self, which: Bool, most: int = 5, parts: Parts | None = None
    ) -> Iterator[tuple[Site | None, Int64]]:
        """Rows of parts put together by user frame, where there is none by op or annotation.

        Args:
            which: mask over the parts.
            most: how many places; the costliest come first.
            parts: the context's own with places of the caller's choice.
        """
        trace = self.trace
        parts = self.parts if parts is None else parts
        rows = np.flatnonzero(which)
        # a frame's code is even, an op's odd, 0 is neither
        frame, op = parts.site[rows].astype(np.int64), parts.op[rows].astype(np.int64)
        place = np.where(frame >= 0, 2 * frame + 2, np.where(op >= 0, 2 * op + 3, 0))
        total = sum_by(place, parts.length[rows], 2 * len(trace.names) + 2)
        for key in np.argsort(-total, kind="stable")[:most].tolist():
            if total[key] == 0:
                return
            name = trace.names[key // 2 - 1] if key else ""
            site = site_of_frame(name, frame_precision(trace)) if key and key % 2 == 0 else None
            yield site or (site_of_op(name) if key else None), rows[place == key]

    def idle_match(self, site: Site | None, rows: Int64, title: str = "") -> Match:
        """A match of idle parts: without it the host does not spend them.

        Its calls are the launches that came late for it, its count the gaps it has a part in.
        """
        parts, launches = self.parts, self._launches
        start, end, gap = parts.start[rows], parts.end[rows], parts.gap[rows]
        first = np.diff(gap, prepend=-1) != 0  # of its gap: parts are in order
        late = np.searchsorted(self.call_start[launches], end[first], "left")
        late = late[(np.diff(late, prepend=-1) != 0) & (late < len(launches))]
        calls = launches[late] if site is not None else launches[:0]
        edit = Edit(cut=union(start, end))
        return Match(calls=calls, edit=edit, site=site, count=int(first.sum()), title=title)

    @cached_property
    def _launches(self) -> Int64:
        return self.calls_of(Role.LAUNCH, Role.GRAPH_LAUNCH)

    def outermost(self, names: Bool) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """Frames, ops and annotations with one of these names, inside no other such one, that
        begin in the window: per thread that launches, its events."""
        trace = self.trace
        has = [table.thread[names[table.name]] for table in (trace.frames, trace.host_ops)]
        for code in np.intersect1d(np.concatenate(has), self.launchers).tolist():
            thread = self.host[code]
            mine = names[self.event_names(code)] & (thread.table != CALL)
            parent = thread.nested.parent
            under = self.events_under(code, names)
            mine &= ~np.where(parent >= 0, under[np.maximum(parent, 0)], False)
            events = np.flatnonzero(mine)
            events = events[self.in_steps(thread.nested.start[events])]
            if len(events):
                yield code, events

    def event_site(self, code: int, event: int) -> Site | None:
        """The user frame at or around an event of a thread, else its framework op."""
        thread = self.host[code]
        if thread.site[event] >= 0:
            return site_of_frame(self.trace.names[thread.site[event]], frame_precision(self.trace))
        return site_of_op(self.trace.names[thread.op[event]]) if thread.op[event] >= 0 else None

    # --- edits --------------------------------------------------------------------------------

    @cached_property
    def replay(self) -> Replay | None:
        """The what-if of the window's first steps."""
        if not self.analysis.clock.reconciled or len(self.analysis.chosen) == 0:
            return None
        return Replay(self.analysis, self.code)

    def calls_as_spans(self, calls: Int64) -> Intervals:
        """Host time (GPU clock) inside API calls."""
        return union(self.call_start[calls], self.call_end[calls])

    def op_spans(self, calls: Int64) -> Intervals:
        """Host time (GPU clock) of the outermost framework ops around API calls, else of the
        calls themselves."""
        start, end = self.call_start[calls].copy(), self.call_end[calls].copy()
        threads = self.trace.api_calls.thread[calls]
        for code in np.unique(threads).tolist():
            mine = np.flatnonzero(threads == code)
            thread = self.host[code]
            outer = _outermost_op(self.host, code)
            event = thread.events_of(calls[mine])
            found = np.where(event >= 0, outer[np.maximum(event, 0)], -1)
            has = found >= 0
            start[mine[has]] = thread.nested.start[found[has]]
            end[mine[has]] = thread.nested.end[found[has]]
        return union(start, end)

    def gpu_ops_of(self, calls: Int64) -> Int64:
        """Rows of gpu_ops that API calls launched."""
        return np.flatnonzero(np.isin(self.trace.gpu_ops.call, calls)).astype(np.int64)

    def without(self, calls: Int64) -> Edit:
        """The world in which these calls, the ops around them and their GPU work are gone."""
        return Edit(cut=self.op_spans(calls), unblock=calls, drop=self.gpu_ops_of(calls))


def _outermost_op(host: Host, code: int) -> NDArray[np.intp]:
    """Per event of a thread: the outermost framework op at or above it, -1 without one."""
    thread = host[code]
    is_op = thread.table == OP
    is_op[is_op] = host.trace.host_ops.kind[thread.row[is_op]] == HostKind.OP
    outer = np.where(is_op, np.arange(len(is_op)), -1)
    for level in thread.nested.levels[1:]:
        above = outer[thread.nested.parent[level]]
        outer[level] = np.where(above >= 0, above, outer[level])
    return outer
