"""How fast the host and the GPU of a replay are: as traced, as fast as they may be, as measured.

A profiler does not slow everything alike, so a pace says what becomes of each piece of host time
and of each call, and when and for how long the GPU runs what a call launched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.intervals import EMPTY, Intervals, cut, edges
from hostgap.trace.model import Int64

# How much longer tracing makes host time, measured on H200 hosts with torch 2.11: an eager step 1.3
# to 2.3 times. The replay without it assumes the most.
INFLATION = 2.3
# To a graph launch tracing adds 0.4 to 1.8 us a node, whatever it took before: 1,230 nodes took 217
# or 25 us without, 740 or 1,676 with. The most, and the least that a launch was seen to take.
TRACED_NODE_NS = 1_800
LEAST_GRAPH_NS = 5_000
GRAPH_INFLATION = 4.0  # of graph launches that an edit makes, which were never traced
# A recorded Python frame costs 4.6 us (a compiled step of 5,949 frames: 33.9 ms traced, 6.0 not).
FRAME_NS = 5_000
LEAST_RATE = 0.1  # of what is traced, that is left without frames


def untraced_graph_calls(length: Int64, nodes: Int64) -> Int64:
    """The least that graph launches may take without a profiler, ns.

    Args:
        length: of the calls as traced, ns.
        nodes: that each of them launched, as the trace has them: one of a graph recorded as a
            whole, whose launch is not lengthened.
    """
    least: Int64 = np.maximum(LEAST_GRAPH_NS, length - TRACED_NODE_NS * nodes)
    return np.minimum(length, least)


def _times() -> Int64:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Pace:
    """What of the traced times a replay takes. Units are the GPU ops of one call; times in ns.

    Attributes:
        lead: per unit, from its call's start to its first op's where the GPU is free.
        gap: per unit, from the end of the unit before where its launch is in hand.
        length: per unit, from its first op's start to its last op's end.
        host: share of its traced time that host work takes.
        graph: the same of graph launches, also of those that an edit makes.
        call: the same per call, NaN for those that are like other host work; None: all are.
        still: when the host did not work: as long at any pace.
        collecting: when it collected garbage; `gc` is the share of that, NaN: as other host work.
        gone: host time that only the profiler spent.
        frames: sorted, when Python frames were recorded, each of which took `FRAME_NS`.
        steady: the steps come again and again, and the host begins no further ahead than they
            let it; else it begins where the trace had it.
    """

    lead: Int64
    gap: Int64
    length: Int64
    host: float = 1.0
    graph: float = 1.0
    call: NDArray[np.float64] | None = None
    still: Intervals = EMPTY
    collecting: Intervals = EMPTY
    gc: float = math.nan
    gone: Intervals = EMPTY
    frames: Int64 = field(default_factory=_times)
    steady: bool = False


@dataclass(frozen=True, slots=True)
class HostSpans:
    """Host time by what stretches it; each set is merged but `calls`, which are one by one.

    Attributes:
        calls: the replayed calls.
        graphs: graph launches, and what an edit makes one.
        removed: what an edit takes away.
        waited: waits for the GPU: how long those last their ends say, not a pace.
    """

    calls: Intervals
    graphs: Intervals
    removed: Intervals
    waited: Intervals


def paced(times: Int64, spans: HostSpans, pace: Pace) -> Int64:
    """Where host times lie at a pace; the first of all times stays where it is.

    Args:
        times: in any order; the starts and ends of all calls among them.
        spans: what host time between them is.
        pace: what becomes of it.
    """
    sets = (
        spans.removed,
        spans.graphs,
        pace.still,
        pace.collecting,
        pace.gone,
        spans.waited,
    )
    points = np.unique(np.concatenate((times, *(edges(each) for each in sets))))
    length = np.diff(points)
    rate = np.full(len(length), pace.host)
    if len(pace.frames):
        recorded = np.diff(np.searchsorted(pace.frames, points))
        rate *= np.maximum(1 - recorded * FRAME_NS / length, LEAST_RATE)
    rate[_inside(spans.graphs, points)] = pace.graph
    if pace.call is not None:
        pieces = cut(spans.calls, points)
        own = pace.call[pieces.interval]
        rate[pieces.cell[~np.isnan(own)]] = own[~np.isnan(own)]
    if not math.isnan(pace.gc):
        rate[_inside(pace.collecting, points)] = pace.gc
    rate[_inside(pace.still, points)] = 1.0
    rate[_inside(pace.gone, points)] = 0.0
    rate[_inside(spans.removed, points)] = 0.0
    rate[_inside(spans.waited, points)] = 1.0
    work = np.concatenate(([0.0], np.cumsum(length * rate)))
    at: Int64 = points[0] + np.round(work[np.searchsorted(points, times)]).astype(np.int64)
    return at


def _inside(merged: Intervals, points: Int64) -> NDArray[np.intp]:
    """Cells between sorted points that merged intervals, which begin and end at points, cover."""
    return cut(merged, points).cell if len(merged.start) else np.zeros(0, np.intp)
