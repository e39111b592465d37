"""HG201 launch-storm: more launches than the host can keep ahead of.

## What it sees
The GPU waits for its host during much of the step, and kernels are shorter than the time between
two launches: the host is late for nearly every one of them.

## Why it costs
Every launch takes the host 5 to 15 us: Python, the framework's dispatch, the driver. A kernel of
2 us cannot hide it, and no faster kernel helps: the step takes as long as its launches.

## Example
    def step(x):                      # 1,230 launches, 2 ms of kernels, 22 ms of step
        for layer in layers:
            x = layer(x)

## Use instead
    graph = torch.cuda.CUDAGraph()    # one launch
    with torch.cuda.graph(graph):
        y = step(x)
    graph.replay()

or `torch.compile(step, mode="reduce-overhead")`, which fuses kernels and captures what is left.
What blocks a capture (a sync, an allocation, a branch on a value, a changing shape) goes first:
see HG301.

## Options
- `min-idle` (0.1): share of the step that the GPU must wait for launches.

## Sources
PyTorch's CUDA graph notes; vLLM and SGLang capture every decode batch size; measured on an H200:
22 ms a step eager, 2.6 as one graph."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hostgap.analysis.edit import Edit
from hostgap.diagnosis import rule as base
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import HOST_LATE
from hostgap.diagnosis.rule import Match, Need, Rule
from hostgap.trace.model import Role

FEWEST = 20  # launches a step that make a storm
COMPILED_ADVICE = (
    "It is compiled already: capture the step in a CUDA graph "
    '(torch.compile\'s mode="reduce-overhead").'
)


class Options(base.Options, frozen=True):
    """Thresholds of HG201."""

    min_idle: float = 0.1


class LaunchStorm(Rule):
    """The host cannot keep ahead of its launches."""

    code = "HG201"
    name = "launch-storm"
    title = "The GPU waits for launches: kernels are shorter than launching them takes"
    advice = "Capture the step in a CUDA graph, or torch.compile it."
    needs = (Need.API_CALLS, Need.STEPS)
    fix = "cuda-graph"
    options = Options

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """One match for the whole window."""
        launched = context.launched
        ops = launched.op[~launched.graph]
        # what a capture records runs later, from its graph
        calls = launched.call[~launched.graph]
        calls = calls[np.diff(calls, prepend=-1) != 0]
        calls = calls[context.trace.api_calls.role[calls] == Role.LAUNCH]
        if len(calls) < FEWEST * context.steps or len(ops) == 0:
            return
        waits = context.idle(*HOST_LATE)
        gpu = context.trace.gpu_ops
        kernel = float(np.median((gpu.end - gpu.start)[ops]))
        interval = float(np.median(np.diff(np.sort(context.call_start[calls]))))
        if waits < options.min_idle * context.window_ns or kernel >= interval:
            return
        each = len(calls) / context.steps
        title = (
            f"{each:,.0f} launches a step, one every {interval / 1e3:.1f} us, of kernels that "
            f"take {kernel / 1e3:.1f} us"
        )
        edit = Edit(capture=context.step_spans(), unblock=context.waits.call)
        advice = COMPILED_ADVICE if context.compiled else ""
        site = context.region_site(calls)
        yield Match(calls=calls, edit=edit, title=title, site=site, advice=advice)
