"""HG402 pinned-allocation: pinned host memory is allocated or given back in a step.

## What it sees
cudaHostAlloc, cudaMallocHost, cudaHostRegister, and cudaFreeHost and cudaHostUnregister, in
steady steps.

## Why it costs
Pinning goes through the operating system page by page, so that it takes longer the larger the
buffer is, and giving it back waits until the GPU has done all its work. PyTorch keeps pinned
blocks for reuse, but by powers of two and only once the copies out of them are done: growing
sizes, and buffers held for long, allocate again.

## Example
    for batch in loader:
        batch = torch.tensor(rows).pin_memory()       # a new buffer for each batch
        batch = batch.to("cuda", non_blocking=True)

## Use instead
    staging = torch.empty(max_rows, width, pin_memory=True)
    for batch in loader:
        staging[: len(rows)].copy_(torch.tensor(rows))
        batch = staging[: len(rows)].to("cuda", non_blocking=True)

Two buffers in turn, with an event each, where a copy may still be under way.

## Options
None.

## Sources
PyTorch's caching host allocator; probe rows pin_memory_new, pinned_cast_nb on an H200."""

from __future__ import annotations

from collections.abc import Iterator

from hostgap.analysis.edit import Edit
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.rule import Match, Need, Rule
from hostgap.trace.model import Role


class PinnedAllocation(Rule):
    """Pinned memory is allocated in a step."""

    code = "HG402"
    name = "pinned-allocation"
    title = "Pinned host memory is allocated or given back in a step"
    advice = "Allocate pinned buffers once and reuse them."
    needs = (Need.API_CALLS, Need.STEPS)

    def find(self, context: Context, options: object) -> Iterator[Match]:
        """The calls, by site."""
        for site, calls in context.by_site(context.calls_of(Role.HOST_ALLOC)):
            spans = context.calls_as_spans(calls)
            edit = Edit(cut=spans, unblock=calls)
            each = spans.total / len(calls) / 1e3
            title = f"{self.title}: {each:,.0f} us each time"
            yield Match(calls=calls, edit=edit, site=site, title=title)
