"""What a step launches outside CUDA graphs, as stretches between its graph launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.edit import Edit
from hostgap.analysis.intervals import EMPTY, Intervals, covers, union
from hostgap.trace.model import Bool, CopyKind, Int32, Int64, Role

if TYPE_CHECKING:
    from hostgap.diagnosis.context import Context

# Longer than this between two launches, the host works on something that no capture removes.
HOST_WORK_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class Launches:
    """The n calls of the window that launched work on the device, in order.

    Attributes:
        call: rows of api_calls.
        graph: is it a graph launch?
        crosses: is it a copy between the host and the device? What goes into a graph and comes
            out of it must be copied outside.
        step: the step of each.
        before: how many graph launches its step made before it.
        graphs: how many graph launches its step makes in all.
    """

    call: Int64
    graph: Bool
    crosses: Bool
    step: Int32
    before: Int32
    graphs: Int32

    def __len__(self) -> int:
        return len(self.call)

    @property
    def eager(self) -> Bool:
        """Which of them a graph could hold, and none does."""
        return ~self.graph & ~self.crosses


def launches(context: Context) -> Launches:
    """The launches of a window; `context.launches` keeps them."""
    gpu, api, steps = context.trace.gpu_ops, context.trace.api_calls, context.analysis.steps
    launched = context.launched  # in order of call, and within a call of start
    head = np.flatnonzero(np.diff(launched.call, prepend=-1))
    call = launched.call[head].astype(np.int64)
    # a copy is launched alone; a graph's copies are its own business
    crosses = np.isin(gpu.copy_kind[launched.op[head]], (CopyKind.H2D, CopyKind.D2H))
    graph = api.role[call] == Role.GRAPH_LAUNCH
    # calls are in order, and so are their steps; what follows the last step counts with it
    step = np.maximum.accumulate(steps.call_step[call])
    done = np.cumsum(graph, dtype=np.int32) - graph
    first = np.flatnonzero(np.diff(step, prepend=step[:1] - 1))  # of each step
    count = np.diff(first, append=len(step))
    graphs = np.add.reduceat(graph, first, dtype=np.int32) if len(first) else done
    before = done - np.repeat(done[first], count)
    return Launches(call, graph, crosses & ~graph, step, before, np.repeat(graphs, count))


def capture(context: Context, calls: Int64, region: NDArray[np.signedinteger]) -> Edit:
    """The world in which each region of launches is one graph, and waits for nothing inside it.

    Where the host does something else between two launches for long, that stays, and the region
    becomes two graphs.

    Args:
        calls: n launches, in order.
        region: which region each belongs to; those of one region stand together.
    """
    start, end = context.call_start[calls], context.call_end[calls]
    if len(calls) == 0:
        return Edit()
    reach = np.maximum.accumulate(end)
    new = (region[1:] != region[:-1]) | (start[1:] - reach[:-1] > HOST_WORK_NS)
    first = np.flatnonzero(np.concatenate(([True], new)))
    last = np.concatenate((first[1:], [len(calls)])) - 1
    ends = np.flatnonzero(np.concatenate((region[1:] != region[:-1], [True])))
    begins = np.concatenate(([0], ends[:-1] + 1))
    whole = union(start[begins], reach[ends])
    return Edit(
        capture=replayed(context, union(start[first], reach[last])),
        unblock=waits_in(context, whole),
    )


def waits_in(context: Context, spans: Intervals) -> Int64:
    """Rows of api_calls of the waits that begin in merged host spans (GPU clock)."""
    waits = context.waits.call
    return waits[covers(spans, context.call_start[waits])]


def replayed(context: Context, spans: Intervals) -> Intervals:
    """Of merged host spans (GPU clock), those in the steps that are replayed: others cost only
    time there."""
    if context.replay is None:
        return EMPTY
    marks, steps = context.analysis.steps.marks, context.replay.steps
    stop = marks.start[steps.stop] if steps.stop < len(marks.start) else np.iinfo(np.int64).max
    keep = spans.start < stop
    return Intervals(spans.start[keep], spans.end[keep])
