"""HG302 fragmented-graphs: a step is many small CUDA graphs, and the GPU waits between them.

## What it sees
Several graph launches a step, and idle time of the GPU for which the host is to blame (Python,
dispatch, launches) between one graph launch and the next. Many graphs whose launches hide behind
the GPU's work are fine, and nothing is said of them; neither of stretches between two graphs in
which the host waits for the GPU (those are HG1) or works for more than 1 ms on something else.

## Why it costs
Each graph launch costs the host 3 us and more, and what stands between costs as well: Python,
guards, a few eager launches. Where the graphs are shorter than that, the GPU runs dry between
them.

## Example
    for layer in layers:
        graphs[layer].replay()        # 10 us of GPU work
        attention(layer)              # eager, 30 us of host time

## Use instead
    with torch.cuda.graph(graph):     # the whole step, attention too
        for layer in layers:
            x = layer(x)

Serving engines: full graphs for decode (vLLM: `cudagraph_mode=FULL_DECODE_ONLY` or
`FULL_AND_PIECEWISE`) with an attention backend that can be captured.

## Options
- `min-graphs` (3): graph launches a step from which it counts as fragmented.
- `min-idle` (0.01): share of the step that the GPU must be idle between graphs.

## Sources
vLLM's piecewise and full CUDA graphs; PyTorch's CUDA graph trees."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hostgap.analysis.edit import Edit
from hostgap.analysis.intervals import Intervals, covers, overlap, union
from hostgap.diagnosis import rule as base
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import HOST_LATE, caused_by
from hostgap.diagnosis.regions import HOST_WORK_NS, replayed
from hostgap.diagnosis.rule import Match, Need, Rule


class Options(base.Options, frozen=True):
    """Thresholds of HG302."""

    min_graphs: int = 3
    min_idle: float = 0.01


class FragmentedGraphs(Rule):
    """Many graphs a step, with idle time between them."""

    code = "HG302"
    name = "fragmented-graphs"
    title = "The step is many CUDA graphs, and the GPU idles between them"
    advice = "Capture a larger part of the step as one graph, with what stands between."
    needs = (Need.API_CALLS, Need.STEPS)
    fix = "cuda-graph"
    options = Options

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """One match for all steps that are made of several graphs."""
        made = context.launches
        rows = np.flatnonzero(made.graph & (made.graphs >= options.min_graphs))
        graphs, step = made.call[rows], made.step[rows]
        if len(graphs) == 0:
            return
        same = step[1:] == step[:-1]
        start, end = context.call_end[graphs[:-1]][same], context.call_start[graphs[1:]][same]
        # a wait between two graphs is a decision on the host: no capture goes across it
        waits = np.sort(context.call_start[context.waits.call])
        waited = np.searchsorted(waits, end) > np.searchsorted(waits, start)
        keep = (end > start) & (end - start <= HOST_WORK_NS) & ~waited
        between = union(start[keep], end[keep])
        idle = 0
        for parts in context.pieces:
            late = caused_by(parts, *HOST_LATE)
            pieces = Intervals(parts.start[late], parts.end[late])
            idle += int(overlap(between, pieces).sum())
        if len(between.start) == 0 or idle < options.min_idle * context.window_ns:
            return
        # with eager launches the host still spends them, as nodes of the graph; without, nothing
        eager = np.sort(context.call_start[made.call[~made.graph]])
        has = np.searchsorted(eager, between.end) > np.searchsorted(eager, between.start)
        spans = Intervals(between.start[has], between.end[has])
        edit = Edit(
            capture=replayed(context, spans),
            cut=Intervals(between.start[~has], between.end[~has]),
        )
        steps = len(np.unique(step))
        title = (
            f"{len(graphs) / steps:,.0f} graph launches a step, and the GPU idles "
            f"{idle / steps / 1e3:,.0f} us a step between them"
        )
        inside = made.call[made.graph | covers(spans, context.call_start[made.call])]
        site = context.region_site(inside[np.isin(inside, graphs)])
        yield Match(calls=graphs, edit=edit, site=site, title=title)
