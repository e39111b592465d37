"""What was measured without a profiler, for a replay that gives times as they truly are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Calibration:
    """The unprofiled step, and what of it the trace shows longer. Times in ns.

    Attributes:
        step_ns: the unprofiled step, median; `low_ns` and `high_ns` its 95 % interval.
        graph_call_ns: host time of the k-th graph replay of a step; () if none was timed.
        graph_span_ns: GPU time of the same, queued behind other work, from the moment the GPU is
            free for it to the end of its last node: with the usual gap before its first node.
        launch_ratio: untraced by traced time of one eager launch call on this machine.
    """

    step_ns: float
    low_ns: float
    high_ns: float
    graph_call_ns: tuple[float, ...] = ()
    graph_span_ns: tuple[float, ...] = ()
    launch_ratio: float = 0.8
