"""HG308 graph-hurts: a captured region is slower than its launches would be.

## What it sees
Nothing in a trace alone: it holds the region in one form, as a graph or not. Of a run directory,
regions (a step function as a whole) that were timed both ways without a profiler: `regions` of its
measurement, with `graph_ns` and `eager_ns` for one run, and `file`, `line` and `function` of where.

## Why it costs
A replay has a price: copies into the graph's inputs, 6 to 10 us until the first node starts,
nodes that wait for one another although streams would overlap, and kernels chosen for the padded
size. A region of few long kernels, or a graph that runs padded to four times its batch, loses by
it.

## Example
    with torch.cuda.graph(graph):
        y = x @ w                     # one kernel of 3 ms
    for x in batches:
        static_x.copy_(x)             # 0.2 ms
        graph.replay()

## Use instead
    for x in batches:
        y = x @ w

Leave it eager, or capture more around it; add a bucket where padding is the cause.

## Options
- `min-loss` (0.02): by which share of its eager time a region must be slower as a graph.

## Sources
PyTorch's CUDA graph notes; cudagraph trees, which copy inputs that move."""

from __future__ import annotations

from collections.abc import Iterator

from hostgap.diagnosis import rule as base
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.model import Site
from hostgap.diagnosis.rule import Match, Need, Rule


class Options(base.Options, frozen=True):
    """Thresholds of HG308."""

    min_loss: float = 0.02


class GraphHurts(Rule):
    """A graph that is slower than what it replaces."""

    code = "HG308"
    name = "graph-hurts"
    title = "A captured region is slower than its launches would be"
    advice = "Leave it eager, or capture more of the step with it."
    needs = (Need.PROFILE,)
    options = Options

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """The regions that were measured both ways."""
        if context.measurement is None:
            return
        for region in context.measurement.regions:
            graph, eager = region.graph_ns, region.eager_ns
            if graph > eager * (1 + options.min_loss):
                site = Site(
                    file=region.file,
                    line=region.line,
                    function=region.function,
                    op=None,
                    precision="call" if region.line else "none",
                )
                title = (
                    f"A captured region takes {graph / 1e3:,.0f} us as a graph and "
                    f"{eager / 1e3:,.0f} us without"
                )
                yield Match(site=site, count=context.steps, title=title)
