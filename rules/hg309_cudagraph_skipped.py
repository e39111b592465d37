"""HG309 cudagraph-skipped: compiled with CUDA graphs asked for, and run without one.

## What it sees
Inductor's CUDA graph manager (`torch/_inductor/cudagraph_trees.py: run`) is called in a steady
step, launches kernels, and neither replays nor captures a graph. That is a skip at run time: too
many recordings for changing shapes or addresses, outputs of the run before still alive, a run
that still counts as warm-up. A skip when compiling (inputs on the CPU, inputs that are mutated,
several devices) leaves nothing of graphs in a trace: `TORCH_LOGS=perf_hints` prints those, and
`hostgap profile` records them.

## Why it costs
The step pays for each of its launches, 5 to 15 us, although someone chose the mode that saves
them.

## Example
    step = torch.compile(step, mode="reduce-overhead")
    for tokens in stream:             # a new length each time: recorded anew, then given up
        step(tokens)

## Use instead
    for tokens in stream:
        torch.compiler.cudagraph_mark_step_begin()
        step(pad(tokens, BUCKETS))    # a few lengths

`cudagraph_skip_dynamic_graphs` and `cudagraph_dynamic_shape_warn_limit` in
`torch._inductor.config.triton` say what happens to changing shapes.

## Options
None.

## Sources
`torch/_inductor/cudagraph_trees.py` (exceed_rerecord_limit, run_eager), torch 2.11."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import event_site, named, outermost
from hostgap.diagnosis.model import Site
from hostgap.diagnosis.regions import capture
from hostgap.diagnosis.rule import Match, Need, Rule
from hostgap.trace.model import Int64, Role

MANAGER = re.compile(r"torch/_inductor/cudagraph_trees\.py\(\d+\): _?run$")


class CudagraphSkipped(Rule):
    """Graphs were asked for, and the compiled function runs without."""

    code = "HG309"
    name = "cudagraph-skipped"
    title = "Compiled with CUDA graphs, and run without one"
    advice = (
        "Find the reason with TORCH_LOGS=perf_hints,cudagraphs; keep shapes and addresses fixed."
    )
    needs = (Need.API_CALLS, Need.STACKS, Need.STEPS)

    def find(self, context: Context, options: object) -> Iterator[Match]:
        """The runs of the graph manager that launch kernels one by one, by the user's call."""
        api = context.trace.api_calls
        graphs = context.calls_of(Role.GRAPH_LAUNCH, Role.CAPTURE, Role.INSTANTIATE)
        eager = context.launches.call[context.launches.eager]
        found: dict[Site | None, list[Int64]] = {}
        for code, events in outermost(context, named(context, MANAGER)):
            nested = context.host[code].nested
            start, end = nested.start[events], nested.end[events]
            theirs = context.call_start[graphs[api.thread[graphs] == code]]
            mine = eager[api.thread[eager] == code]
            launched = context.call_start[mine]
            without = np.searchsorted(theirs, end) == np.searchsorted(theirs, start)
            low, high = np.searchsorted(launched, start), np.searchsorted(launched, end)
            for at in np.flatnonzero(without & (high > low)).tolist():
                site = event_site(context, code, int(events[at]))
                found.setdefault(site, []).append(mine[low[at] : high[at]])
        for site, runs in found.items():
            calls = np.concatenate(runs)
            region = np.repeat(np.arange(len(runs)), [len(run) for run in runs])
            title = (
                f"Compiled with CUDA graphs, and run without one: {len(calls) / len(runs):,.0f} "
                "launches each time"
            )
            edit = capture(context, calls, region)
            yield Match(calls=calls, edit=edit, site=site, count=len(runs), title=title)
