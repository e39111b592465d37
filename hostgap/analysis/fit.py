"""The pace at which a replay takes as long as the step did without a profiler.

What was measured piece by piece is taken as it is: graph launches, the GPU time of graphs, an eager
launch; kernels outside graphs keep their length, which a profiler does not change. What is left of
the host is slowed alike: one rate, such that the unedited replay gives the measured step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.calibration import Calibration
from hostgap.analysis.edit import Edit
from hostgap.analysis.pace import Pace
from hostgap.analysis.playback import GRAPH_GAP_NS, Playback, Units
from hostgap.trace.model import Bool

RATES = (0.1, 1.5)  # plausible shares that host work takes of its traced time
WITHIN = 0.01  # of the step: where the GPU takes as much of it, the host limits nothing
# Of graphs that were not timed, measured on an H200 with torch 2.11 on graphs of 100 to 3,000
# nodes: untraced by traced time of a launch, and by how much tracing stretches a replay per node.
GRAPH_CALL, GRAPH_NODE_STRETCH_NS = 0.31, 160
HALVINGS = 24
MOST_GC = 2.0  # of what garbage collection took in the trace


@dataclass(frozen=True, slots=True)
class Fit:
    """A replay fitted to one length of the step; ns per step.

    Attributes:
        pace: what it is replayed at.
        residual_ns: what the fitted replay takes longer than the step did.
        gpu_ns: what the GPU's work takes with its launches in hand.
    """

    pace: Pace
    residual_ns: float
    gpu_ns: float


def fitted(played: Playback, measured: Calibration, step_ns: float, usual: Bool) -> Fit:
    """Fit the replay to a step of `step_ns`.

    Args:
        played: what to replay.
        measured: what was measured of its pieces.
        step_ns: what a step takes.
        usual: the steps to look at.
    """

    def takes(pace: Pace, *, host: bool = True) -> float:
        return float(played.play(Edit(), pace, host=host)[usual].mean())

    pace = _start(played, measured)
    if not measured.graph_span_ns and takes(replace(pace, host=1.0)) < step_ns:
        # no host is slower without a profiler: the graphs are stretched less than is usual
        pace = _longer_graphs(pace, played.units, lambda p: takes(p) <= step_ns)
    gpu_ns = takes(pace, host=False)
    if gpu_ns > step_ns:
        pace, gpu_ns = _shorter_gpu(pace, played.units, step_ns, lambda p: takes(p, host=False))

    def at(rate: float) -> Pace:
        return replace(pace, host=rate)

    least, most = RATES
    if gpu_ns >= (1 - WITHIN) * step_ns:
        # the host is hidden, and how fast it is cannot be seen: as fast as this machine's launches,
        # faster where it would show
        ratio = min(max(measured.launch_ratio, least), most)
        limit = max(gpu_ns, step_ns)
        rate = _largest(lambda r: takes(at(r)) <= limit, least, ratio)
    else:
        rate = _largest(lambda r: takes(at(r)) <= step_ns, least, most)
    if rate == least and takes(at(rate)) > (1 + WITHIN / 10) * step_ns:
        pace = _faster_launches(at(rate), played, lambda p: takes(p) <= step_ns)
    else:
        pace = at(rate)
    return Fit(pace, takes(pace) - step_ns, gpu_ns)


def _largest(fits: Callable[[float], bool], low: float, high: float) -> float:
    """The largest value in [low, high] that fits, if smaller ones do; `low` where none does."""
    if fits(high):
        return high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def _start(played: Playback, measured: Calibration) -> Pace:
    """The pace but for its host rate: what was measured of calls and graphs."""
    unit = played.units
    nth = _nth_graph(played)
    call = np.full(len(played.start), np.nan)
    call[played.launching & ~played.graph_call & (played.wait < 0)] = measured.launch_ratio
    traced = np.maximum(played.end - played.start, 1)
    if measured.graph_call_ns:
        now = np.array(measured.graph_call_ns)[nth % len(measured.graph_call_ns)]
        call = np.where(played.graph_call, now / traced, call)
    else:
        call[played.graph_call] = GRAPH_CALL
    # a graph's first node starts when its launch returns
    lead = unit.lead.copy()
    graph_call = unit.call[unit.graph]  # other units may have none, in a trace without any calls
    lead[unit.graph] = np.maximum(lead[unit.graph], traced[graph_call])
    gap, length = unit.gap.copy(), unit.end - unit.start
    spans = measured.graph_span_ns
    of_unit = np.zeros(len(unit.call), np.int64)
    of_unit[unit.graph] = nth[graph_call] % len(spans) if spans else nth[graph_call]
    for k in np.unique(of_unit[unit.graph]).tolist():
        mine = unit.graph & (of_unit == k)
        queued = gap[mine & ~unit.late]
        usual = int(np.median(queued)) if len(queued) else int(np.median(gap[mine]))
        gap[mine] = max(usual, 0) if len(queued) or usual else GRAPH_GAP_NS
        if spans:
            gap[mine] = np.minimum(gap[mine], int(spans[k] / 2))
            length[mine] = round(spans[k]) - gap[mine]
        else:
            less = np.minimum(GRAPH_NODE_STRETCH_NS * played.nodes[mine], length[mine] // 2)
            length[mine] -= less
    return Pace(
        lead,
        gap,
        length,
        graph=GRAPH_CALL,
        call=call,
        still=played.still,
        collecting=played.collecting,
        gc=_gc_share(played, measured),
        gone=played.gone,
        frames=played.frames,
        steady=True,
    )


def _gc_share(played: Playback, measured: Calibration) -> float:
    """Measured by traced time of garbage collection, NaN where either is missing.

    A collection takes as long as the heap is large, and a process that is traced has another heap:
    on an H200 host one took 146 ms there and 70 to 83 ms in a process that was not.
    """
    begin, end = played.collecting
    traced = int((np.minimum(end, played.high) - np.maximum(begin, played.low)).clip(0).sum())
    if measured.gc_ns is None or traced == 0:
        return math.nan
    return min(measured.gc_ns * len(played.steps) / traced, MOST_GC)


def _nth_graph(played: Playback) -> NDArray[np.int64]:
    """Per call: how many graph launches of its step come before it."""
    before: NDArray[np.int64] = np.cumsum(played.graph_call) - played.graph_call
    first = np.searchsorted(played.call_step, played.call_step, "left")
    return before - before[first] if len(before) else before


def _shorter_gpu(
    pace: Pace, units: Units, step_ns: float, takes: Callable[[Pace], float]
) -> tuple[Pace, float]:
    """GPU work that fits into the step: with shorter gaps outside graphs, else shorter ops, too."""
    eager = ~units.graph

    def gaps(share: float) -> Pace:
        return replace(pace, gap=np.where(eager, (pace.gap * share).astype(np.int64), pace.gap))

    pace = gaps(_largest(lambda share: takes(gaps(share)) <= step_ns, 0.0, 1.0))
    left = takes(pace)
    if left > step_ns:
        share = step_ns / left
        length = (pace.length * share).astype(np.int64)
        pace = replace(pace, gap=(pace.gap * share).astype(np.int64), length=length)
    return pace, takes(pace)


def _longer_graphs(pace: Pace, units: Units, fits: Callable[[Pace], bool]) -> Pace:
    """Graphs up to as long as they were traced."""
    traced = units.end - units.start

    def graphs(share: float) -> Pace:
        more = ((traced - pace.length) * share).astype(np.int64)
        return replace(pace, length=pace.length + more)

    return graphs(_largest(lambda share: fits(graphs(share)), 0.0, 1.0))


def _faster_launches(pace: Pace, played: Playback, fits: Callable[[Pace], bool]) -> Pace:
    """Eager launches faster than the machine's are elsewhere, where all else is not enough."""
    assert pace.call is not None
    call, eager = pace.call, played.launching & ~played.graph_call

    def launches(share: float) -> Pace:
        return replace(pace, call=np.where(eager, call * share, call))

    return launches(_largest(lambda share: fits(launches(share)), RATES[0], 1.0))
