"""HG206 tiny-copies: many small copies a step from one place.

## What it sees
At least eight copies a step at one place, each at most 64 KiB (where the trace gives no size: at
most 5 us long), on the device or up to it, outside CUDA graphs: cache writes row by row, staging
of inputs one by one, clones inside operators.

## Why it costs
A copy of 2 KiB takes the GPU about a microsecond and the host as much as any launch. One copy of
all of it costs the same once. The predicted saving keeps one copy a step, as long as all of them.

## Example
    for i, row in enumerate(rows):
        cache[i].copy_(row)

## Use instead
    cache.copy_(torch.stack(rows))               # or index_copy_, torch._foreach_copy_

For inputs: one pinned buffer, one upload, views into it. Copies inside an operator go with it:
`masked_fill` clones its input, `masked_fill_` does not.

## Options
- `per-step` (8): fewest copies a step at one place.
- `most-bytes` (65536): a larger copy is not tiny.

## Sources
Public traces of data-parallel training copy 274 gradients a step one by one; the reference
decoder's `masked_fill` clones its mask in each of 16 layers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hostgap.diagnosis import rule as base
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.rule import Match, Rule
from hostgap.trace.model import CopyKind

TINY_NS = 5_000  # longest tiny copy where its size is not known


class Options(base.Options, frozen=True):
    """Thresholds of HG206."""

    per_step: int = 8
    most_bytes: int = 65_536


class TinyCopies(Rule):
    """Many small copies a step from one place."""

    code = "HG206"
    name = "tiny-copies"
    title = "Many small copies a step"
    advice = "Copy once: one buffer for all of it, index_copy_, or torch._foreach_copy_."
    fix = "cuda-graph"
    options = Options

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """A match per place and direction."""
        sequence, gpu = context.sequence, context.trace.gpu_ops
        kind = gpu.copy_kind[sequence.op]
        copies = np.flatnonzero((kind != CopyKind.NONE) & ~sequence.graph)
        size = gpu.bytes[sequence.op[copies]]
        tiny = np.where(size >= 0, size <= options.most_bytes, sequence.length(copies) <= TINY_NS)
        for direction, word in ((CopyKind.D2D, "on the device"), (CopyKind.H2D, "to the device")):
            rows = copies[(kind[copies] == direction) & tiny]
            for site, calls in context.by_site(np.unique(sequence.call[rows])):
                mine = rows[np.isin(sequence.call[rows], calls)]
                each = len(mine) / context.steps
                if each < options.per_step:
                    continue
                # of each step the first stays, as long as all
                _, first, which = np.unique(
                    sequence.step[mine], return_index=True, return_inverse=True
                )
                total = np.bincount(which, sequence.length(mine)).astype(np.int64)
                length = dict(zip(mine[first].tolist(), total.tolist(), strict=True))
                yield Match(
                    calls=calls,
                    edit=sequence.edit(np.delete(mine, first), length),
                    site=site,
                    count=len(mine),
                    title=f"{each:,.0f} small copies a step {word}",
                )
