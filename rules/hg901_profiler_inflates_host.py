"""HG901 profiler-inflates-host: the profiler lengthens what the trace says of the host.

## What it sees
Calls of the window that are known to take longer under a profiler: launches of graphs whose nodes
are traced, eager launches, reads of a scalar and synchronizes. For each kind: how often, how long
here, and how long with and without a profiler on the machine it was measured on.

## Why it costs
It costs nothing, but host durations, the idle time they cause, and savings computed from them are
too large, by up to five times behind a synchronize. Counts, names, order and kernels' lengths can
be trusted.

## Example
    with torch.profiler.profile(with_stack=True):  # an eager step takes 1.3 to 2.3 times as long
        step()

## Use instead
    nsys profile --cuda-graph-trace=graph             # graphs keep their true period
    torch.profiler.profile(activities=[ProfilerActivity.CUDA])

Compare with the unprofiled step; leave stacks out once the places are known.

## Options
None.

## Sources
Measured on an H200, torch 2.11, driver 580: the same steps with and without each profiler."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hostgap.diagnosis.context import Context
from hostgap.diagnosis.rule import Match, Rule
from hostgap.trace.model import GpuKind, HostKind, Int64, Role

# A graph launch by its nodes, us of host time: unprofiled, CUDA-only, CPU and CUDA.
NODES = (1, 100, 500, 1230, 3000)
GRAPH_US = ((2.7, 22.9, 86.6, 217, 561), (6.0, 77.7, 302, 753, 1838), (5.9, 65.3, 280, 725, 3087))
LAUNCH_US = (8.7, 9.8, 11.1)  # one eager launch with its op
READ_US = (11.1, 13.4, 17.0)  # .item() on an idle device


class ProfilerInflatesHost(Rule):
    """The profiler slows the host, unevenly."""

    code = "HG901"
    name = "profiler-inflates-host"
    title = "The profiler lengthens host times"
    advice = "Take host times as upper bounds; compare with the step's unprofiled time."
    informs = True

    def find(self, context: Context, options: object) -> Iterator[Match]:
        """One match per kind of call of which there is at least one a step."""
        has_ops = bool((context.trace.host_ops.kind == HostKind.OP).any())
        column = 2 if has_ops else 1
        graphs, nodes = self._graphs(context)
        if len(graphs) >= context.steps:
            usual = float(np.median(nodes))
            traced, plain = (float(np.interp(usual, NODES, GRAPH_US[i])) for i in (column, 0))
            here = _median_us(context, graphs)
            yield Match(
                calls=graphs,
                title=f"A graph launch of {usual:,.0f} nodes takes {here:,.0f} us here: on an H200 "
                f"{traced:,.0f} us traced, {plain:,.0f} without, {traced / plain:.1f} times",
            )
        launches = context.calls_of(Role.LAUNCH)
        if len(launches) >= context.steps:
            traced, plain = LAUNCH_US[column], LAUNCH_US[0]
            stacks = ", more with stacks" if context.host.has_stacks() else ""
            yield Match(
                calls=launches,
                site=context.region_site(launches),
                title=f"{len(launches) / context.steps:,.0f} launches a step: on an H200 each "
                f"takes {traced} us of the host traced, {plain} without, {traced / plain:.1f} "
                f"times; whole eager steps 1.3 to 2.3 times{stacks}",
            )
        waits = context.waits.call
        if len(waits) >= context.steps:
            traced, plain = READ_US[column], READ_US[0]
            each = f"{len(waits) / context.steps:,.0f}"
            yield Match(
                calls=waits,
                title=f"{each} wait{'' if each == '1' else 's'} a step: on an H200 a read of an "
                f"idle device takes {traced} us traced, {plain} without, {traced / plain:.1f} "
                "times; behind a graph launch, add what tracing adds to that launch",
            )

    def _graphs(self, context: Context) -> tuple[Int64, Int64]:
        """Graph launches of the window whose nodes are traced, and how many each has."""
        gpu = context.trace.gpu_ops
        calls = context.calls_of(Role.GRAPH_LAUNCH)
        traced = (gpu.call >= 0) & (gpu.kind != GpuKind.GRAPH)
        nodes = np.bincount(gpu.call[traced], minlength=len(context.trace.api_calls))[calls]
        return calls[nodes > 0], nodes[nodes > 0]


def _median_us(context: Context, calls: Int64) -> float:
    api = context.trace.api_calls
    return float(np.median((api.end - api.start)[calls])) / 1e3
