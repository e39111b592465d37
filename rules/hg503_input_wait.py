"""HG503 input-wait: the launching thread waits for input, a lock or a queue.

## What it sees
Idle time of the GPU while the thread that launches stands in a data loader's `next`, a queue's
`get`, a lock's `acquire`, a `sleep`, a `join`, or in a call into the operating system. What
another thread did meanwhile counts as well: the wait is what held up the launches. Seen in
stacks, in the profiler's own data loader rows, and in the OS runtime calls of an Nsight export.

## Why it costs
No batch, no launches. The GPU waits for as long as the slowest worker takes, less what was
fetched ahead.

## Example
    loader = DataLoader(data, batch_size=64)             # decodes images in the training thread
    for batch in loader:
        train(batch.cuda())

## Use instead
    loader = DataLoader(data, batch_size=64, num_workers=8, pin_memory=True,
                        persistent_workers=True, prefetch_factor=4)

More workers or cheaper decoding where the loader is slow; a prefetch where it is merely late; an
event instead of a sleep where the thread polls.

## Options
None.

## Sources
PyTorch's performance tuning guide; public ResNet-50 traces in which the loader takes a quarter of
the step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hostgap.analysis.causes import Cause
from hostgap.analysis.parts import Parts
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import (
    IdlePlaces,
    event_names,
    events_at,
    idle_match,
    launching_threads,
    no_work,
    outermost_caused,
)
from hostgap.diagnosis.rule import Match, Rule
from hostgap.trace.model import Bool
from hostgap.units import duration


class InputWait(Rule):
    """The GPU waits because the launching thread waits for somebody else."""

    code = "HG503"
    name = "input-wait"
    title = "The launching thread waits for input, a lock or a queue"
    advice = "Fetch ahead: more loader workers, pinned memory, a queue that is never empty."
    fix = "async-input"

    def find(self, context: Context, options: object) -> Iterator[Match]:
        """The places at which launching threads wait while the GPU is idle."""
        waiting = [
            code
            for code in launching_threads(context).tolist()
            if (context.host[code].cause == Cause.INPUT_WAIT).any()
        ]
        if not waiting:
            return
        launching, nothing_to_do = launching_threads(context), no_work(context)
        outermost = {code: outermost_caused(context, code, Cause.INPUT_WAIT) for code in waiting}
        names = {code: event_names(context, code) for code in waiting}

        def found(parts: Parts) -> tuple[Bool, Parts]:
            """Which parts are waits, and the parts with the waits' own places."""
            waits = np.zeros(len(parts), np.bool_)
            site, op = parts.site.copy(), parts.op.copy()
            # what a helper did while the thread waited carries the helper's cause
            helped = (parts.thread >= 0) & ~np.isin(parts.thread, launching)
            for code in waiting:
                own = (parts.thread == code) & (parts.cause == Cause.INPUT_WAIT)
                rows = np.flatnonzero((own | helped) & ~waits)
                event = events_at(context, code, parts.start[rows])
                inside = event >= 0
                inside[inside] = outermost[code][event[inside]] >= 0
                rows, event = rows[inside], outermost[code][event[inside]]
                waits[rows] = True
                # a loader that works in the process itself is one wait, whatever it calls
                site[rows] = context.host[code].site[event]
                op[rows] = names[code][event]
            return waits & ~nothing_to_do(parts), replace(parts, site=site, op=op)

        places = IdlePlaces(context, lambda parts: found(parts)[0], lambda parts: found(parts)[1])
        for place, idle in places.costliest():
            each = idle.total / context.steps
            yield idle_match(context, place, idle, f"{self.title}: {duration(each)} of idle a step")
