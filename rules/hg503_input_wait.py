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
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import (
    event_names,
    events_at,
    idle_by_place,
    idle_match,
    launching_threads,
    no_work,
    outermost_caused,
)
from hostgap.diagnosis.rule import Match, Rule


class InputWait(Rule):
    """The GPU waits because the launching thread waits for somebody else."""

    code = "HG503"
    name = "input-wait"
    title = "The launching thread waits for input, a lock or a queue"
    advice = "Fetch ahead: more loader workers, pinned memory, a queue that is never empty."

    def find(self, context: Context, options: object) -> Iterator[Match]:
        """The places at which launching threads wait while the GPU is idle."""
        waiting = [
            code
            for code in launching_threads(context).tolist()
            if (context.host[code].cause == Cause.INPUT_WAIT).any()
        ]
        if not waiting:
            return
        parts, waits = context.parts, np.zeros(len(context.parts), np.bool_)
        site, op = parts.site.copy(), parts.op.copy()
        # what a helper did while the thread waited carries the helper's cause
        helped = (parts.thread >= 0) & ~np.isin(parts.thread, launching_threads(context))
        for code in waiting:
            own = (parts.thread == code) & (parts.cause == Cause.INPUT_WAIT)
            rows = np.flatnonzero((own | helped) & ~waits)
            event = events_at(context, code, parts.start[rows])
            outer = outermost_caused(context, code, Cause.INPUT_WAIT)
            found = event >= 0
            found[found] = outer[event[found]] >= 0
            rows, event = rows[found], outer[event[found]]
            waits[rows] = True
            # a loader that works in the process itself is one wait, whatever it calls
            site[rows] = context.host[code].site[event]
            op[rows] = event_names(context, code)[event]
        waits &= ~no_work(context)
        for place, rows in idle_by_place(context, waits, parts=replace(parts, site=site, op=op)):
            each = int(parts.length[rows].sum()) / context.steps / 1e3
            yield idle_match(context, place, rows, f"{self.title}: {each:,.0f} us of idle a step")
