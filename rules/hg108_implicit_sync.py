"""HG108 implicit-sync: a call that is no synchronize drains the GPU, or an op does it inside.

## What it sees
- cudaFree, cudaFreeHost, cudaHostUnregister and cudaMemset (not their Async forms) during which
  the GPU ran dry: what was queued before the call ended inside it, and took most of it.
- A synchronize that a framework op makes for itself, with no copy before it.
- A blocking copy within the device, or one whose direction is unknown, if the GPU ran dry in it.

Allocations (cudaMalloc, cudaHostAlloc) are HG401's and HG402's. Streams that wait for each other
because one is the legacy default stream cannot be told apart here: a trace does not say how a
stream was made.

## Why it costs
The host waits for all streams although nobody asked for it, and launches nothing meanwhile. A
free that drains was seen to take 2.6 ms.

## Example
    for prompt in prompts:
        cache = torch.empty(shape, device="cuda")
        generate(model, prompt, cache)
        del cache
        torch.cuda.empty_cache()            # cudaFree: waits for the GPU

## Use instead
Keep memory: allocate once and reuse it, leave it to the caching allocator, and call
empty_cache() at most between phases. For libraries of your own use cudaFreeAsync and
cudaMemsetAsync. Of an op that synchronizes inside, look for a variant that does not, such as one
that leaves its result unchecked.

## Options
None.

## Sources
CUDA C++ Programming Guide, "Implicit Synchronization"; CUDA runtime API, "API synchronization
behavior"; PyTorch notes on memory management."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hostgap.analysis.edit import Edit
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.rule import Match, WaitRule
from hostgap.diagnosis.waits import Wait
from hostgap.trace.model import Bool, CopyKind, Int64, Role


class ImplicitSync(WaitRule):
    """A call that is no synchronize drains the GPU."""

    code = "HG108"
    name = "implicit-sync"
    title = "A call that is no synchronize drains the GPU"
    advice = "Keep and reuse memory; use the Async form of the call; pick an op that does not wait."
    order = 55  # before HG106 and HG107, which are about synchronizes that users make

    def claims(self, wait: Wait) -> bool:
        """A plain synchronize inside an op of torch's own, or a copy that is not across."""
        if wait.copy in (CopyKind.H2D, CopyKind.D2H):
            return False
        if wait.copy is not CopyKind.NONE or "Memcpy" in wait.call:
            return True
        return any(name.startswith("aten::") for name in wait.ops)

    def find(self, context: Context, options: Any) -> Iterator[Match]:
        """Frees, memsets and copies that drained the GPU, and synchronizes inside ops, by site."""
        waits = context.waits_of(self.code)
        sync = context.trace.api_calls.role[waits] == Role.SYNC
        quiet = np.concatenate((_may_drain(context), waits[~sync]))
        quiet = quiet[_drains(context, quiet)]
        for site, calls in context.by_site(quiet):
            title = f"{_name(context, calls)}: the GPU ran dry in it"
            edit = Edit(cut=context.calls_as_spans(calls), unblock=calls)
            yield Match(calls=calls, edit=edit, site=site, title=title)
        for site, calls in context.by_site(waits[sync]):
            ops = context.op_names(calls[:1])[0]  # none around a copy within the GPU
            title = f"{_name(context, calls)} inside {ops[-1]}" if ops else ""
            yield Match(calls=calls, edit=self.without(context, calls), site=site, title=title)


def _name(context: Context, calls: Int64) -> str:
    return context.trace.names[int(context.trace.api_calls.name[calls[0]])]


def _may_drain(context: Context) -> Int64:
    """Calls of the window that free memory or set it, and are not asynchronous by name."""
    names = context.trace.names
    calls = context.calls_of(Role.FREE, Role.HOST_ALLOC, Role.COPY)
    api = context.trace.api_calls
    kinds = [
        not name.endswith("Async")
        and any(part in name for part in ("Free", "Unregister", "Memset"))
        for name in names
    ]
    return calls[np.array(kinds, np.bool_)[api.name[calls]]]


def _drains(context: Context, calls: Int64) -> Bool:
    """Whether what was queued up to each call ended inside it, and took most of it."""
    gpu = context.trace.gpu_ops
    ops = np.flatnonzero((gpu.device == context.code) & (gpu.call >= 0))
    ops = ops[np.argsort(gpu.call[ops], kind="stable")]
    if len(ops) == 0 or len(calls) == 0:
        return np.zeros(len(calls), np.bool_)
    before = np.searchsorted(gpu.call[ops], calls, "right") - 1
    dry = np.maximum.accumulate(gpu.end[ops])[np.maximum(before, 0)]
    start, end = context.call_start[calls], context.call_end[calls]
    return (before >= 0) & (dry <= end) & (2 * (dry - start) > end - start)
