"""What each host thread was doing: its frames, ops and API calls as one nest, innermost first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.causes import INHERITED, ROLE_CAUSE, Cause, host_cause, is_user_frame
from hostgap.analysis.clock import Clock
from hostgap.analysis.intervals import Intervals, cut
from hostgap.analysis.nesting import Nest, innermost, nest, trim
from hostgap.analysis.steps import NONE, NUMBERED_STEP
from hostgap.trace.columns import distinct_codes
from hostgap.trace.model import Bool, HostKind, Int8, Int32, Int64, Role, Trace

FRAME, OP, CALL = range(3)  # which table an event of a thread is from
_NOTE = -2  # the code of an annotation as an op is this less it, so that ops can be told from it


@dataclass(frozen=True, slots=True)
class HostThread:
    """The events of one thread, nested, with what each says about idle time under it.

    All but the first are per event: `site` is the innermost user frame at or above it and `op`
    the outermost framework op, else the innermost annotation (codes in Trace.names, -1 without
    one); `table` and `row` say where it is recorded, `is_op` whether it is a framework op.
    """

    nested: Nest
    cause: Int8
    site: NDArray[np.signedinteger]
    op: NDArray[np.signedinteger]
    table: Int8
    row: Int32
    is_op: Bool
    event_of_call: Int32  # per row of api_calls, of any thread: its event in its own

    def events_of(self, call: NDArray[np.signedinteger]) -> NDArray[np.intp]:
        """The events of n API calls of this thread (rows of api_calls); -1 for one of no length."""
        event: NDArray[np.intp] = self.event_of_call[call].astype(np.intp)
        return event


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
        windows: n intervals (at least one) on the GPU's clock, none empty. Their pieces add up to
            them exactly.
    """
    low, high = int(windows.start.min()), int(windows.end.max())
    timeline = innermost(thread.nested, low, high)
    pieces = cut(windows, timeline.time)
    who = np.append(timeline.who, np.int32(-1))  # cell -1 and the last cell are nobody's
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
        self._event_of_call = np.full(len(trace.api_calls), NONE, np.int32)  # of built threads
        self._rows: dict[int, dict[int, Int32]] = {  # of threads that are not built yet
            FRAME: _rows_by_thread(trace.frames.thread),
            OP: _rows_by_thread(trace.host_ops.thread),
            CALL: _rows_by_thread(trace.api_calls.thread),
        }
        self._codes = sorted(set().union(*self._rows.values()))
        self._role_cause = np.array([ROLE_CAUSE[role] for role in Role], np.int8)
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
        for code in distinct_codes(self.trace.frames.name).tolist():
            cause[code] = host_cause(names[code], frame=True)
            user[code] = is_user_frame(names[code])
        return cause, user

    def _op_names(self) -> Int8:
        names = self.trace.names
        cause = np.full(len(names), Cause.DISPATCH, np.int8)
        for code in distinct_codes(self.trace.host_ops.name).tolist():
            cause[code] = host_cause(names[code], frame=False)
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
        return self._codes

    def __getitem__(self, thread: int) -> HostThread:
        if thread not in self._threads:
            self._threads[thread] = self._build(thread)
        return self._threads[thread]

    def call_sites(self, call: NDArray[np.signedinteger]) -> Int32:
        """The user frame (name code, -1) around each of n API calls (rows of api_calls)."""
        site = np.full(len(call), -1, np.int32)
        threads = self.trace.api_calls.thread[call]
        for code in distinct_codes(threads).tolist():
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
        rows: list[Int32] = []
        causes: list[Int8] = []
        sites: list[Int32] = []
        ops: list[Int32] = []
        for which, source in ((FRAME, trace.frames), (OP, trace.host_ops), (CALL, trace.api_calls)):
            at = self._rows[which].pop(thread, np.zeros(0, np.int32))
            if which == OP:
                at = at[trace.host_ops.kind[at] != HostKind.OVERHEAD]
            start, end = self._clock.to_gpu(source.start[at]), self._clock.to_gpu(source.end[at])
            lasting = end > start  # an empty event owns no time
            if not lasting.all():
                at, start, end = at[lasting], start[lasting], end[lasting]
            if which == OP and len(starts[0]):
                start, end = trim(nest(starts[0], ends[0]), start, end)
            starts.append(start)
            ends.append(end)
            rows.append(at)
            name = source.name[at]
            nothing = np.full(len(at), NONE, np.int32)
            if which == FRAME:
                causes.append(self._frame_cause[name])
                sites.append(np.where(self._is_user[name], name, NONE).astype(np.int32))
                ops.append(nothing)
            elif which == OP:
                causes.append(self._causes_of_ops(at))
                sites.append(nothing)
                ops.append(self._places_of_ops(at))
            else:
                causes.append(self._role_cause[trace.api_calls.role[at]])
                sites.append(nothing)
                ops.append(nothing)
        table = np.repeat(np.array((FRAME, OP, CALL), np.int8), [len(at) for at in rows])
        start, end = _joined(starts), _joined(ends)
        order = _outermost_first(start, end, table)
        start, end = start[order], end[order]
        nested = nest(start, end)
        del start, end
        table = table[order]
        row = _joined(rows)[order]
        cause, site, op = _joined(causes)[order], _joined(sites)[order], _joined(ops)[order]
        del order
        is_op = table == OP
        is_op[is_op] = trace.host_ops.kind[row[is_op]] == HostKind.OP
        _inherit(nested, table, cause, site, op)
        # outside every op, the innermost annotation is better than nothing
        op = np.where(op < NONE, _NOTE - op, op)
        code = np.min_scalar_type(-len(trace.names) - 1)  # the smallest type that holds any
        site, op = site.astype(code), op.astype(code)
        calls = np.flatnonzero(table == CALL)
        self._event_of_call[row[calls]] = calls
        return HostThread(nested, cause, site, op, table, row, is_op, self._event_of_call)

    def _causes_of_ops(self, rows: Int32) -> Int8:
        ops = self.trace.host_ops
        plain, kind = self._op_cause[ops.name[rows]], ops.kind[rows]
        plain[kind == HostKind.WAIT] = Cause.INPUT_WAIT
        plain[kind == HostKind.OFF_CPU] = Cause.PREEMPTED
        # an annotation is no framework op: inside it, outside an op, Python runs
        annotation = (kind == HostKind.ANNOTATION) & (plain == Cause.DISPATCH)
        plain[annotation] = Cause.PYTHON if self.tells_python() else Cause.UNTRACED
        return plain

    def _places_of_ops(self, rows: Int32) -> Int32:
        """Name codes of framework ops; of annotations `_NOTE` less it; NONE of what is no place."""
        ops = self.trace.host_ops
        name, kind = ops.name[rows], ops.kind[rows]
        note = np.where(kind == HostKind.OFF_CPU, NONE, self._notes[name])
        note = np.where(note >= 0, _NOTE - note, NONE)
        return np.where(kind == HostKind.OP, name, note).astype(np.int32)


