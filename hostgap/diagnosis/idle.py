"""Idle time by what the host did, and the host's events that rules look for.

Functions over a `Context`; a thread is its code, an event its index in the thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.causes import Cause
from hostgap.analysis.edit import Edit
from hostgap.analysis.host import CALL, FRAME, OP
from hostgap.analysis.intervals import EMPTY, Intervals, union
from hostgap.analysis.nesting import Nest
from hostgap.analysis.parts import Parts, Pieces, sum_by
from hostgap.analysis.sites import (
    frame_precision,
    places,
    site_of_frame,
    site_of_op,
    site_of_place,
)
from hostgap.diagnosis.model import Site
from hostgap.diagnosis.rule import Match
from hostgap.trace.columns import distinct, distinct_codes
from hostgap.trace.model import Bool, Int32, Int64, Role

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
_NOWHERE, _OUT = -1, -2  # places: neither a frame nor an op; not chosen
Which = Callable[[Parts], Bool]  # chooses some parts of a block
# Where serving engines stand while no request is running: vLLM, SGLang.
_ENGINE_IDLE = re.compile(
    r"vllm/\S*engine/core\.py\(\d+\): _process_input_queue$"
    r"|sglang/\S*\(\d+\): (?:self_check_during_idle|maybe_sleep_on_idle|on_idle)$"
)


def launching_threads(context: Context) -> NDArray[np.int32]:
    """The threads that launch kernels or graphs, and the one that marks the steps."""
    api, marks = context.trace.api_calls, context.analysis.steps.marks
    threads = distinct_codes(api.thread[np.isin(api.role, (Role.LAUNCH, Role.GRAPH_LAUNCH))])
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


def event_names(context: Context, code: int) -> Int32:
    """Per event of a thread: the code of its name in Trace.names."""
    thread, trace = context.host[code], context.trace
    names = np.zeros(len(thread.row), np.int32)
    for which, table in ((FRAME, trace.frames), (OP, trace.host_ops), (CALL, trace.api_calls)):
        mine = thread.table == which
        names[mine] = table.name[thread.row[mine]]
    return names


def events_at(context: Context, code: int, time: Int64) -> NDArray[np.intp]:
    """The innermost event of a thread at each of n times (GPU clock), -1 for none."""
    return context.host[code].nested.around(time).astype(np.intp)


def events_under(context: Context, code: int, names: Bool) -> Bool:
    """Per event of a thread: is it, or lies it under, one with one of these names?"""
    return at_or_under(context.host[code].nested, names[event_names(context, code)])


def at_or_under(nested: Nest, mine: Bool) -> Bool:
    """Per event: is it, or lies it under, one of these?"""
    under = mine.copy()
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


def parts_under(context: Context, names: Bool) -> Which:
    """Chooses parts under a frame, op or annotation with one of these names."""
    masks: dict[int, Bool] = {}

    def which(parts: Parts) -> Bool:
        under = np.zeros(len(parts), np.bool_)
        if not names.any():
            return under
        for code in distinct_codes(parts.thread[parts.thread >= 0]).tolist():
            if code not in masks:
                masks[code] = events_under(context, code, names)
            mine = np.flatnonzero(parts.thread == code)
            event = events_at(context, code, parts.start[mine])
            has = event >= 0
            under[mine[has]] = masks[code][event[has]]
        return under

    return which


def caused_by(parts: Parts, *causes: Cause) -> Bool:
    """Per part: has it one of these causes?"""
    wanted = np.zeros(len(Cause), np.bool_)
    wanted[list(causes)] = True
    return wanted[parts.cause]


def parts_in(parts: Parts, merged: Intervals) -> Bool:
    """Per part: does it begin inside a merged set?"""
    inside = np.zeros(len(parts) + 1, np.int8)
    # parts are in order of start
    np.add.at(inside, np.searchsorted(parts.start, merged.start, "left"), 1)
    np.add.at(inside, np.searchsorted(parts.start, merged.end, "left"), -1)
    return np.cumsum(inside[:-1], dtype=np.int8) > 0


def no_work(context: Context) -> Which:
    """Chooses parts in which the engine had no request to run: its idle loop, or the cause, says
    so."""
    in_loop = parts_under(context, named(context, _ENGINE_IDLE))
    return lambda parts: caused_by(parts, Cause.NO_WORK) | in_loop(parts)


@dataclass(frozen=True, slots=True)
class Idle:
    """Some idle time.

    Attributes:
        spans: when it was, merged.
        first_end: of the first piece of it in each gap that has one, ns.
    """

    spans: Intervals
    first_end: Int64

    @property
    def total(self) -> int:
        """Its length, ns."""
        return self.spans.total


def idle_of(context: Context, which: Which) -> Idle:
    """The idle time that is chosen."""
    return _put_together([_some(parts, np.flatnonzero(which(parts))) for parts in context.pieces])


def _some(parts: Parts, rows: NDArray[np.intp]) -> Idle:
    end = parts.end[rows]
    first = np.diff(parts.gap[rows], prepend=-1) != 0  # parts are in order
    return Idle(union(parts.start[rows], end), end[first])


def _put_together(blocks: list[Idle]) -> Idle:
    """Of blocks that share no gap."""
    if not blocks:
        return Idle(EMPTY, EMPTY.end)
    spans = union(*(np.concatenate(each) for each in zip(*(b.spans for b in blocks), strict=True)))
    return Idle(spans, np.concatenate([block.first_end for block in blocks]))


class IdlePlaces:
    """Chosen idle time put together by user frame, where there is none by op or annotation.

    Args:
        context: the trace.
        which: chooses the parts.
        moved: gives the same parts with places of the caller's choice.
        pieces: those of another device than the context's.

    Attributes:
        total_ns: of all places.
    """

    def __init__(
        self,
        context: Context,
        which: Which,
        moved: Callable[[Parts], Parts] | None = None,
        pieces: Pieces | None = None,
    ) -> None:
        self._trace = context.trace
        self._pieces = context.pieces if pieces is None else pieces
        # per block: the place of each part, _OUT where it is not chosen
        self._place: list[NDArray[np.signedinteger]] = []
        self._ns = np.zeros(2 * len(self._trace.names) - _NOWHERE, np.int64)
        for parts in self._pieces:
            chosen = which(parts)
            at = np.flatnonzero(chosen)
            place = np.full(len(parts), _OUT, np.min_scalar_type(-len(self._ns)))
            if len(at):
                place[at] = places(moved(parts) if moved else parts, at)
                found, which_one = distinct(place[at].astype(np.int64))
                self._ns[found - _NOWHERE] += sum_by(which_one, parts.length[at], len(found))
            self._place.append(place)
        self.total_ns = int(self._ns.sum())

    def costliest(self, most: int = 5) -> Iterator[tuple[Site | None, Idle]]:
        """The places with the most of it, at most `most`, the costliest first."""
        order = np.argsort(-self._ns, kind="stable")[:most]
        keys = (order[self._ns[order] > 0] + _NOWHERE).tolist()
        found: dict[int, list[Idle]] = {key: [] for key in keys}
        for parts, place in zip(self._pieces, self._place, strict=True):
            for key in keys:
                found[key].append(_some(parts, np.flatnonzero(place == key)))
        for key in keys:
            site = site_of_place(self._trace, key) if key >= 0 else None
            if site is None and key >= 0:
                site = site_of_op(self._trace.names[key >> 1])
            yield site, _put_together(found.pop(key))


def idle_match(
    context: Context, site: Site | None, idle: Idle, title: str = "", advice: str = ""
) -> Match:
    """A match of idle time: without it the host does not spend it.

    Its calls are the launches that came late for it, its count the gaps it has a part in.
    """
    launches = context.calls_of(Role.LAUNCH, Role.GRAPH_LAUNCH)
    late = np.searchsorted(context.call_start[launches], idle.first_end, "left")
    late = late[(np.diff(late, prepend=-1) != 0) & (late < len(launches))]
    calls = launches[late] if site is not None else launches[:0]
    edit = Edit(cut=idle.spans)
    count = len(idle.first_end)
    return Match(calls=calls, edit=edit, site=site, count=count, title=title, advice=advice)


def outermost(context: Context, names: Bool) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Frames, ops and annotations with one of these names, inside no other such one, that
    begin in the window: per thread that launches, its events."""
    trace = context.trace
    has = [table.thread[names[table.name]] for table in (trace.frames, trace.host_ops)]
    for code in np.intersect1d(np.concatenate(has), launching_threads(context)).tolist():
        thread = context.host[code]
        named = names[event_names(context, code)]
        events = np.flatnonzero(named & (thread.table != CALL))
        parent = thread.nested.parent[events]
        events = events[(parent < 0) | ~at_or_under(thread.nested, named)[parent]]
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
