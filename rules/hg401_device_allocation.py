"""HG401 device-allocation: device memory is taken from or given back to the driver in a step.

## What it sees
cudaMalloc, cudaFree, cuMemCreate, cuMemMap, cuMemUnmap and their like in steady steps.
Allocations in the order of a stream (cudaMallocAsync) are not meant, and neither is a cache that
is emptied and filled again: that is HG404.

## Why it costs
A cudaMalloc takes the host 0.3 ms and more, and a cudaFree waits until the GPU has done all its
work. A caching allocator calls them while it grows and then no more: whatever is left of them in
a steady step comes from sizes that keep growing, from fragmentation, or from a library that
allocates by itself.

## Example
    for step in range(n):
        cache = torch.cat([cache, new])      # larger in every step

## Use instead
    cache = torch.empty(layers, max_length, width, device="cuda")
    for step in range(n):
        cache[:, step] = new

`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` against fragmentation; a workspace that is
given to a library once; a memory pool for an extension that allocates by itself.

## Options
None.

## Sources
Measured on an H200: cudaMalloc 0.3 ms, cudaFree behind work 2.6 ms. A public trace of an RTX
2080 Ti: cudaMalloc 0.5 ms."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hostgap.analysis.edit import Edit
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.memory import caches_emptied, device_memory_calls
from hostgap.diagnosis.rule import Match, Need, Rule


class DeviceAllocation(Rule):
    """Device memory is allocated in a step."""

    code = "HG401"
    name = "device-allocation"
    title = "Device memory is taken from or given back to the driver in a step"
    advice = "Allocate at start-up, at the largest size, and reuse."
    needs = (Need.API_CALLS, Need.STEPS)

    def find(self, context: Context, options: object) -> Iterator[Match]:
        """The calls, by site."""
        allocations, frees = device_memory_calls(context)
        if len(allocations) + len(frees) == 0:
            return
        is_free = np.zeros(len(context.trace.api_calls), np.bool_)
        is_free[frees] = True
        others = [np.zeros(0, np.int64)]
        for emptied in caches_emptied(context):
            others += [emptied.frees, emptied.allocations]
        mine = np.setdiff1d(np.union1d(allocations, frees), np.concatenate(others))
        for site, calls in context.by_site(mine):
            spans = context.calls_as_spans(calls)
            edit = Edit(cut=spans, unblock=calls)
            some = int(np.count_nonzero(is_free[calls]))
            what = "given back" if some == len(calls) else "allocated" if some == 0 else ""
            title = (
                f"Device memory is {what or 'allocated and given back'} in a step: "
                f"{spans.total / len(calls) / 1e3:,.0f} us each time"
            )
            yield Match(calls=calls, edit=edit, site=site, title=title)
