"""What each host thread was doing: its frames, ops and API calls as one nest, innermost first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis import causes
from hostgap.analysis.causes import Cause
from hostgap.analysis.clock import Clock
from hostgap.analysis.intervals import Intervals, cut
from hostgap.analysis.nesting import Innermost, Nest, innermost, nest, trim
from hostgap.analysis.steps import NUMBERED_STEP
from hostgap.trace.model import Bool, HostKind, Int8, Int32, Int64, Role, Trace

FRAME, OP, CALL = range(3)  # which table an event of a thread is from


@dataclass(frozen=True, slots=True)
class HostThread:
    """The events of one thread, nested, with what each says about idle time under it.

    All but the first two are per event: `site` is the innermost user frame at or above it and `op`
    the outermost framework op, else the innermost annotation (codes in Trace.names, -1 without
    one); `table` and `row` say where it is recorded, `is_op` whether it is a framework op.
    """

    nested: Nest
    timeline: Innermost
    cause: Int8
    site: Int32
    op: Int32
    table: Int8
    row: Int32
    is_op: Bool
    calls: NDArray[np.intp]  # the events that are API calls, in order of their row

    def events_of(self, call: NDArray[np.signedinteger]) -> NDArray[np.intp]:
        """The events of n API calls (rows of api_calls); -1 for a call of no length."""
        if len(self.calls) == 0:
            return np.full(len(call), -1, np.intp)
        at = np.searchsorted(self.row[self.calls], call)
        event = self.calls[np.minimum(at, len(self.calls) - 1)]
        return np.where(self.row[event] == call, event, -1)


@dataclass(frozen=True, slots=True)
class Swept:
    """Pieces of host time: what the thread's innermost event was.

    `window` is the index of the input interval; `event` the index in the thread, -1 for none.
    """

    window: NDArray[np.intp]
    start: Int64
    end: Int64
    event: Int32


def sweep(thread: HostThread, windows: Intervals) -> Swept:
    """Cut host intervals where the innermost event of `thread` changes.

    Args:
        windows: n intervals on the GPU's clock, none empty. Their pieces add up to them exactly.
    """
    pieces = cut(windows, thread.timeline.time)
    who = np.append(thread.timeline.who, np.int32(-1))  # cell -1 and the last cell are nobody's
    return Swept(pieces.interval, pieces.start, pieces.end, who[pieces.cell])


class Host:
    """All host threads of a trace, built on demand, on the GPU's clock.

    Args:
        trace: the trace.
        clock: how host times map to the GPU's clock.
    """

    def __init__(self, trace: Trace, clock: Clock) -> None:
        self.trace = trace
        self._clock = clock
        self._threads: dict[int, HostThread] = {}
        self._rows: dict[int, dict[int, NDArray[np.intp]]] = {
            FRAME: _rows_by_thread(trace.frames.thread),
            OP: _rows_by_thread(trace.host_ops.thread),
            CALL: _rows_by_thread(trace.api_calls.thread),
        }
        self._role_cause = np.array([causes.ROLE_CAUSE[role] for role in Role], np.int8)
        self._frame_cause, self._is_user = self._frame_names()
        self._op_cause = self._op_names()
        # an annotation that only counts steps names no place
        numbered = [NUMBERED_STEP.fullmatch(name) is not None for name in trace.names]
        steps = np.array(numbered, np.bool_)
        self._notes = np.where(steps, -1, np.arange(len(trace.names))).astype(np.int32)

    def _frame_names(self) -> tuple[Int8, NDArray[np.bool_]]:
        names = self.trace.names
        cause = np.full(len(names), Cause.PYTHON, np.int8)
        user = np.zeros(len(names), np.bool_)
        for code in np.unique(self.trace.frames.name):
            cause[code] = causes.host_cause(names[code], frame=True)
            user[code] = causes.is_user_frame(names[code])
        return cause, user

    def _op_names(self) -> Int8:
        names = self.trace.names
        cause = np.full(len(names), Cause.DISPATCH, np.int8)
        for code in np.unique(self.trace.host_ops.name):
            cause[code] = causes.host_cause(names[code], frame=False)
        return cause

    def has_stacks(self) -> bool:
        """Whether the trace recorded Python frames, and not only the stacks of CUDA calls."""
        return self.trace.source == "kineto" and len(self.trace.frames) > 0

    def tells_python(self) -> bool:
        """Whether time outside framework ops is Python's.

        An Nsight export without framework ops shows neither: both are untraced there.
        """
        trace = self.trace
        if trace.source == "kineto":
            return True
        return not trace.report.ops_of_calls and bool((trace.host_ops.kind == HostKind.OP).any())

    def threads(self) -> list[int]:
        """Codes of all threads with any event."""
        return sorted(set().union(*self._rows.values()))

    def __getitem__(self, thread: int) -> HostThread:
        if thread not in self._threads:
            self._threads[thread] = self._build(thread)
        return self._threads[thread]

    def call_sites(self, call: NDArray[np.signedinteger]) -> Int32:
        """The user frame (name code, -1) around each of n API calls (rows of api_calls)."""
        site = np.full(len(call), -1, np.int32)
        threads = self.trace.api_calls.thread[call]
        for code in np.unique(threads).tolist():
            mine = np.flatnonzero(threads == code)
            event = self[code].events_of(call[mine])
            known = event >= 0
            site[mine[known]] = self[code].site[event[known]]
        lent = self.trace.call_frames
        return site if lent is None else np.where(site < 0, lent[call], site)

    def _build(self, thread: int) -> HostThread:
        trace = self.trace
        starts: list[Int64] = []
        ends: list[Int64] = []
        tables, rows, cause = [], [], []
        none = np.zeros(0, np.intp)
        for which, source in ((FRAME, trace.frames), (OP, trace.host_ops), (CALL, trace.api_calls)):
            at = self._rows[which].get(thread, none)
            if which == OP:
                at = at[trace.host_ops.kind[at] != HostKind.OVERHEAD]
            start, end = self._clock.to_gpu(source.start[at]), self._clock.to_gpu(source.end[at])
            lasting = end > start  # an empty event owns no time
            at, start, end = at[lasting], start[lasting], end[lasting]
            if which == OP and len(starts[0]):
                start, end = trim(nest(starts[0], ends[0]), start, end)
            starts.append(start)
            ends.append(end)
            tables.append(np.full(len(at), which, np.int8))
            rows.append(at.astype(np.int32))
            if which == FRAME:
                cause.append(self._frame_cause[trace.frames.name[at]])
            elif which == OP:
                # an annotation is no framework op: inside it, outside an op, Python runs
                plain = self._op_cause[trace.host_ops.name[at]]
                kind = trace.host_ops.kind[at]
                plain = np.where(kind == HostKind.WAIT, np.int8(Cause.INPUT_WAIT), plain)
                plain = np.where(kind == HostKind.OFF_CPU, np.int8(Cause.PREEMPTED), plain)
                annotation = (kind == HostKind.ANNOTATION) & (plain == Cause.DISPATCH)
                between_ops = Cause.PYTHON if self.tells_python() else Cause.UNTRACED
                cause.append(np.where(annotation, between_ops, plain))
            else:
                cause.append(self._role_cause[trace.api_calls.role[at]])
        start, end = np.concatenate(starts), np.concatenate(ends)
        del starts, ends
        order = _outermost_first(start, end, np.concatenate(tables))
        start, end = start[order], end[order]
        nested = nest(start, end)
        del start, end
        table = np.concatenate(tables)[order]
        row = np.concatenate(rows)[order]
        event_cause = np.concatenate(cause)[order].astype(np.int8)
        n = len(order)
        del order, tables, rows, cause
        site = np.full(n, -1, np.int32)
        is_frame = table == FRAME
        code = trace.frames.name[row[is_frame]]
        site[is_frame] = np.where(self._is_user[code], code, -1)
        op = np.full(n, -1, np.int32)
        is_op = table == OP
        is_op[is_op] = trace.host_ops.kind[row[is_op]] == HostKind.OP
        op[is_op] = trace.host_ops.name[row[is_op]]
        _inherit(nested, table, event_cause, site, op)
        # outside every op, the innermost annotation is better than nothing
        note = np.full(n, -1, np.int32)
        is_note = (table == OP) & ~is_op
        is_note[is_note] = trace.host_ops.kind[row[is_note]] != HostKind.OFF_CPU
        note[is_note] = self._notes[trace.host_ops.name[row[is_note]]]
        for level in nested.levels[1:]:
            unnamed = level[note[level] < 0]
            note[unnamed] = note[nested.parent[unnamed]]
        op = np.where(op >= 0, op, note)
        calls = np.flatnonzero(table == CALL)
        calls = calls[np.argsort(row[calls], kind="stable")]
        return HostThread(
            nested, innermost(nested), event_cause, site, op, table, row, is_op, calls
        )


def _inherit(nested: Nest, table: Int8, cause: Int8, site: Int32, op: Int32) -> None:
    """Hand sites, ops, and causes that cover all inside them, down the nest; level by level."""
    inherits = np.isin(cause, causes.INHERITED)
    any_inherits = inherits.any()
    for level in nested.levels[1:]:
        parent = nested.parent[level]
        bare = site[level] < 0
        site[level[bare]] = site[parent[bare]]
        inside = op[parent] >= 0
        op[level[inside]] = op[parent[inside]]
        if any_inherits:
            # a CUDA call is what it is, wherever it is made
            takes = inherits[parent] & (table[level] != CALL)
            cause[level[takes]] = cause[parent[takes]]
            inherits[level[takes]] = True


def _outermost_first(start: Int64, end: Int64, table: Int8) -> NDArray[np.intp]:
    """Order by start, longer first, frames before ops before calls."""
    order = np.argsort(start, kind="stable")  # tables come in that order, each sorted already
    tie = np.diff(start[order]) == 0
    if tie.any() and (np.diff(end[order])[tie] > 0).any():
        return np.lexsort((table, -end, start))
    return order


def _rows_by_thread(thread: Int32) -> dict[int, NDArray[np.intp]]:
    """thread code -> its rows, in order."""
    if len(thread) == 0:
        return {}
    if (thread == thread[0]).all():
        return {int(thread[0]): np.arange(len(thread))}
    order = np.argsort(thread, kind="stable")
    codes, first = np.unique(thread[order], return_index=True)
    return dict(zip(codes.tolist(), np.split(order, first[1:]), strict=True))
