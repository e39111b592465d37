"""HG304 capture-in-steady-state: a CUDA graph is captured or instantiated inside a step.

## What it sees
cudaStreamBeginCapture to cudaStreamEndCapture, and cudaGraphInstantiate, in the steps of the
window. cudaGraphExecUpdate, which renews a graph that exists, is not meant.

## Why it costs
A capture runs the whole step on the host without doing any of its work, and instantiating the
graph takes longer the more nodes it has. The GPU idles meanwhile: in a server, one request takes
many times as long as the others.

## Example
    def decode(batch):
        size = len(batch)
        if size not in graphs:        # the first request of each size pays for it
            graphs[size] = capture(size)
        graphs[size].replay()

## Use instead
    for size in (1, 2, 4, 8, 16, 32):          # at start-up
        graphs[size] = capture(size)

    def decode(batch):
        size = next(s for s in graphs if s >= len(batch))
        graphs[size].replay()                  # padded to the bucket

With torch.compile: run every shape once before serving, or mark dimensions dynamic.

## Options
None.

## Sources
PyTorch's CUDA graph notes; vLLM's `cudagraph_capture_sizes`, SGLang's `--cuda-graph-bs`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hostgap.analysis.edit import Edit
from hostgap.analysis.intervals import union
from hostgap.analysis.syncs import capture_spans
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.regions import waits_in
from hostgap.diagnosis.rule import Match, Need, Rule
from hostgap.trace.model import Role
from hostgap.units import duration


class CaptureInSteadyState(Rule):
    """A CUDA graph is captured inside a step."""

    code = "HG304"
    name = "capture-in-steady-state"
    title = "A CUDA graph is captured inside a step"
    advice = "Capture at start-up, one graph per batch size, and pad to the next size."
    needs = (Need.API_CALLS, Need.STEPS)

    def find(self, context: Context, options: object) -> Iterator[Match]:
        """Captures and instantiations, by site."""
        end = context.call_end.copy()
        opened = np.zeros(len(end), np.bool_)
        for opening, closing in capture_spans(context.trace).values():
            whole = closing >= 0
            opened[opening] = True
            end[opening[whole]] = context.call_end[closing[whole]]
        built = context.calls_of(Role.INSTANTIATE, name="GraphInstantiate")
        captures = np.flatnonzero(opened & context.calls).astype(np.int64)
        for site, calls in context.by_site(np.union1d(captures, built)):
            spans = union(context.call_start[calls], end[calls])
            count = max(1, int(opened[calls].sum()), int((~opened[calls]).sum()))
            title = (
                f"CUDA graphs are captured inside a step: {count}, "
                f"{duration(spans.total / count)} each"
            )
            edit = Edit(cut=spans, unblock=waits_in(context, spans))
            yield Match(calls=calls, edit=edit, site=site, count=count, title=title)
