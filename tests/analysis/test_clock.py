"""Bounds on the offset between host and GPU clock, and what is done about them."""

from __future__ import annotations

import numpy as np
import pytest

from hostgap.analysis.causes import Cause
from hostgap.analysis.clock import Clock, download_syncs, fit_clock
from hostgap.analysis.examine import examine
from hostgap.trace.model import Trace
from tests.analysis.build import (
    BLOCKING_COPY,
    COPY_CALL,
    D2D,
    D2H,
    DEVICE_SYNC,
    H2D,
    LAUNCH,
    STREAM_SYNC,
    Event,
    build,
    call,
    copy,
    kernel,
)


def loop(n: int, skew: int = 0, drift: float = 0.0) -> list[Event]:
    """n times: launch at 0, run from 100 to 300, wait until 310; GPU times moved by the skew."""
    events = []
    for i in range(n):
        at = 1_000 * i
        moved = skew + round(drift * at)
        events += [
            call(LAUNCH, at, at + 10, i + 1),
            kernel(at + 100 + moved, at + 300 + moved, i + 1),
            call(DEVICE_SYNC, at + 20, at + 310),
        ]
    return events


def test_clocks_that_agree_are_left_alone() -> None:
    clock = fit_clock(build(loop(3)))
    assert not clock.corrected
    assert (clock.lowest_ns, clock.highest_ns) == (-10, 100)


def test_without_evidence_nothing_is_moved() -> None:
    assert fit_clock(build(kernel(0, 10))) == Clock()


@pytest.mark.parametrize(
    ("skew", "offset"),
    [
        (-101, -1),  # the kernel starts 1 ns before its launch
        (-5_000, -4_900),
        (11, 1),  # the wait ends 1 ns before what it waited for
        (5_000, 4_990),
    ],
)
def test_a_constant_offset_is_corrected_just_far_enough(skew: int, offset: int) -> None:
    trace = build(loop(3, skew))
    clock = fit_clock(trace)
    assert clock.reconciled
    assert (clock.offset_ns, clock.slope) == (offset, 0.0)
    assert_consistent(trace, clock)


def assert_consistent(trace: Trace, clock: Clock, slack: int = 0) -> None:
    gpu, api = trace.gpu_ops, trace.api_calls
    start, end = clock.to_gpu(api.start), clock.to_gpu(api.end)
    assert (gpu.start - start[gpu.call] >= -slack).all()
    syncs = end[api.role == 4]
    assert (syncs - gpu.end >= -slack).all()


@pytest.mark.parametrize("drift", [-0.001, 0.001, 0.004, -0.004])
@pytest.mark.parametrize("skew", [0, -20_000])
def test_a_drift_is_followed(drift: float, skew: int) -> None:
    """Over 2 ms the clocks part by more than the room between the bounds."""
    trace = build(loop(2_000, skew, drift))
    clock = fit_clock(trace)
    assert clock.reconciled
    assert clock.slope == pytest.approx(drift, rel=0.05)
    assert_consistent(trace, clock, slack=1)


