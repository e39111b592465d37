"""HG601 copy-not-overlapped: a copy within the step while no kernel runs.

## What it sees
Uploads and downloads between a step's first and last kernel, 20 us or longer, outside CUDA
graphs, during which no kernel ran, and which the host does not wait for (those are HG102 and
HG104). What needs their result is not in a trace: a download is needed by the host alone and can
always run beside kernels, an upload only where its data is at hand earlier.

## Why it costs
On the kernels' own stream a copy is one more op in the queue: the copy engine works, the GPU's
processors do nothing. On a stream of its own it takes no time from them. The predicted saving
takes the copies out of the GPU's way, as far as the window has kernels to hide them behind.

## Example
    for layer in layers:
        w = layer.host_weight.to("cuda", non_blocking=True)   # the kernels wait for it
        x = x @ w

## Use instead
    with torch.cuda.stream(copies):                            # the next layer's, meanwhile
        ahead = layers[i + 1].host_weight.to("cuda", non_blocking=True)
    x = x @ w
    torch.cuda.current_stream().wait_stream(copies)

From pinned memory: a copy from pageable memory overlaps nothing (HG109).

## Options
- `min-us` (20.0): shortest exposed copy.

## Sources
CUDA programming guide, overlap of transfer and execution; KV offloading in vLLM and SGLang."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hostgap.diagnosis import rule as base
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.copies import Place, coherent, hidden
from hostgap.diagnosis.rule import Match, Rule
from hostgap.trace.model import CopyKind
from hostgap.units import duration


class Options(base.Options, frozen=True):
    """Thresholds of HG601."""

    min_us: float = 20.0


class CopyNotOverlapped(Rule):
    """A copy within the step while no kernel runs."""

    code = "HG601"
    name = "copy-not-overlapped"
    title = "Copies run while no kernel does"
    advice = "Copy on a stream of its own, from or to pinned memory, while kernels run."
    options = Options

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """A match per place and direction."""
        copies, gpu = context.copies, context.trace.gpu_ops
        long = (copies.exposed >= options.min_us * 1_000) & (copies.place == Place.INSIDE)
        for direction, word in ((CopyKind.H2D, "Uploads"), (CopyKind.D2H, "Downloads")):
            mine = long & (gpu.copy_kind[copies.op] == direction)
            for site, calls in context.by_site(np.unique(gpu.call[copies.op[mine]])):
                here = np.flatnonzero(mine & np.isin(gpu.call[copies.op], calls))
                exposed = copies.exposed[here]
                each = duration(exposed.sum() / context.steps)
                title = f"{word} of {each} a step while no kernel "
                title += "runs" if direction == CopyKind.D2H else "runs, likely needed only later"
                advice = self.advice
                if coherent(context):
                    advice += " On this platform direct access may beat it: measure first."
                edit = hidden(context, copies.op[here], exposed)
                yield Match(calls=calls, edit=edit, site=site, title=title, advice=advice)
