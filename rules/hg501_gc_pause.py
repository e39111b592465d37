"""HG501 gc-pause: Python's garbage collector runs inside the step.

## What it sees
`gc.collect()` as a frame on a thread that launches, or a range named `gc` around a collection.
Collections that Python starts by itself leave no frame: `hostgap profile` records them through
`gc.callbacks`, and so does a program that opens `record_function("gc")` there.

## Why it costs
A collection stops every Python thread, the longer the more objects are alive: up to hundreds of
milliseconds in a serving engine. Nothing is launched meanwhile. Where the GPU has more work
queued than the pause lasts, it costs nothing.

## Example
    while requests:
        step(requests)
        gc.collect()                  # 20 ms, every step

## Use instead
    gc.collect()
    gc.freeze()                       # what is alive stays alive: never look at it again
    gc.disable()
    while requests:
        step(requests)

and collect between requests, or every thousand steps. Raising `gc.set_threshold` helps too.

## Options
None.

## Sources
vLLM freezes the heap after start-up (vllm#24008), SGLang after warm-up (sglang#34999); Python's
gc.freeze."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hostgap.analysis.causes import Cause
from hostgap.analysis.edit import Edit
from hostgap.analysis.host import CALL
from hostgap.analysis.intervals import Intervals, union
from hostgap.analysis.sites import frame_precision, site_of_frame
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import launching_threads
from hostgap.diagnosis.rule import Match, Need, Rule
from hostgap.units import duration


class GcPause(Rule):
    """The garbage collector holds up the launches."""

    code = "HG501"
    name = "gc-pause"
    title = "Python's garbage collector runs inside the step"
    advice = "gc.freeze() after start-up, gc.disable() in the loop, collect between requests."
    needs = (Need.API_CALLS, Need.GC)
    fix = "gc-freeze"

    def find(self, context: Context, options: object) -> Iterator[Match]:
        """The collections on launching threads, by the frame that they fell into."""
        spans: dict[int, list[Intervals]] = {}
        for code in launching_threads(context).tolist():
            thread = context.host[code]
            events = np.flatnonzero((thread.cause == Cause.GC) & (thread.table != CALL))
            events = events[context.in_steps(thread.nested.start[events])]
            for frame in np.unique(thread.site[events]).tolist():
                at = events[thread.site[events] == frame]
                merged = union(thread.nested.start[at], thread.nested.end[at])
                spans.setdefault(frame, []).append(merged)
        for frame, found in spans.items():
            name = context.trace.names[frame] if frame >= 0 else ""
            cut = union(
                np.concatenate([one.start for one in found]),
                np.concatenate([one.end for one in found]),
            )
            count = len(cut.start)
            title = f"{self.title}, {duration(cut.total / count)} each time"
            site = site_of_frame(name, frame_precision(context.trace))
            yield Match(edit=Edit(cut=cut), site=site, count=count, title=title)
