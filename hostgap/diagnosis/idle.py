"""Idle time by what the host did, and the host's events that rules look for.

Functions over a `Context`; a thread is its code, an event its index in the thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.causes import Cause
from hostgap.analysis.edit import Edit
from hostgap.analysis.host import CALL, FRAME, OP
from hostgap.analysis.intervals import Intervals, union
from hostgap.analysis.parts import Parts, sum_by
from hostgap.analysis.sites import frame_precision, site_of_frame, site_of_op
from hostgap.diagnosis.model import Site
from hostgap.diagnosis.rule import Match
from hostgap.trace.model import Bool, Int64, Role

if TYPE_CHECKING:
    from hostgap.diagnosis.context import Context

# The host works, or launches, and is late: what fewer launches would spare.
HOST_LATE = (
    Cause.LAUNCH_CALL,
    Cause.LAUNCH_LATENCY,
    Cause.DISPATCH,
    Cause.API_CALL,
    Cause.PYTHON,
    Cause.UNTRACED,
)
# Where serving engines stand while no request is running: vLLM, SGLang.
_ENGINE_IDLE = re.compile(
    r"vllm/\S*engine/core\.py\(\d+\): _process_input_queue$"
    r"|sglang/\S*\(\d+\): (?:self_check_during_idle|maybe_sleep_on_idle|on_idle)$"
)


def launching_threads(context: Context) -> NDArray[np.int32]:
    """The threads that launch kernels or graphs, and the one that marks the steps."""
    api, marks = context.trace.api_calls, context.analysis.steps.marks
    threads = np.unique(api.thread[np.isin(api.role, (Role.LAUNCH, Role.GRAPH_LAUNCH))])
    return np.union1d(threads, [marks.thread] if marks.thread >= 0 else []).astype(np.int32)


def between_steps(context: Context) -> Intervals:
    """Host time (GPU clock) from a step's last launch or copy to the next one's first."""
    api, steps, chosen = context.trace.api_calls, context.analysis.steps, context.analysis.chosen
    is_launch = np.isin(api.role, (Role.LAUNCH, Role.GRAPH_LAUNCH, Role.COPY))
    rows = np.flatnonzero(is_launch & (steps.call_step >= 0))
    far = np.iinfo(np.int64).max
    first, last = np.full(len(steps), far), np.full(len(steps), -far)
    np.minimum.at(first, steps.call_step[rows], context.call_start[rows])
    np.maximum.at(last, steps.call_step[rows], context.call_end[rows])
    at = np.arange(max(chosen.start, 1), chosen.stop)
    at = at[(last[at - 1] > -far) & (first[at] < far) & (last[at - 1] < first[at])]
    return union(last[at - 1], first[at])


def named(context: Context, pattern: re.Pattern[str]) -> Bool:
    """Mask over Trace.names: those in which the pattern is found."""
    found = [pattern.search(name) is not None for name in context.trace.names]
    return np.array(found, np.bool_)


def event_names(context: Context, code: int) -> Int64:
    """Per event of a thread: the code of its name in Trace.names."""
    thread, trace = context.host[code], context.trace
    names = np.zeros(len(thread.row), np.int64)
    for which, table in ((FRAME, trace.frames), (OP, trace.host_ops), (CALL, trace.api_calls)):
        mine = thread.table == which
        names[mine] = table.name[thread.row[mine]]
    return names


def events_at(context: Context, code: int, time: Int64) -> NDArray[np.intp]:
    """The innermost event of a thread at each of n times (GPU clock), -1 for none."""
    timeline = context.host[code].timeline
    if len(timeline.time) == 0:
        return np.full(len(time), -1, np.intp)
    cell = np.searchsorted(timeline.time, time, "right") - 1
    return np.where(cell >= 0, timeline.who[np.maximum(cell, 0)], -1).astype(np.intp)


def events_under(context: Context, code: int, names: Bool) -> Bool:
    """Per event of a thread: is it, or lies it under, one with one of these names?"""
    under = names[event_names(context, code)]
    nested = context.host[code].nested
    for level in nested.levels[1:]:
        under[level] |= under[nested.parent[level]]
    return under


def outermost_caused(context: Context, code: int, cause: Cause) -> NDArray[np.intp]:
    """Per event of a thread: the outermost one with this cause at or above it, -1 for none."""
    thread = context.host[code]
    outer = np.where(thread.cause == cause, np.arange(len(thread.cause)), -1)
    for level in thread.nested.levels[1:]:
        above = outer[thread.nested.parent[level]]
        outer[level] = np.where(above >= 0, above, outer[level])
    return outer


def parts_under(context: Context, names: Bool) -> Bool:
    """Per part: does it lie under a frame, op or annotation with one of these names?"""
    parts = context.parts
    under = np.zeros(len(parts), np.bool_)
    if not names.any():
        return under
    for code in np.unique(parts.thread[parts.thread >= 0]).tolist():
        mine = np.flatnonzero(parts.thread == code)
        event = events_at(context, code, parts.start[mine])
        has = event >= 0
        under[mine[has]] = events_under(context, code, names)[event[has]]
    return under


def caused_by(context: Context, *causes: Cause) -> Bool:
    """Per part: has it one of these causes?"""
    wanted = np.zeros(len(Cause), np.bool_)
    wanted[list(causes)] = True
    return wanted[context.parts.cause]


def parts_in(context: Context, merged: Intervals) -> Bool:
    """Per part: does it begin inside a merged set?"""
    inside = np.zeros(len(context.parts) + 1, np.int8)
    # parts are in order of start
    np.add.at(inside, np.searchsorted(context.parts.start, merged.start, "left"), 1)
    np.add.at(inside, np.searchsorted(context.parts.start, merged.end, "left"), -1)
    return np.cumsum(inside[:-1], dtype=np.int8) > 0


def no_work(context: Context) -> Bool:
    """Per part: had the engine no request to run? Its idle loop, or the cause, says so."""
    return caused_by(context, Cause.NO_WORK) | parts_under(context, named(context, _ENGINE_IDLE))


def idle_by_place(
    context: Context, which: Bool, most: int = 5, parts: Parts | None = None
) -> Iterator[tuple[Site | None, Int64]]:
    """Rows of parts put together by user frame, where there is none by op or annotation.

    Args:
        which: mask over the parts.
        most: how many places; the costliest come first.
        parts: the context's own with places of the caller's choice.
    """
    trace = context.trace
    parts = context.parts if parts is None else parts
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


def idle_match(context: Context, site: Site | None, rows: Int64, title: str = "") -> Match:
    """A match of idle parts: without it the host does not spend them.

    Its calls are the launches that came late for it, its count the gaps it has a part in.
    """
    parts, launches = context.parts, context.calls_of(Role.LAUNCH, Role.GRAPH_LAUNCH)
    start, end, gap = parts.start[rows], parts.end[rows], parts.gap[rows]
    first = np.diff(gap, prepend=-1) != 0  # of its gap: parts are in order
    late = np.searchsorted(context.call_start[launches], end[first], "left")
    late = late[(np.diff(late, prepend=-1) != 0) & (late < len(launches))]
    calls = launches[late] if site is not None else launches[:0]
    edit = Edit(cut=union(start, end))
    return Match(calls=calls, edit=edit, site=site, count=int(first.sum()), title=title)


def outermost(context: Context, names: Bool) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Frames, ops and annotations with one of these names, inside no other such one, that
    begin in the window: per thread that launches, its events."""
    trace = context.trace
    has = [table.thread[names[table.name]] for table in (trace.frames, trace.host_ops)]
    for code in np.intersect1d(np.concatenate(has), launching_threads(context)).tolist():
        thread = context.host[code]
        mine = names[event_names(context, code)] & (thread.table != CALL)
        parent = thread.nested.parent
        under = events_under(context, code, names)
        mine &= ~np.where(parent >= 0, under[np.maximum(parent, 0)], False)
        events = np.flatnonzero(mine)
        events = events[context.in_steps(thread.nested.start[events])]
        if len(events):
            yield code, events


def event_site(context: Context, code: int, event: int) -> Site | None:
    """The user frame at or around an event of a thread, else its framework op."""
    thread = context.host[code]
    if thread.site[event] >= 0:
        return site_of_frame(
            context.trace.names[thread.site[event]], frame_precision(context.trace)
        )
    return site_of_op(context.trace.names[thread.op[event]]) if thread.op[event] >= 0 else None
