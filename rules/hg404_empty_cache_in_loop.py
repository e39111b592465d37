"""HG404 empty-cache-in-loop: the allocator's cache is emptied in every step, and filled again.

## What it sees
Several cudaFree (or cuMemUnmap) in a row with no launch between, and cudaMalloc behind them:
`torch.cuda.empty_cache()` in a loop. With stacks, one cudaFree inside `empty_cache` is enough.
Where a cudaMalloc stands right in front of the frees and right behind them, the allocator has
done it itself: the memory ran out, and it gave back what it had cached to try again.

## Why it costs
Each cudaFree waits until the GPU has done all its work, and before the next step can launch
anything, its memory has to be allocated again, 0.3 ms and more for each cudaMalloc.

## Example
    for batch in loader:
        loss = train_step(batch)
        torch.cuda.empty_cache()      # "to save memory": it does not

## Use instead
    for batch in loader:
        loss = train_step(batch)

Cached memory is free memory to the program itself. Where the allocator does it: lower the peak
(smaller batch, checkpointing, fewer tensors held), or
`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` against fragmentation.

## Options
None.

## Sources
PyTorch's notes on memory management; `num_alloc_retries` in `torch.cuda.memory_stats`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hostgap.analysis.edit import Edit
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.memory import caches_emptied
from hostgap.diagnosis.model import Site
from hostgap.diagnosis.rule import Match, Need, Rule
from hostgap.trace.model import Int64


class EmptyCacheInLoop(Rule):
    """The allocator's cache is emptied in the loop."""

    code = "HG404"
    name = "empty-cache-in-loop"
    title = "The allocator's cache is emptied inside steps, and filled again"
    advice = "Take empty_cache() out of the loop: cached memory is free memory to this program."
    needs = (Need.API_CALLS, Need.STEPS)

    def find(self, context: Context, options: object) -> Iterator[Match]:
        """The times the cache is emptied, by site, those of the allocator itself apart."""
        found: dict[tuple[Site | None, bool], list[tuple[Int64, Int64]]] = {}
        for emptied in caches_emptied(context):
            site = next(context.by_site(emptied.frees[:1]))[0]
            pair = (emptied.frees, emptied.allocations)
            found.setdefault((site, emptied.retry), []).append(pair)
        for (site, retry), times in found.items():
            frees = np.concatenate([pair[0] for pair in times])
            both = np.union1d(frees, np.concatenate([pair[1] for pair in times])).astype(np.int64)
            again = len(both) - len(frees)
            title, advice = "", ""
            if retry:
                title = "Memory runs out, and the allocator gives back its cache to try again"
                advice = "Lower the peak memory, or set expandable_segments:True."
            elif again:
                title = (
                    f"The allocator's cache is emptied inside steps: {len(frees) / len(times):,.3g}"
                    f" frees each time, and {again / len(times):,.3g} allocations behind them"
                )
            yield Match(
                calls=np.concatenate((frees, np.setdiff1d(both, frees))),
                edit=Edit(cut=context.calls_as_spans(both), unblock=both),
                site=site,
                count=len(times),
                title=title,
                advice=advice,
            )
