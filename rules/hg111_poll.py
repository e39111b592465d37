"""HG111 poll: the launching thread asks again and again whether the GPU is done.

## What it sees
On a thread that launches, a run of cudaEventQuery or cudaStreamQuery calls with nothing launched,
copied or waited for between them. A few queries are normal (allocators, watchdogs), and so are
those that framework ops make: they do not count.

## Why it costs
A loop that polls is a synchronize in disguise: nothing is launched until the answer comes, and
with a sleep between the questions it comes late. Without a sleep the thread also keeps a core
and the interpreter lock from others.

## Example
    while not event.query():
        time.sleep(0.001)           # up to 1 ms late
    launch_next()

## Use instead
    stream.wait_event(event)        # the GPU waits, the host goes on
    launch_next()

Where the host must know, let it do its other work first and then call `event.synchronize()` (an
event made with `blocking=True` does not spin), or do it in a thread that launches nothing.

## Options
- `queries` (8): the fewest in a run.
- `run-us` (50): the shortest run that counts; allocators ask about several events at once.
- `pause-us` (100): the longest time between two queries of one run, unless the thread sleeps in
  it (which only Python stacks or an Nsight export with OS calls show).

## Sources
CUDA runtime API, cudaEventQuery; probe row event_query (does not block) on an H200 with
torch 2.11."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hostgap.analysis.causes import Cause
from hostgap.analysis.edit import Edit
from hostgap.analysis.host import sweep
from hostgap.analysis.intervals import Intervals
from hostgap.analysis.parts import sum_by
from hostgap.diagnosis import rule as base
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.rule import Match, Rule
from hostgap.trace.model import Bool, Int64, Role

PUTS_TO_WORK = (Role.QUERY, Role.LAUNCH, Role.GRAPH_LAUNCH, Role.COPY, Role.SYNC)


class Options(base.Options, frozen=True):
    """Thresholds of HG111."""

    queries: int = 8
    pause_us: float = 100
    run_us: float = 50


class Poll(Rule):
    """The launching thread asks again and again whether the GPU is done."""

    code = "HG111"
    name = "poll"
    title = "The launching thread asks again and again whether the GPU is done"
    advice = "Let the GPU wait (wait_event), or synchronize with the event after other work."
    options = Options

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """Runs of queries, by site."""
        runs = {int(run[0]): run for run in _runs(context, options)}
        for site, heads in context.by_site(np.array(list(runs), np.int64)):
            mine = [runs[head] for head in heads.tolist()]
            calls = np.concatenate(mine)
            last = np.array([run[-1] for run in mine], np.int64)
            edit = Edit(unblock=last)  # the replay takes a run of queries for one wait
            each = len(calls) / len(mine)
            title = f"The launching thread asks {each:,.0f} times in a row whether the GPU is done"
            yield Match(calls=calls, edit=edit, site=site, count=len(mine), title=title)


def _runs(context: Context, options: Options) -> list[Int64]:
    """Queries in a row on a launching thread, between which it at most sleeps."""
    api = context.trace.api_calls
    rows = context.calls_of(*PUTS_TO_WORK)
    rows = rows[np.isin(api.thread[rows], np.unique(api.thread[context.launched.call]))]
    rows = rows[np.argsort(api.thread[rows], kind="stable")]
    query = api.role[rows] == Role.QUERY
    if not query.any():
        return []
    pair = query[1:] & query[:-1] & (api.thread[rows[1:]] == api.thread[rows[:-1]])
    pause = context.call_start[rows[1:]] - context.call_end[rows[:-1]]
    far = np.flatnonzero(pair & (pause > options.pause_us * 1_000))
    pair[far] = _asleep(context, rows[far], rows[far + 1])
    first = np.flatnonzero(np.concatenate(([True], ~pair)))
    after = np.append(first[1:], len(rows))
    lasts = context.call_end[rows[after - 1]] - context.call_start[rows[first]]
    kept = (after - first >= options.queries) & (lasts >= options.run_us * 1_000)
    edges = zip(first[kept].tolist(), after[kept].tolist(), strict=True)
    runs = [rows[low:high] for low, high in edges]
    around = context.op_names(np.array([run[0] for run in runs], np.int64))
    own = [not any(name.startswith("aten::") for name in names) for names in around]
    return [run for run, is_own in zip(runs, own, strict=True) if is_own]


def _asleep(context: Context, before: Int64, after: Int64) -> Bool:
    """Whether a thread slept or waited for most of the time between two of its calls each."""
    asleep = np.zeros(len(before), np.bool_)
    threads = context.trace.api_calls.thread[before]
    for code in np.unique(threads).tolist():
        mine = np.flatnonzero(threads == code)
        start, end = context.call_end[before[mine]], context.call_start[after[mine]]
        thread = context.host[code]
        pieces = sweep(thread, Intervals(start, end))
        waits = pieces.event >= 0
        waits[waits] = thread.cause[pieces.event[waits]] == Cause.INPUT_WAIT
        slept = sum_by(pieces.window[waits], (pieces.end - pieces.start)[waits], len(mine))
        asleep[mine] = 2 * slept > end - start
    return asleep
