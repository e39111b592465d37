"""HG604 output-copy-could-overlap: a step's results go out, or its inputs in, while the GPU
idles.

## What it sees
Downloads after a step's last kernel and uploads before its first, 20 us or longer, outside CUDA
graphs, during which no kernel ran and for which no call of the copy's own waits (those are HG102
and HG104). Copies between a step's kernels are HG601.

## Why it costs
The next step's kernels do not need this step's results on the host, and this step's kernels do
not need the next inputs: both copies can run beside kernels, on a stream of their own with two
buffers. The predicted saving takes the copies out of the GPU's way, as far as the window has
kernels to hide them behind; a wait for them remains.

## Example
    for batch in batches:
        x.copy_(batch, non_blocking=True)          # kernels wait
        y = model(x)
        out.copy_(y, non_blocking=True)            # the next step waits

## Use instead
    with torch.cuda.stream(uploads):
        x_next.copy_(next_batch, non_blocking=True)
    y = model(x)
    downloads.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(downloads):
        out.copy_(y, non_blocking=True)

On a coherent platform (Grace Hopper) direct access may beat the copy: measure first.

## Options
- `min-us` (20.0): shortest exposed copy.

## Sources
CUDA programming guide, overlap of transfer and execution; NVIDIA's data prefetcher in APEX."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hostgap.diagnosis import rule as base
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.copies import Place, coherent, hidden
from hostgap.diagnosis.rule import Match, Need, Rule
from hostgap.units import duration


class Options(base.Options, frozen=True):
    """Thresholds of HG604."""

    min_us: float = 20.0


class OutputCopyCouldOverlap(Rule):
    """A step's results go out, or its inputs in, while the GPU idles."""

    code = "HG604"
    name = "output-copy-could-overlap"
    title = "Copies at a step's ends run while no kernel does"
    advice = "Copy on a stream of its own, with two pinned buffers."
    needs = (Need.API_CALLS, Need.STEPS)
    fix = "async-output"
    options = Options

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """A match per place, for outputs and for inputs."""
        copies, gpu = context.copies, context.trace.gpu_ops
        long = copies.exposed >= options.min_us * 1_000
        for place, what in ((Place.OUTPUT, "Results are copied out"), (Place.INPUT, "Inputs come")):
            mine = long & (copies.place == place)
            other = "next" if place is Place.OUTPUT else "previous"
            for site, calls in context.by_site(np.unique(gpu.call[copies.op[mine]])):
                here = np.flatnonzero(mine & np.isin(gpu.call[copies.op], calls))
                exposed = copies.exposed[here]
                advice = self.advice
                if coherent(context):
                    advice += " On this platform direct access may beat it: measure first."
                each = duration(exposed.sum() / context.steps)
                yield Match(
                    calls=calls,
                    edit=hidden(context, copies.op[here], exposed),
                    site=site,
                    title=f"{what} for {each} a step, beside the {other} step they would be free",
                    advice=advice,
                )
