"""What was measured without a profiler, for a replay that gives times as they truly are."""

from __future__ import annotations

from dataclasses import dataclass

from hostgap.errors import HostgapError, TraceError
from hostgap.profiling.measurement import LONGEST_NS, MOST_STEPS, SHORTEST_NS, Measurement

MOST_RATIO = 10  # a call takes no more than so many times as long without a profiler as with one


@dataclass(frozen=True, slots=True)
class Calibration:
    """The unprofiled step, and what of it the trace shows longer. Times in ns.

    Attributes:
        step_ns: the unprofiled step, median; `low_ns` and `high_ns` its 95 % interval.
        graph_call_ns: host time of the k-th graph replay of a step; () if none was timed.
        graph_span_ns: GPU time of the same, queued behind other work, from the moment the GPU is
            free for it to the end of its last node: with the usual gap before its first node.
        launch_ratio: untraced by traced time of one eager launch call on this machine.
        gc_ns: of a step, in which Python's garbage was collected; None if that was not measured.
    """

    step_ns: float
    low_ns: float
    high_ns: float
    graph_call_ns: tuple[float, ...] = ()
    graph_span_ns: tuple[float, ...] = ()
    launch_ratio: float = 0.8
    gc_ns: float | None = None


def step_alone(step_ns: float) -> Calibration:
    """Where only the length of the unprofiled step is known, ns.

    Raises:
        HostgapError: it is no length of time.
    """
    if not SHORTEST_NS <= step_ns <= LONGEST_NS:
        raise HostgapError(f"an unprofiled step of {step_ns:g} ns is no time")
    return Calibration(step_ns=step_ns, low_ns=step_ns, high_ns=step_ns)


def calibration_of(measurement: Measurement) -> Calibration:
    """What a run directory's measurement says of the unprofiled step.

    Raises:
        TraceError: its step takes no time.
    """
    step = measurement.timing.step
    if not SHORTEST_NS <= step.low_ns <= step.median_ns <= step.high_ns <= LONGEST_NS:
        raise TraceError(f"the measurement's step takes {step.median_ns:g} ns, which is no time")
    graphs = measurement.graphs
    most = MOST_STEPS * step.high_ns
    if not all(0 < graph.call_ns <= most and 0 < graph.span_ns <= most for graph in graphs):
        graphs = []
    ratios = [
        ratio
        for row in measurement.inflation
        if row.what == "eager launch" and row.cpu_cuda_ns
        if 0 < (ratio := row.unprofiled_ns / row.cpu_cuda_ns) <= MOST_RATIO
    ]
    gc_ns = None if measurement.host is None else measurement.host.gc_ns
    if gc_ns is not None and not 0 <= gc_ns <= most:
        gc_ns = None
    # Of ranks the GPU time of graphs was measured with all of them lined up. In the loop a replay
    # is longer by what it waits in it for others, of which the trace knows more.
    alone = measurement.options.get("ranks", 1) == 1
    return Calibration(
        step_ns=step.median_ns,
        low_ns=step.low_ns,
        high_ns=step.high_ns,
        graph_call_ns=tuple(graph.call_ns for graph in graphs),
        graph_span_ns=tuple(graph.span_ns for graph in graphs) if alone else (),
        gc_ns=gc_ns,
        **({"launch_ratio": ratios[0]} if ratios else {}),
    )
