"""HG509 gil: the launching thread waits for the interpreter lock.

## What it sees
torch releases the lock inside an op and takes it back before the op's Python call returns. Here
the op has ended, its call (a `<built-in ...>` frame) returns at least 100 us later, and during
four fifths of that time another thread of the process runs Python, which it cannot do without the
lock. Both threads must have recorded stacks.

## Why it costs
A thread that computes in Python gives the lock up every 5 ms at most, and at each of its own
calls the launching thread may lose it again.

## Example
    threading.Thread(target=tokenize_forever).start()   # in the process that launches
    while requests:
        step(requests)

## Use instead
    multiprocessing.Process(target=tokenize_forever).start()

Work in Python goes to another process; `sys.setswitchinterval(1e-4)` shortens each wait.

## Options
- `min-wait-us` (100): shorter waits are the profiler's own.

## Sources
vllm#10634 (front end and engine in one process); Python's sys.setswitchinterval."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hostgap.analysis.causes import Cause
from hostgap.analysis.edit import Edit
from hostgap.analysis.host import FRAME
from hostgap.analysis.intervals import Intervals, overlap, union
from hostgap.analysis.nesting import when
from hostgap.analysis.sites import frame_precision, site_of_frame
from hostgap.diagnosis import rule as base
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import launching_threads
from hostgap.diagnosis.rule import Match, Need, Rule
from hostgap.trace.model import Int64
from hostgap.units import duration

HELD = 0.8  # of the wait, during which the other thread must run Python


class Options(base.Options, frozen=True):
    """Thresholds of HG509."""

    min_wait_us: float = 100


class Gil(Rule):
    """The launching thread waits for the interpreter lock."""

    code = "HG509"
    name = "gil"
    title = "The launching thread waits for the interpreter lock, which another thread holds"
    advice = "Move the other thread's Python to another process."
    needs = (Need.API_CALLS, Need.STACKS)
    options = Options

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """The waits of launching threads, by the function that waits."""
        for code in launching_threads(context).tolist():
            event, spans = _returns(context, code, int(options.min_wait_us * 1e3))
            held = np.zeros(len(event), np.bool_)
            owner = context.trace.threads[code].process
            for other in context.host.threads():
                if other != code and context.trace.threads[other].process == owner and len(event):
                    held |= _runs_python(context, other, spans)
            held &= context.in_steps(spans.start)
            frame = context.host[code].site[event]
            for key in np.unique(frame[held]).tolist():
                at = held & (frame == key)
                cut = union(spans.start[at], spans.end[at])
                name = context.trace.names[key] if key >= 0 else ""
                each = cut.total / context.steps
                yield Match(
                    edit=Edit(cut=cut),
                    site=site_of_frame(name, frame_precision(context.trace)),
                    count=int(at.sum()),
                    title=f"{self.title}: {duration(each)} a step",
                )


def _returns(context: Context, code: int, least: int) -> tuple[np.ndarray, Intervals]:
    """Built-in frames of a thread, and the time from the end of the op in each to its return."""
    thread, trace = context.host[code], context.trace
    nested = thread.nested
    builtin = np.array([name.startswith("<built-in") for name in trace.names], np.bool_)
    called = thread.table == FRAME
    called[called] = builtin[trace.frames.name[thread.row[called]]]
    op = np.flatnonzero(thread.is_op & (nested.parent >= 0) & called[nested.parent])
    frame = nested.parent[op]
    # until it returns, or something else begins in it
    start, end = nested.end[op], nested.end[frame]
    following = np.searchsorted(nested.start, start)
    begins = following < len(nested.start)
    end[begins] = np.minimum(end[begins], nested.start[following[begins]])
    long = np.flatnonzero(end - start >= least)
    long = long[np.argsort(start[long], kind="stable")]
    return frame[long].astype(np.int64), Intervals(start[long], end[long])


def _runs_python(context: Context, code: int, spans: Intervals) -> np.ndarray:
    """During which intervals a thread runs Python, and is seen to get on with it."""
    thread = context.host[code]
    nested = thread.nested
    if not (thread.table == FRAME).any():
        return np.zeros(len(spans.start), np.bool_)
    runs = when(nested, (thread.cause == Cause.PYTHON) & (thread.table == FRAME))
    length: Int64 = spans.end - spans.start
    # something begins in the interval, or ends in it
    first, last = np.searchsorted(nested.start, [spans.start + 1, spans.end])
    at = nested.around(spans.start)
    moves = (first < last) | ((at >= 0) & (nested.end[at] < spans.end))
    return np.asarray(moves & (overlap(spans, runs) >= HELD * length))
