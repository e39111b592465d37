"""What rules ask of a trace: its window, its waits, its launches, sites, and edits of a replay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.calibration import Calibration
from hostgap.analysis.causes import Cause, host_cause
from hostgap.analysis.edit import Edit
from hostgap.analysis.examine import Analysis
from hostgap.analysis.host import Host
from hostgap.analysis.intervals import Intervals, union
from hostgap.analysis.metrics import in_window
from hostgap.analysis.parts import Pieces
from hostgap.analysis.sites import (
    call_sites,
    exact_sites,
    frame_precision,
    op_names,
    site_of_frame,
)
from hostgap.analysis.syncs import copy_syncs, shadows
from hostgap.analysis.timeline import collectives
from hostgap.analysis.whatif import Replay
from hostgap.diagnosis.chains import KernelSequence
from hostgap.diagnosis.check import said
from hostgap.diagnosis.copies import Copies, find_copies
from hostgap.diagnosis.model import Site
from hostgap.diagnosis.regions import Launches, launches
from hostgap.diagnosis.rule import Need, WaitRule
from hostgap.diagnosis.waits import Wait, Waits, find_waits, pageable_copies
from hostgap.errors import Stopped
from hostgap.profiling.measurement import Measurement
from hostgap.trace.columns import distinct_codes
from hostgap.trace.model import Bool, HostKind, Int32, Int64, Role, Trace

COMPILED = 0.2  # of the launched kernels; the matrix products beside them are a library's
_INDUCTOR = ("triton_poi_", "triton_red_", "triton_per_", "triton_for_", "triton_tem_")


@dataclass(frozen=True, slots=True)
class Launched:
    """GPU ops of the window in the order their calls were made; columns over n ops.

    Attributes:
        op: rows of gpu_ops.
        call: rows of api_calls that launched them; orphans are left out.
        graph: launched by a graph launch.
        step: the step each belongs to.
    """

    op: Int32
    call: Int32
    graph: Bool
    step: Int32


class Context:
    """A trace under diagnosis.

    Attributes:
        analysis: the tables; `trace` and `host` are short for its own.
        device: what the device with the most idle time did, `code` its code; rules are about it.
        ops, calls: masks over gpu_ops and api_calls of what belongs to the window.
        steps: how many steps the window has, at least 1.
        window_ns: its length on that device.
        counted_steps: how many steps lie in the window, with `--window trace` too.
        measurement: what `hostgap profile` measured beside the trace, if it did.
        calibration: what is known of the unprofiled step, if anything is.
        replay: the what-if, None where host and GPU clocks cannot be reconciled.
        problems: a line per wait rule that failed when it was asked what it claims.
    """

    def __init__(
        self,
        analysis: Analysis,
        wait_rules: Sequence[WaitRule] = (),
        measurement: Measurement | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        self.analysis = analysis
        self.trace: Trace = analysis.trace
        self.host: Host = analysis.host
        self.code, self.device = max(analysis.devices.items(), key=lambda item: item[1].gaps.total)
        self.ops, self.calls = in_window(analysis)
        self.window_ns = self.device.high - self.device.low
        self.steps = max(1, len(analysis.chosen)) if analysis.options.window == "steps" else 1
        in_all = len(analysis.chosen) if analysis.options.window == "steps" else len(analysis.steps)
        self.counted_steps = max(1, in_all)
        self.measurement, self.calibration = measurement, calibration
        self.problems: list[str] = []
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
        return self.measurement is not None

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

    @property
    def pieces(self) -> Pieces:
        """The idle time of the device in the window, cut by cause, in blocks."""
        return self.device.pieces

    def idle(self, *causes: Cause) -> int:
        """Idle ns of the device under any of these causes, all of it without any."""
        if not causes:
            return self.device.gaps.total
        by_cause = self.pieces.by_cause()
        return sum(by_cause.get(cause, 0) for cause in causes)

    @cached_property
    def launched(self) -> Launched:
        """The device's ops of the window, in launch order."""
        gpu, api = self.trace.gpu_ops, self.trace.api_calls
        rows = np.flatnonzero(self.ops & (gpu.device == self.code) & (gpu.call >= 0))
        rows = rows[np.lexsort((gpu.start[rows], gpu.call[rows]))]
        call = gpu.call[rows]
        graph = api.role[call] == Role.GRAPH_LAUNCH
        return Launched(rows.astype(np.int32), call, graph, self.analysis.steps.op_step[rows])

    @cached_property
    def compiled(self) -> bool:
        """Whether torch.compile made a good part of the kernels that are launched."""
        launched = self.launched
        names = self.trace.gpu_ops.name[launched.op[~launched.graph]]
        made = np.array([name.startswith(_INDUCTOR) for name in self.trace.names], np.bool_)
        return bool(len(names) and made[names].mean() >= COMPILED)

    @cached_property
    def sequence(self) -> KernelSequence:
        """The same ops as letters and columns, for patterns of kernels."""
        return KernelSequence(self)

    @cached_property
    def launches(self) -> Launches:
        """The calls that launched the device's ops, with the graph launches around each."""
        return launches(self)

    @cached_property
    def copies(self) -> Copies:
        """The copies between the host and the device for which the host does not wait."""
        return find_copies(self)

    def forget(self) -> None:
        """Drop the tables that only rules of one kind share; who asks has them made again."""
        for name in ("sequence", "launches"):
            self.__dict__.pop(name, None)

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
        mine = np.array([owner == code for owner in self._owners], np.bool_)
        return self.waits.call[mine[self.waits.kind]] if len(mine) else self.waits.call

    @cached_property
    def _owners(self) -> list[str]:
        """Per kind of waits: the code of the wait rule that claims it, "" for none."""
        return [self._owner(kind) for kind in self.waits.kinds]

    def _owner(self, kind: Wait) -> str:
        for rule in self._wait_rules:
            try:
                if rule.claims(kind):
                    return rule.code
            except (KeyboardInterrupt, Stopped):
                raise
            except BaseException as error:  # noqa: BLE001  a rule of a user's own stops no other
                problem = f"{rule.code}: claims no wait: {said(error)}"
                if problem not in self.problems:  # it is asked about every kind
                    self.problems.append(problem)
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
        mine = calls[self._is_wait[calls]]
        copies = self.copy_before[mine]
        held = copies[(copies >= 0) & self._pageable[np.maximum(copies, 0)]]
        return np.union1d(mine, held).astype(np.int64)

    @cached_property
    def _is_wait(self) -> Bool:
        mask = np.zeros(len(self.trace.api_calls), np.bool_)
        mask[self.waits.call] = True
        return mask

    @cached_property
    def shadow_ns(self) -> Int64:
        """Per API call: idle time of the device that its return was followed by."""
        return shadows(self.pieces, len(self.trace.api_calls))

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
            return self._shared_site(calls[like])
        name = self.trace.names[thread.site[at]]
        return site_of_frame(name, frame_precision(self.trace))

    def _shared_site(self, calls: Int64) -> Site | None:
        """The place of calls that all have the same; one that says nothing where they differ."""
        sites = {site for site, _ in self.by_site(calls)}
        if len(sites) == 1:
            return sites.pop()
        return Site(file=None, line=None, function=None, op=None, precision="none")

    # --- edits --------------------------------------------------------------------------------

    @cached_property
    def replay(self) -> Replay | None:
        """The what-if of the window's first steps."""
        if not self.analysis.clock.reconciled or len(self.analysis.chosen) == 0:
            return None
        return Replay(self.analysis, self.code)

    @cached_property
    def calibrated(self) -> Replay | None:
        """The same fitted to the unprofiled step, None where that was not measured."""
        if self.replay is None or self.calibration is None:
            return None
        return Replay(self.analysis, self.code, calibration=self.calibration)

    def calls_as_spans(self, calls: Int64) -> Intervals:
        """Host time (GPU clock) inside API calls."""
        return union(self.call_start[calls], self.call_end[calls])

    def op_spans(self, calls: Int64) -> Intervals:
        """Host time (GPU clock) of the outermost framework ops around API calls, else of the
        calls themselves."""
        start, end = self.call_start[calls].copy(), self.call_end[calls].copy()
        threads = self.trace.api_calls.thread[calls]
        for code in distinct_codes(threads).tolist():
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
    outer = np.where(thread.is_op, np.arange(len(thread.is_op)), -1)
    for level in thread.nested.levels[1:]:
        above = outer[thread.nested.parent[level]]
        outer[level] = np.where(above >= 0, above, outer[level])
    return outer
