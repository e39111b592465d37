"""What a step would take without something: recorded steps, played again without it.

The profiler slows the host and not the GPU, so a replay of a trace promises too much. A second
replay, in which the host is as much faster as profilers have been measured to slow it, gives the
other end: what of a saving is left then cannot be the profiler's doing. Where the step was measured
without a profiler there is no need for either: the replay is fitted to what was measured.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hostgap.analysis.calibration import Calibration
from hostgap.analysis.edit import Edit
from hostgap.analysis.examine import Analysis
from hostgap.analysis.fit import Fit, fitted
from hostgap.analysis.pace import (
    FRAME_NS,
    GRAPH_INFLATION,
    INFLATION,
    LEAST_RATE,
    Pace,
    untraced_graph_calls,
)
from hostgap.analysis.playback import ASYNC_NS, STAGED_BYTES, Playback
from hostgap.trace.model import Bool, Int64

__all__ = ["ASYNC_NS", "MOST_EVENTS", "STAGED_BYTES", "Replay", "Saving"]

MOST_EVENTS = 6_000  # calls and ops replayed: whole steps, as many as fit, but at least one
MOST_CALIBRATED = 3_000  # the same of a replay that is fitted, played much oftener
STALL = 1.5  # times the median of its class; a step beyond it was held up
SPAN_WITHIN = 0.002  # to which the GPU time of a graph is measured
MOST_STALLS = 0.1  # of the steps; if more are so long, it is how they are


class Saving(NamedTuple):
    """What the replayed steps save, in ns for all of them: the best estimate and its two ends."""

    best: int
    low: int
    high: int


class Replay(Playback):
    """Some consecutive steps of one device, ready to be replayed.

    Args:
        analysis: what was examined.
        device: code of the device.
        most: how many calls and ops to replay at most; one step at least.
        calibration: what was measured without a profiler. With it, lengths and savings are those of
            the unprofiled step.
    """

    def __init__(
        self,
        analysis: Analysis,
        device: int,
        most: int | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        self.calibration = calibration
        calibrated = calibration is not None
        most = most or (MOST_CALIBRATED if calibrated else MOST_EVENTS)
        super().__init__(analysis, device, most, whole=calibrated)
        self._first_calls = self.calls[self.call_step == self.steps.start]
        self._unedited: dict[int, Int64] = {}

    @property
    def events(self) -> int:
        """How many calls and ops (or whole graphs) are replayed."""
        return len(self.calls) + len(self.units.start)

    @cached_property
    def residual_ns(self) -> int:
        """By how much the unedited replay of the trace as it is misses the recorded steps."""
        return abs(int(self.play(Edit(), self._traced).sum()) - (self.high - self.low))

    def length(self, edit: Edit, *, untraced: bool = False) -> int:
        """What the replayed steps take, in ns: from the end of the step before to their last op's.

        Args:
            edit: what is taken away.
            untraced: with the host as fast as it may be without a profiler.
        """
        if self.fits and not untraced:
            return int(self.play(edit, self.fits[0].pace).sum())
        return int(self.play(edit, self._untraced if untraced else self._traced).sum())

    def saving(self, edit: Edit, *, untraced: bool = False) -> int:
        """How much shorter the replayed steps are with an edit, in ns for all of them.

        Args:
            edit: what is taken away.
            untraced: with the host as fast as it may be without a profiler.
        """
        if self.fits and not untraced:
            return round(self._gain(edit, self.fits[0].pace))
        pace = self._untraced if untraced else self._traced
        before, after = self._plain(pace), self.play(edit, pace)
        gains = before - after
        whole = int(gains.sum())
        n = len(self.steps)
        if n == 1:
            return whole
        if untraced:
            # one stalled step must not make a fault of what costs nothing in the others
            often = 2 * self.touched(edit) > n
            return int(np.median(gains) * n) if often else whole
        if not np.isin(edit.unblock, self._first_calls).any():
            return whole
        # The first step begins where the one before left the host, which had the fault: the steps
        # after it say what a step gains.
        behind = int(gains[1:].sum()) * n // (n - 1)
        return max(whole, min(behind, int(before.sum())))

    def gains(self, edit: Edit) -> Int64:
        """How much shorter each replayed step of the trace as it is would be with an edit, ns."""
        return self._plain(self._traced) - self.play(edit, self._traced)

    # --- at the pace that was measured -----------------------------------------------------------

    @cached_property
    def fits(self) -> tuple[Fit, ...]:
        """The replay fitted to the median of the unprofiled step, and for the two ends of what is
        known of it; empty without a calibration."""
        measured = self.calibration
        if measured is None:
            return ()
        ends = (
            (measured.step_ns, 1.0),
            # the least that waits can cost: a short step, of which the GPU needs more
            (measured.low_ns, 1 + SPAN_WITHIN),
            (measured.high_ns, 1 - SPAN_WITHIN),
        )
        return tuple(
            fitted(
                self,
                replace(measured, graph_span_ns=tuple(ns * off for ns in measured.graph_span_ns)),
                step,
                self._usual,
            )
            for step, off in ends
        )

    def interval(self, edit: Edit) -> Saving:
        """What an edit saves of the unprofiled steps, with a calibration.

        The ends are those of the step's interval and of the graphs' GPU time; by what the replay
        misses the step, they are wider.
        """
        n = len(self.steps)
        gains = [self._gain(edit, fit.pace) for fit in self.fits]
        miss = [abs(fit.residual_ns) * n for fit in self.fits]
        low = min(gain - less for gain, less in zip(gains, miss, strict=True))
        high = max(gain + more for gain, more in zip(gains, miss, strict=True))
        # what saves nothing in any of them touches nothing that the step waits for
        best, low, high = (max(0, round(ns)) for ns in (gains[0], low, high if any(gains) else 0))
        return Saving(best, low, high)

    @cached_property
    def traced_span_ns(self) -> float:
        """What the GPU's work of a step spans in the trace with its launches in hand, ns."""
        return float(self.spans(self._traced)[self._usual].mean())

    def _gain(self, edit: Edit, pace: Pace) -> float:
        gains = self._plain(pace) - self.play(edit, pace)
        often = 2 * self.touched(edit) > len(self.steps)
        return float(gains[self._usual].mean() if often else gains.mean()) * len(self.steps)

    @cached_property
    def _usual(self) -> Bool:
        """Per replayed step: was it recorded without a stall? All, where many were as long."""
        steps = self.analysis.steps
        length = np.diff(steps.boundaries[self.steps.start : self.steps.stop + 1])
        usual = length <= STALL * np.median(length)
        enough = (~usual).sum() <= MOST_STALLS * len(length)
        return usual if enough and usual.any() else np.ones(len(length), np.bool_)

    # --- paces -----------------------------------------------------------------------------------

    def _plain(self, pace: Pace) -> Int64:
        """The unedited steps at a pace."""
        if id(pace) not in self._unedited:
            self._unedited[id(pace)] = self.play(Edit(), pace)
        return self._unedited[id(pace)]

    @cached_property
    def _traced(self) -> Pace:
        unit = self.units
        return Pace(unit.lead, unit.gap, unit.end - unit.start)

    @cached_property
    def _untraced(self) -> Pace:
        unit = self.units
        length = np.maximum(self.end - self.start, 1)
        nodes = np.bincount(unit.call, weights=self.nodes, minlength=len(length))
        least = untraced_graph_calls(length, nodes.astype(np.int64))
        return Pace(
            unit.lead,
            unit.gap,
            unit.end - unit.start,
            host=self._untraced_rate,
            graph=1 / GRAPH_INFLATION,
            call=np.where(self.graph_call, least / length, np.nan),
            still=self.still,
            gone=self.gone,
        )

    @cached_property
    def _untraced_rate(self) -> float:
        """The share of its time that host work may have taken without the profiler."""
        if len(self.start) == 0:
            return 1 / INFLATION
        low, high = int(self.start[0]), int(self.end[-1])
        recorded = np.count_nonzero((self.frames >= low) & (self.frames < high))
        waited = (self.end - self.start)[(self.wait >= 0) & ~self.drained].sum()
        left = 1 - recorded * FRAME_NS / max(1, high - low - int(waited))
        return min(max(left, LEAST_RATE), 1 / INFLATION)
