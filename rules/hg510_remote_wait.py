"""HG510 remote-wait: the launching thread waits for another process.

## What it sees
Idle time of the GPU while the launching thread stands in a zmq `recv` or `poll`, a pipe of
multiprocessing, a queue in shared memory, or a barrier of torch.distributed, by its stacks. An
engine that has no request to run waits too: that is HG512.

## Why it costs
What the other process does, and the hand-over with its serialisation, stand between two steps.

## Example
    while True:
        batch = socket.recv_pyobj()           # the scheduler's process answers after step k
        socket.send_pyobj(step(batch))

## Use instead
    batch = socket.recv_pyobj()
    while True:
        future = step(batch)                  # runs while the next batch is being scheduled
        batch = socket.recv_pyobj()
        socket.send_pyobj(future.result())

Ask for the next batch before this one is done; put what every step needs into one process; shared
memory instead of pickles.

## Options
None.

## Sources
vLLM's multi-process engine and its shm_broadcast; vllm#19970, which lists the serialisation as a
cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.causes import Cause
from hostgap.analysis.parts import Parts
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import (
    IdlePlaces,
    caused_by,
    events_at,
    idle_match,
    no_work,
    outermost_caused,
)
from hostgap.diagnosis.rule import Match, Need, Rule
from hostgap.trace.model import Bool
from hostgap.units import duration


class RemoteWait(Rule):
    """The GPU waits for another process."""

    code = "HG510"
    name = "remote-wait"
    title = "The launching thread waits for another process"
    advice = "Ask for the next batch before this one is done; keep the step in one process."
    needs = (Need.API_CALLS, Need.STACKS)

    def find(self, context: Context, options: object) -> Iterator[Match]:
        """The places at which launching threads wait while the GPU is idle."""
        nothing_to_do = no_work(context)
        outermost: dict[int, NDArray[np.intp]] = {}

        def waits(parts: Parts) -> Bool:
            return caused_by(parts, Cause.REMOTE_WAIT) & ~nothing_to_do(parts)

        def at_caller(parts: Parts) -> Parts:
            """Who calls the library that waits, and not the library."""
            site, mine = parts.site.copy(), caused_by(parts, Cause.REMOTE_WAIT)
            for code in np.unique(parts.thread[mine]).tolist():
                if code not in outermost:
                    outermost[code] = outermost_caused(context, code, Cause.REMOTE_WAIT)
                rows = np.flatnonzero(mine & (parts.thread == code))
                thread = context.host[code]
                event = outermost[code][events_at(context, code, parts.start[rows])]
                above = thread.nested.parent[event]
                site[rows] = np.where((event >= 0) & (above >= 0), thread.site[above], site[rows])
            return replace(parts, site=site)

        for place, idle in IdlePlaces(context, waits, at_caller).costliest():
            each = idle.total / context.steps
            yield idle_match(context, place, idle, f"{self.title}: {duration(each)} of idle a step")