def test_loose_bounds_do_not_hide_tight_ones() -> None:
    """Every other kernel starts late and is waited for long: both say little of the offset."""
    events = []
    for i in range(2_000):
        at, loose = 1_000 * i, 500 * (i % 2)
        moved = at + round(0.004 * at) - 3_000
        events += [
            call(LAUNCH, at, at + 5, i + 1),
            kernel(moved + 10 + loose, moved + 20 + loose, i + 1),
            call(DEVICE_SYNC, at + 6, at + 30 + loose + loose // 2),
        ]
    trace = build(events)
    clock = fit_clock(trace)
    assert clock.reconciled
    assert_consistent(trace, clock, slack=4)


def test_bounds_that_contradict_each_other() -> None:
    trace = build(
        loop(2),
        # starts 5 us before its launch, and ends 5 us after its wait
        call(LAUNCH, 10_000, 10_010, 9),
        kernel(5_000, 15_000, 9),
        call(DEVICE_SYNC, 10_020, 10_030),
    )
    clock = fit_clock(trace)
    assert not clock.reconciled
    assert not clock.corrected
    analysis = examine(trace)
    causes = set(analysis.devices[0].pieces.by_cause())
    assert causes == {Cause.UNATTRIBUTABLE}
    assert [note.code for note in analysis.integrity.notes] == ["HG904", "HG926"]


def test_drift_of_more_than_one_percent_is_no_clock() -> None:
    assert not fit_clock(build(loop(2_000, 0, 0.05))).reconciled


def test_mapping_is_exact_at_absolute_times() -> None:
    """Kineto's times are ns since 1970: a float64 would round them to 256 ns."""
    base = 1_760_000_000_000_000_001
    clock = Clock(offset_ns=3, slope=1e-6, origin_ns=base)
    times = np.array([base, base + 1, base + 1_000_000], np.int64)
    assert clock.to_gpu(times).tolist() == [base + 3, base + 4, base + 1_000_004]


def test_correction_gives_the_same_causes_as_clocks_that_agree() -> None:
    """The true offset is one of the bounds, so the correction finds it: nothing else changes."""

    def causes(skew: int) -> dict[Cause, int]:
        events = []
        for i in range(4):
            at = 1_000 * i
            events += [
                call(LAUNCH, at, at + 10, i + 1),
                kernel(at + skew, at + 300 + skew, i + 1),  # it starts with its launch
                call(DEVICE_SYNC, at + 20, at + 300),
            ]
        return examine(build(events)).devices[0].pieces.by_cause()

    assert causes(0) == causes(-7_000) == causes(7_000)
    assert causes(0)[Cause.PYTHON] == 3 * 700


# --- which waits say something --------------------------------------------------------------------


def lowest(*events: Event) -> int | None:
    return fit_clock(build(*events)).lowest_ns


def test_a_device_synchronize_waits_for_what_was_launched_before_it() -> None:
    before = [call(LAUNCH, 0, 10, 1), kernel(20, 100, 1)]
    after = [call(LAUNCH, 60, 70, 2), kernel(100, 900, 2)]
    assert lowest(*before, call(DEVICE_SYNC, 20, 50), *after) == 50


@pytest.mark.parametrize(("returned", "bound"), [(20, 850), (21, -10)])
def test_a_launch_still_under_way_is_not_waited_for(returned: int, bound: int) -> None:
    before = [call(LAUNCH, 0, 10, 1), kernel(20, 40, 1)]
    other = [call(LAUNCH, 15, returned, 2, thread=(1, 2)), kernel(40, 900, 2)]
    assert lowest(*before, call(DEVICE_SYNC, 20, 50), *other) == bound


def test_a_device_synchronize_says_nothing_of_another_process() -> None:
    other = (2, 1)
    assert (
        lowest(call(LAUNCH, 0, 10, 1), kernel(20, 100, 1), call(DEVICE_SYNC, 20, 50, thread=other))
        is None
    )


def test_with_two_devices_it_is_not_known_which_one_was_waited_for() -> None:
    assert (
        lowest(
            call(LAUNCH, 0, 5, 1),
            kernel(20, 100, 1, device=0),
            call(LAUNCH, 6, 10, 2),
            kernel(20, 100, 2, device=1),
            call(DEVICE_SYNC, 20, 50),
        )
        is None
    )


def test_a_stream_synchronize_alone_says_nothing() -> None:
    assert lowest(call(LAUNCH, 0, 10, 1), kernel(20, 100, 1), call(STREAM_SYNC, 20, 50)) is None


def test_a_blocking_download_ends_after_its_copy() -> None:
    assert lowest(call(BLOCKING_COPY, 0, 40, 1), copy(20, 100, 1, D2H)) == 60


@pytest.mark.parametrize("direction", [H2D, D2D])
def test_an_upload_may_return_early(direction: str) -> None:
    assert lowest(call(BLOCKING_COPY, 0, 40, 1), copy(20, 100, 1, direction)) is None


def test_a_stream_synchronize_behind_a_download_waits_for_it() -> None:
    item = [call(COPY_CALL, 0, 10, 1), copy(20, 100, 1, D2H), call(STREAM_SYNC, 20, 80)]
    assert lowest(*item) == 20


def test_with_two_streams_it_may_be_the_other_that_is_waited_for() -> None:
    item = [call(COPY_CALL, 0, 10, 1), copy(20, 100, 1, D2H), call(STREAM_SYNC, 20, 80)]
    assert lowest(*item, kernel(30, 40, stream=9)) is None


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([call(COPY_CALL, 0, 10, 1), call(STREAM_SYNC, 20, 80)], [1, -1]),
        # a query or an event in between changes nothing
        (
            [call(COPY_CALL, 0, 10, 1), call("cudaEventRecord", 12, 14), call(STREAM_SYNC, 20, 80)],
            [2, -1, -1],
        ),
        # a launch in between does: the wait may be for that
        ([call(COPY_CALL, 0, 10, 1), call(LAUNCH, 12, 14), call(STREAM_SYNC, 20, 80)], [-1] * 3),
        ([call(COPY_CALL, 0, 10, 1), call(STREAM_SYNC, 20, 80, thread=(1, 2))], [-1, -1]),
        ([call(COPY_CALL, 0, 10, 1), call(DEVICE_SYNC, 20, 80)], [-1, -1]),
    ],
)
def test_which_synchronize_belongs_to_a_download(events: list[Event], expected: list[int]) -> None:
    assert download_syncs(build(events, copy(20, 60, 1, D2H))).tolist() == expected