def _joined(columns: list[NDArray[Any]]) -> NDArray[Any]:
    """The columns as one. Empties the list, so that none stands twice for long."""
    whole = np.concatenate(columns)
    columns.clear()
    return whole


def _inherit(nested: Nest, table: Int8, cause: Int8, site: Int32, op: Int32) -> None:
    """Hand sites, ops, and causes that cover all inside them, down the nest; level by level.

    Of framework ops the outermost counts, of annotations (see `_places_of_ops`) the innermost, and
    any op before any annotation.
    """
    inherits = np.isin(cause, INHERITED)
    any_inherits = inherits.any()
    for level in nested.levels[1:]:
        parent = nested.parent[level]
        above = site[parent]
        mine = site[level]
        site[level] = np.where(mine < 0, above, mine)
        above, mine = op[parent], op[level]
        op[level] = np.where((above >= 0) | (mine == NONE), above, mine)
        if any_inherits:
            # a CUDA call is what it is, wherever it is made
            takes = inherits[parent] & (table[level] != CALL)
            cause[level[takes]] = cause[parent[takes]]
            inherits[level[takes]] = True


def _outermost_first(start: Int64, end: Int64, table: Int8) -> Int32:
    """Order by start, longer first, frames before ops before calls."""
    # tables come in that order, each sorted already
    order = np.argsort(start, kind="stable").astype(np.int32)
    first, second = order[:-1], order[1:]
    tie = np.flatnonzero(start[first] == start[second])
    if (end[second[tie]] > end[first[tie]]).any():
        return np.lexsort((table, -end, start)).astype(np.int32)
    return order


def _rows_by_thread(thread: Int32) -> dict[int, Int32]:
    """thread code -> its rows, in order; each with memory of its own."""
    if len(thread) == 0:
        return {}
    if (thread == thread[0]).all():
        return {int(thread[0]): np.arange(len(thread), dtype=np.int32)}
    order = np.argsort(thread, kind="stable").astype(np.int32)
    codes, first = np.unique(thread[order], return_index=True)
    rows = [each.copy() for each in np.split(order, first[1:])]
    return dict(zip(codes.tolist(), rows, strict=True))
