"""HG106 device-synchronize: the host waits for everything on the GPU, in the step.

## What it sees
cudaDeviceSynchronize (`torch.cuda.synchronize()`), cuCtxSynchronize or hipDeviceSynchronize in
the window, called by the user's own code or by a library. The one with which torch.profiler ends
a recording does not count; nor does one after the last launch of a trace without marked steps.

## Why it costs
It waits for all streams, so copies and kernels that could run beside each other are drained, and
the GPU has nothing queued when the host goes on. It is often left over from timing.

## Example
    start = time.perf_counter()
    y = model(x)
    torch.cuda.synchronize()                    # every step waits, to be timed
    log(time.perf_counter() - start)

## Use instead
    before.record()                             # torch.cuda.Event(enable_timing=True)
    y = model(x)
    after.record()
    ...
    log(before.elapsed_time(after))             # some steps later

To order work between streams, use `stream.wait_stream()` or `event.wait()`, which do not hold the
host; to read a result, wait for the event of its copy.

## Options
None.

## Sources
PyTorch notes "CUDA semantics", asynchronous execution; probe row dev_sync on an H200 with
torch 2.11."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hostgap.diagnosis.context import Context
from hostgap.diagnosis.rule import Match, WaitRule
from hostgap.diagnosis.waits import Wait
from hostgap.trace.model import CopyKind, Int64, Role

NAMES = ("DeviceSynchronize", "CtxSynchronize", "CtxSynchronize_v2", "ThreadSynchronize")


class DeviceSynchronize(WaitRule):
    """The host waits for everything on the GPU."""

    code = "HG106"
    name = "device-synchronize"
    title = "The host waits for everything on the GPU"
    advice = "Time with events, order streams with wait_stream, or drop it."
    order = 60

    def claims(self, wait: Wait) -> bool:
        """A synchronize of the device; HG108 has claimed those that framework ops make."""
        return wait.copy is CopyKind.NONE and wait.call.endswith(NAMES)

    def find(self, context: Context, options: Any) -> Iterator[Match]:
        """The waits by site, without the one that ends the recording."""
        for site, calls in context.by_site(context.waits_of(self.code)):
            kept = calls if site is not None and len(calls) > 1 else _not_closing(context, calls)
            if len(kept):
                yield Match(calls=kept, edit=self.without(context, kept), site=site)


def _not_closing(context: Context, calls: Int64) -> Int64:
    """The calls that something is launched after, or that stand in a marked step."""
    api = context.trace.api_calls
    launches = (Role.LAUNCH, Role.GRAPH_LAUNCH, Role.COPY)
    before = np.iinfo(np.int64).min  # whatever a trace counts its time from
    last = max(int(api.start[api.role == role].max(initial=before)) for role in launches)
    stop = context.analysis.steps.marks.stop
    closing = api.start[calls] > last
    if stop is not None:
        closing &= context.call_start[calls] >= stop
    return calls[~closing]
