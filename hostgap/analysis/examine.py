"""The analysis of one trace, stage by stage: integrity, clocks, steps, busy time, causes.

`examine` gives the tables (`Analysis`) that `metrics.diagnose` sums up to a `Diagnosis`, and that
rules and the HTML report read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from hostgap.analysis import integrity as trust
from hostgap.analysis.attribution import Attribution
from hostgap.analysis.bounds import refuse_too_many
from hostgap.analysis.clock import Clock, fit_clock
from hostgap.analysis.host import Host
from hostgap.analysis.integrity import Integrity
from hostgap.analysis.intervals import Intervals, clip, union
from hostgap.analysis.parts import NONE, Parts, Pieces
from hostgap.analysis.steps import Steps, assign_steps, find_steps
from hostgap.analysis.timeline import Lane, device_lanes, streams
from hostgap.errors import HostgapError
from hostgap.trace.model import Int32, Trace

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Options:
    """What to look at.

    Attributes:
        window: "steps" (the counted steps) or "trace" (per device, first GPU op to last).
        steps: half-open range of step indices, counted from the trace's first step; None means
            all but the pipeline's fill. Either end may be None, and negative counts from the end.
        step_marker: regular expression for the annotations that begin a step.
        device: only this device id, None for all.
        source_roots: folders in which the files that frames name are looked for, beside the
            current one: a trace names the function, its source the line of the call.
    """

    window: Literal["steps", "trace"] = "steps"
    steps: tuple[int | None, int | None] | None = None
    step_marker: str | None = None
    device: int | str | None = None
    source_roots: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceAnalysis:
    """One device: what it did in `[low, high)`, and causes for the rest.

    Attributes:
        rows: its ops, rows of gpu_ops in order of start.
        pieces: the idle intervals inside the window, cut into pieces with one cause each.
        streams: stream code -> its ops, rows of gpu_ops in order of start.
    """

    rows: Int32
    low: int
    high: int
    pieces: Pieces
    streams: dict[int, Int32]

    @property
    def gaps(self) -> Intervals:
        """Idle intervals inside the window."""
        return self.pieces.gaps

    @property
    def parts(self) -> Parts:
        """The pieces in one table, made when asked for."""
        return self.pieces.whole()


@dataclass(frozen=True, slots=True)
class Analysis:
    """The tables behind a diagnosis. Host times in them are on the GPU's clock.

    Attributes:
        chosen: indices of the steps in the window.
        devices: device code -> what it did; empty when nothing can be measured.
    """

    trace: Trace
    options: Options
    integrity: Integrity
    clock: Clock
    steps: Steps
    chosen: range
    devices: dict[int, DeviceAnalysis]
    host: Host

    def table(self, name: str) -> pd.DataFrame:
        """One table as a pandas DataFrame; see `hostgap.analysis.tables`.

        Args:
            name: gpu_ops, api_calls, host_ops, frames, syncs, steps, gaps, gap_parts or sites.

        Raises:
            HostgapError: there is no such table.
        """
        from hostgap.analysis import tables

        return tables.table(self, name)


def examine(trace: Trace, options: Options | None = None) -> Analysis:
    """Analyze a trace into tables: integrity, steps, gaps, and a cause for every piece of them.

    Args:
        trace: what `hostgap.load_trace` gives.
        options: the window, steps and device to look at; all counted steps by default.

    Raises:
        HostgapError: the options do not fit the trace, or its ids are damaged.
    """
    options = options or Options()
    refuse_too_many(trace)
    integrity = trust.check_trace(trace)
    clock = fit_clock(trace)
    lanes = device_lanes(trace)
    if options.device is not None:
        lanes = _only(trace, lanes, options.device)
    marks = find_steps(trace, clock, options.step_marker)
    steps = assign_steps(trace, clock, marks, list(lanes))
    chosen = _choose(steps, options)
    if not lanes:
        return Analysis(trace, options, integrity, clock, steps, chosen, {}, Host(trace, clock))

    windows = {code: _window(lane, steps, chosen, options) for code, lane in lanes.items()}
    if options.steps is None and all(low == high for low, high in windows.values()):
        chosen = range(len(steps))  # all GPU work belongs to the fill
        windows = {code: _window(lane, steps, chosen, options) for code, lane in lanes.items()}
    busy = union(trace.gpu_ops.start, trace.gpu_ops.end)
    low = min(low for low, _ in windows.values())
    high = max(high for _, high in windows.values())
    integrity = integrity.plus(trust.check_window(trace, clock, busy, low, high))
    integrity = integrity.plus(trust.check_steps(steps, trace, busy.total))
    del busy

    attribution = Attribution(
        trace, clock, _stepping(trace, clock, steps), _step_thread(trace, steps)
    )
    rows = {code: lane.rows for code, lane in lanes.items()}
    gaps = {
        code: lane.gaps(min(windows[code][0], lane.first), max(windows[code][1], lane.last))
        for code, lane in lanes.items()
    }
    del lanes  # busy time takes as much memory as idle time, and is needed no more
    devices = {
        code: _device(trace, attribution, rows[code], gaps.pop(code), *windows[code])
        for code in list(gaps)
    }
    for device in devices.values():
        integrity = integrity.plus(trust.check_pieces(device.pieces, device.high - device.low))
    return Analysis(trace, options, integrity, clock, steps, chosen, devices, attribution.host)


def _choose(steps: Steps, options: Options) -> range:
    if options.steps is None:
        return steps.counted
    chosen = range(len(steps))[slice(*options.steps)]
    if not chosen:
        raise HostgapError(
            f"--steps {_span(options.steps)}: no such steps",
            f"the trace has {len(steps)} (0 to {len(steps) - 1}), found by {steps.marks.source}",
        )
    return chosen


def _span(steps: tuple[int | None, int | None]) -> str:
    return ":".join("" if end is None else str(end) for end in steps)


def _only(trace: Trace, lanes: dict[int, Lane], device: int | str) -> dict[int, Lane]:
    found = {
        code: lane for code, lane in lanes.items() if str(trace.devices[code].id) == str(device)
    }
    if not found:
        known = ", ".join(str(trace.devices[code].id) for code in lanes) or "none"
        raise HostgapError(f"--device {device}: no such device in the trace", f"devices: {known}")
    return found


def _window(lane: Lane, steps: Steps, chosen: range, options: Options) -> tuple[int, int]:
    if options.window == "trace":
        return lane.first, lane.last
    return int(steps.boundaries[chosen.start]), int(steps.boundaries[chosen.stop])


def _stepping(trace: Trace, clock: Clock, steps: Steps) -> Intervals:
    """Host time from the first step's start to the end of the last host event."""
    ends = [table.end.max() for table in (trace.api_calls, trace.host_ops) if len(table)]
    if not ends:
        return Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))
    start = steps.marks.start[:1]
    return union(start, np.maximum(start, clock.to_gpu(np.array([max(ends)], np.int64))))


def _step_thread(trace: Trace, steps: Steps) -> int:
    """The thread that marks the steps, else the one that launched most."""
    api = trace.api_calls
    if steps.marks.thread != NONE:
        return steps.marks.thread
    if len(api) == 0:
        return NONE
    calls = trace.gpu_ops.call[trace.gpu_ops.call >= 0]
    return int(np.bincount(api.thread[calls] if len(calls) else api.thread).argmax())


def _device(
    trace: Trace, attribution: Attribution, rows: Int32, gaps: Intervals, low: int, high: int
) -> DeviceAnalysis:
    """Attribute all gaps, then clip to the window, so that shadows keep their cause."""
    pieces = Pieces(clip(gaps, low, high))
    for parts in attribution.attribute(rows, gaps, low, high):
        pieces.add(parts.clip(low, high))
    missing = pieces.gaps.total - pieces.total
    if missing:  # then nothing is printed at all
        raise AssertionError(f"idle time by cause misses the idle time by {missing} ns")
    return DeviceAnalysis(rows, low, high, pieces, streams(trace.gpu_ops, rows))
