"""HG307 slow-graph-launch: the GPU waits while the host is inside cudaGraphLaunch.

## What it sees
Idle time of the GPU inside the call that launches a graph, beyond what the profiler can explain.
Tracing makes such a call longer by up to 1.8 us a node, so of each call only what is exposed
beyond that counts.

## Why it costs
A graph launch takes the host up to 0.5 us a node: 0.03 to 0.6 ms for 1,230 nodes, measured on
several hosts without a profiler. As long as the host runs ahead it hides behind the step before;
behind a wait the GPU has nothing else to do.

## Example
    for step in range(n):
        graph.replay()                # 1,230 nodes: 0.5 ms of host time
        if token.item() == eos:       # the GPU is idle when the next launch begins
            break

## Use instead
    for step in range(n):
        graph.replay()                # launched one step ahead
        if step and done[step - 1].query() and pinned[step - 1] == eos:
            break

Fuse kernels (fewer nodes launch faster), launch one step ahead, or upload a rarely used graph
ahead of its first launch (cudaGraphUpload).

## Options
None.

## Sources
Measured on an H200 with torch 2.11: graphs of 1 to 3,000 nodes, with and without a profiler."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hostgap.analysis.causes import Cause
from hostgap.analysis.edit import Edit
from hostgap.analysis.host import CALL
from hostgap.analysis.pace import untraced_graph_calls
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import caused_by
from hostgap.diagnosis.rule import Match, Need, Rule
from hostgap.trace.model import Role


class SlowGraphLaunch(Rule):
    """The GPU waits for the launch of a graph."""

    code = "HG307"
    name = "slow-graph-launch"
    title = "The GPU waits while the host launches a CUDA graph"
    advice = "Launch it one step ahead, behind no wait; fuse kernels, so that it has fewer nodes."
    needs = (Need.API_CALLS, Need.STEPS)

    def find(self, context: Context, options: object) -> Iterator[Match]:
        """The launches that are exposed for longer than the profiler makes them."""
        api = context.trace.api_calls
        launches = context.calls_of(Role.GRAPH_LAUNCH)
        idle = np.zeros(len(api), np.int64)
        for parts in context.pieces:
            mine = np.flatnonzero((parts.table == CALL) & caused_by(parts, Cause.LAUNCH_CALL))
            call, gap = parts.row[mine], context.device.gaps.start[parts.gap[mine]]
            # where the GPU ran dry before the call began, it was something else that made it wait
            began = context.call_start[call] <= gap
            np.add.at(idle, call[began], parts.length[mine[began]])
        exposed = idle[launches]
        length = (api.end - api.start)[launches]
        gpu = context.trace.gpu_ops
        nodes = np.bincount(gpu.call[gpu.call >= 0], minlength=len(api))[launches]
        # what the profiler may have added was exposed first, and hidden stays hidden
        true_exposed = exposed - (length - untraced_graph_calls(length, nodes))
        slow = true_exposed > 0
        if 2 * np.count_nonzero(slow) < context.steps:  # a hiccup
            return
        for site, calls in context.by_site(launches[slow]):
            at = np.isin(launches, calls)
            title = (
                f"The GPU waits {exposed[at].mean() / 1e3:,.0f} us while the host launches a CUDA "
                f"graph (a call of {length[at].mean() / 1e3:,.0f} us in the trace)"
            )
            edit = Edit(cut=context.calls_as_spans(calls))
            yield Match(calls=calls, edit=edit, site=site, title=title)
