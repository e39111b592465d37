"""For any trace: one cause for every idle nanosecond, periods that tile, and the rules' own words.

The oracle is a second attribution, written from the rules alone.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hostgap.analysis.analyze import analyze
from hostgap.analysis.causes import Cause
from hostgap.analysis.examine import (
    Analysis,
    DeviceAnalysis,
    Options,
    examine,
)
from hostgap.analysis.parts import Parts
from hostgap.analysis.timeline import lane
from hostgap.trace.model import Trace
from tests.analysis.build import Event, build
from tests.analysis.generate import played, wild
from tests.analysis.oracle import Oracle

MANY = settings(
    max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), print_blob=False
)
FEWER = settings(MANY, max_examples=50)
NOW = 1_760_000_000_000_000_000  # ns since 1970, where floats step by 256 ns


def active(trace: Trace, rows: np.ndarray, low: int, high: int) -> int:
    """Busy ns of some ops in [low, high), by sweeping over their edges."""
    spans = zip(trace.gpu_ops.start[rows].tolist(), trace.gpu_ops.end[rows].tolist(), strict=True)
    total, reach = 0, low
    for start, end in sorted(spans):
        total += max(0, min(end, high) - max(start, reach))
        reach = max(reach, min(end, high))
    return total


def check_identity(analysis: Analysis) -> None:
    for device in analysis.devices.values():
        by_cause = device.pieces.by_cause()
        busy = active(analysis.trace, device.rows, device.low, device.high)
        assert busy + sum(by_cause.values()) == device.high - device.low
        assert all(isinstance(cause, Cause) and ns > 0 for cause, ns in by_cause.items())
        check_cover(device.parts, device, analysis.trace, device.rows)


def check_cover(parts: Parts, device: DeviceAnalysis, trace: Trace, rows: np.ndarray) -> None:
    """Pieces do not overlap, lie inside the window, and never where an op runs."""
    at = parts.end > parts.start
    start, end = parts.start[at], parts.end[at]
    assert (start[1:] >= end[:-1]).all()
    if len(start):
        assert device.low <= start[0]
        assert end[-1] <= device.high
    for low, high in zip(start.tolist(), end.tolist(), strict=True):
        assert active(trace, rows, low, high) == 0


def check_steps(analysis: Analysis) -> None:
    edges = analysis.steps.boundaries
    assert len(edges) == len(analysis.steps) + 1
    assert (np.diff(edges) >= 0).all()
    assert int(np.diff(edges).sum()) == edges[-1] - edges[0]


@MANY
@given(
    wild(devices=3, processes=2, crossing=True),
    st.sampled_from(("steps", "trace")),
)
def test_every_idle_nanosecond_has_one_cause(events: list[Event], window: str) -> None:
    trace = build(events)
    analysis = examine(trace, Options(window=window))  # type: ignore[arg-type]
    check_identity(analysis)
    check_steps(analysis)


@FEWER
@given(wild(devices=2, processes=2, origin=NOW))
def test_at_absolute_times_too(events: list[Event]) -> None:
    trace = build(events)
    check_identity(examine(trace))


@FEWER
@given(wild(devices=2), st.data())
def test_in_any_range_of_steps(events: list[Event], data: st.DataObject) -> None:
    trace = build(events)
    n = len(examine(trace).steps)
    low = data.draw(st.integers(0, n - 1))
    high = data.draw(st.integers(low + 1, n))
    analysis = examine(trace, Options(steps=(low, high)))
    check_identity(analysis)
    edges = analysis.steps.boundaries
    for device in analysis.devices.values():
        assert (device.low, device.high) == (edges[low], edges[high])


@FEWER
@given(wild(devices=2))
def test_the_steps_idle_adds_up_to_the_windows(events: list[Event]) -> None:
    trace = build(events)
    everything = analyze(trace, Options(steps=(None, None)))
    per_step = sum(c.per_step.idle_ns * len(c.steps) for c in everything.steps.classes)
    # per step and device, in whole ns
    missing = sum(device.idle_ns for device in everything.devices) - per_step * len(
        everything.devices
    )
    assert -0.01 < missing < len(everything.devices) * everything.steps.count
    single = [
        sum(d.idle_ns for d in analyze(trace, Options(steps=(k, k + 1))).devices)
        for k in range(everything.steps.count)
    ]
    assert sum(single) == sum(device.idle_ns for device in everything.devices)
    assert sum(everything.steps.durations_ns) == everything.devices[0].window_ns


@FEWER
@given(wild(devices=2), st.sampled_from(("steps", "trace")))
def test_figures_agree_with_each_other(events: list[Event], window: str) -> None:
    trace = build(events)
    diagnosis = analyze(trace, Options(window=window))  # type: ignore[arg-type]
    for device in diagnosis.devices:
        assert device.window_ns == device.active_ns + device.idle_ns
        assert sum(device.idle_by_cause.values()) == device.idle_ns == device.gaps.total_ns
        assert device.active_ns == device.kernel_busy_ns + device.copy_only_ns
        assert sum(site.idle_ns for site in device.idle_sites) <= device.idle_ns
        for share in (
            device.kernel_utilization,
            device.active_utilization,
            device.utilization_without_collectives,
        ):
            assert share is None or 0 <= share <= 1
        for stream in device.streams:
            assert stream.active_ns + stream.idle_ns == device.window_ns
            assert sum(stream.idle_by_cause.values()) == stream.idle_ns
            # where the device idles so does the stream, for the same reasons
            elsewhere = stream.idle_by_cause.pop("dependency", 0)
            assert stream.idle_by_cause == device.idle_by_cause
            assert elsewhere == device.active_ns - stream.active_ns
    assert sum(s.shadow_ns for s in diagnosis.syncs) <= sum(d.idle_ns for d in diagnosis.devices)


# --- the second attribution -----------------------------------------------------------------------

Pieces = list[tuple[int, int, Cause, int]]


def totals(pieces: Pieces) -> tuple[Counter[str], Counter[int]]:
    """ns per cause, and per blocking call in whose shadow they lie."""
    causes: Counter[str] = Counter()
    blame: Counter[int] = Counter()
    for start, end, cause, call in pieces:
        causes[cause.label] += end - start
        if call >= 0:
            blame[call] += end - start
    return causes, blame


def clipped(pieces: Pieces, low: int, high: int) -> Pieces:
    cut = [(max(s, low), min(e, high), cause, call) for s, e, cause, call in pieces]
    return [piece for piece in cut if piece[1] > piece[0]]


def found(parts: Parts) -> tuple[Counter[str], Counter[int]]:
    columns = (parts.start, parts.end, parts.cause, parts.blame)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return totals([(s, e, Cause(c), b) for s, e, c, b in rows if e > s])


def check_oracle(analysis: Analysis) -> None:
    if not analysis.devices:
        return
    oracle = Oracle(analysis.trace, analysis.clock)
    for code, device in analysis.devices.items():
        ops = [i for i in oracle.ops if oracle.device[i] == code]
        ran = lane(analysis.trace.gpu_ops, device.rows)
        low, high = min(device.low, ran.first), max(device.high, ran.last)
        expected = clipped(oracle.attribute(ops, low, high), device.low, device.high)
        assert found(device.parts) == totals(expected)


@MANY
@given(played(), st.sampled_from(("steps", "trace")))
def test_the_rules_on_traces_that_could_be_real(events: list[Event], window: str) -> None:
    trace = build(events)
    analysis = examine(trace, Options(window=window))  # type: ignore[arg-type]
    assert not analysis.clock.corrected
    check_oracle(analysis)
    check_identity(analysis)


@MANY
@given(wild(), st.sampled_from(("steps", "trace")))
def test_the_rules_on_any_trace(events: list[Event], window: str) -> None:
    trace = build(events)
    check_oracle(examine(trace, Options(window=window)))  # type: ignore[arg-type]
