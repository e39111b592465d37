"""From tables to figures: shares, counts, classes of steps, syncs."""

from __future__ import annotations

import pytest

from hostgap.analysis.analyze import analyze
from hostgap.analysis.examine import Options
from hostgap.analysis.step_classes import phase
from hostgap.diagnosis.model import Diagnosis, StepClass
from hostgap.errors import HostgapError
from tests.analysis.build import (
    BLOCKING_COPY,
    COPY_CALL,
    D2D,
    D2H,
    DEVICE_SYNC,
    GRAPH,
    H2D,
    LAUNCH,
    STREAM_SYNC,
    Event,
    build,
    call,
    copy,
    frame,
    kernel,
    memset,
    note,
    op,
    steps,
)

WHOLE = Options(window="trace")


def whole(*events: Event | list[Event], options: Options = WHOLE) -> Diagnosis:
    return analyze(build(*events), options)


# --- utilization ----------------------------------------------------------------------------------


def test_shares_of_the_window() -> None:
    device = whole(
        kernel(0, 40),
        kernel(30, 50),  # overlaps: unions never exceed 100 %
        copy(40, 60),
        memset(70, 80),
        kernel(90, 100, name="ncclDevKernel_AllGather"),
    ).devices[0]
    assert (device.window_ns, device.active_ns, device.idle_ns) == (100, 80, 20)
    assert (device.kernel_busy_ns, device.copy_only_ns) == (60, 20)
    assert device.kernel_utilization == 0.6
    assert device.active_utilization == 0.8
    assert device.utilization_without_collectives == 0.5
    assert device.reason is None
    assert (device.kernels, device.copies, device.memsets, device.orphans) == (3, 1, 1, 5)


def test_gaps_by_length() -> None:
    gaps = (
        whole(kernel(0, 10), kernel(1_010, 1_020), kernel(2_021, 2_030), kernel(20_000, 20_001))
        .devices[0]
        .gaps
    )
    assert (gaps.over_1us, gaps.over_10us, gaps.total_ns) == (2, 1, 1_000 + 1_001 + 17_970)


def test_cost_factor_is_window_over_active_of_all_devices() -> None:
    two = [kernel(0, 50), kernel(90, 100), kernel(0, 40, device=1), kernel(100, 160, device=1)]
    assert whole(two).cost_factor == (100 + 160) / (60 + 100)


def test_a_window_without_length_gives_a_reason_and_no_number() -> None:
    diagnosis = whole(steps(0, 100), kernel(10, 20), options=Options(steps=(1, 2)))
    device = diagnosis.devices[0]
    assert device.window_ns == 0
    assert device.kernel_utilization is device.active_utilization is None
    assert device.reason is not None
    assert "no length" in device.reason
    assert diagnosis.cost_factor is None


def test_nothing_recorded_gives_no_device() -> None:
    diagnosis = whole(call(LAUNCH, 0, 10, 1))
    assert diagnosis.devices == []
    assert diagnosis.trace.integrity.verdict == "unmeasurable"
    assert diagnosis.cost_factor is None
    assert (diagnosis.steps.count, diagnosis.steps.per_step) == (0, None)
    assert diagnosis.counts.launches == 1


def test_gpu_work_before_the_first_step_only() -> None:
    diagnosis = analyze(build(kernel(0, 10), kernel(20, 30), note("ProfilerStep#1", 50, 90)))
    assert diagnosis.steps.count == 1
    assert diagnosis.devices[0].window_ns == 0
    assert diagnosis.devices[0].kernel_utilization is None


def test_a_window_without_length_inside_a_gap() -> None:
    events = [kernel(0, 5), kernel(30, 40), note("ProfilerStep#0", 10, 20)]
    (device,) = analyze(build(events), Options(steps=(0, 1))).devices
    assert device.active_ns + device.idle_ns == device.window_ns
    diagnosis = analyze(build(kernel(0, 5), kernel(30, 40), steps(10, 20, length=5)))
    assert sum(d.window_ns for d in diagnosis.devices) >= 0


def test_a_wait_of_no_length_on_a_thread_of_its_own() -> None:
    (sync,) = whole(kernel(0, 5), call(DEVICE_SYNC, 11, 11, thread=(1, 2))).syncs
    assert (sync.count, sync.blocked_ns, sync.site) == (1, 0, None)


def test_the_median_latency_needs_twenty_samples() -> None:
    def latency(n: int) -> int | None:
        events = []
        for i in range(n + 1):
            at = 1_000 * i
            events += [call(LAUNCH, at, at + 10, i + 1), kernel(at + 10 + i, at + 500, i + 1)]
        return whole(events).devices[0].launch_latency_median_ns

    assert latency(19) is None
    assert latency(20) == 10  # of 1 to 20 ns


# --- counts ---------------------------------------------------------------------------------------


def test_counts() -> None:
    counts = whole(
        call(LAUNCH, 0, 5, 1),
        kernel(10, 20, 1),
        call(GRAPH, 20, 25, 2),
        kernel(30, 40, 2, node=1),
        kernel(50, 60, 2, node=2),
        call(COPY_CALL, 60, 65, 3),
        copy(70, 80, 3, D2H),
        call(STREAM_SYNC, 70, 90),
        call(BLOCKING_COPY, 90, 105, 4),
        copy(95, 100, 4, H2D),
        call(COPY_CALL, 105, 106, 5),
        copy(107, 110, 5, D2D),
        call("cudaMalloc", 110, 120),
        call(DEVICE_SYNC, 120, 130),
        call(LAUNCH, 130, 135, 6),
        kernel(140, 150, 6),
    ).counts
    assert (counts.launches, counts.graph_launches, counts.allocs) == (2, 1, 1)
    assert (counts.sync_calls, counts.blocking_syncs) == (2, 3)
    assert (counts.copies.h2d, counts.copies.d2h, counts.copies.d2d) == (1, 1, 1)
    assert counts.copies.pageable == 2


def test_shares_in_graphs() -> None:
    capture = whole(
        call(LAUNCH, 0, 5, 1),
        kernel(10, 20, 1),
        call(GRAPH, 6, 9, 2),
        kernel(30, 40, 2, node=1),
        kernel(60, 70, 2, node=2),
        kernel(80, 90, 2, node=3),
    ).capture
    assert capture.gpu_ops_in_graphs == 0.75
    assert capture.idle_in_graphs == 30 / 40


# --- classes of steps -----------------------------------------------------------------------------


def serving(kinds: str) -> list[Event]:
    """p: a prefill of five kernels, d: a decode of one. 1000 ns each."""
    events = []
    for i, kind in enumerate(kinds):
        at = 1_000 * i
        label = "step[EXTEND bs=1]" if kind == "p" else "step[DECODE bs=1]"
        events.append(note(label, at, at + 400))
        for k in range(5 if kind == "p" else 1):
            id = 10 * i + k + 1
            events += [
                call(LAUNCH, at + 50 * k, at + 50 * k + 10, id),
                kernel(at + 50 * k + 20, at + 50 * k + 40, id, kind),
            ]
    return events


def classes(diagnosis: Diagnosis) -> dict[str, StepClass]:
    return {c.label: c for c in diagnosis.steps.classes}


def test_prefill_and_decode_are_never_averaged() -> None:
    diagnosis = analyze(build(serving("ppdpdd")))
    found = classes(diagnosis)
    assert {label: c.steps for label, c in found.items()} == {
        "step[EXTEND bs=1]": [1, 3],
        "step[DECODE bs=1]": [2, 4, 5],
    }
    assert found["step[EXTEND bs=1]"].per_step.launches == 5
    assert found["step[DECODE bs=1]"].per_step.launches == 1
    # per_step is of the class that took the most time
    assert diagnosis.steps.per_step == found["step[DECODE bs=1]"].per_step


def test_steps_of_one_name_that_run_other_kernels_are_apart() -> None:
    events: list[Event] = [*steps(0, 1_000, 2_000, 3_000)]
    for i, name in enumerate(("warm", "a", "b", "a")):
        events += [
            call(LAUNCH, 1_000 * i, 1_000 * i + 10, i + 1),
            kernel(1_000 * i + 20, 1_000 * i + 90, i + 1, name),
        ]
    diagnosis = analyze(build(events))
    assert [c.steps for c in diagnosis.steps.classes] == [[1, 3], [2]]
    assert [c.label for c in diagnosis.steps.classes] == ["1 launch", "1 launch, variant 2"]


def test_too_many_classes_are_no_classes() -> None:
    events: list[Event] = [*steps(*range(0, 10_000, 1_000))]
    for i in range(10):
        events += [
            call(LAUNCH, 1_000 * i, 1_000 * i + 10, i + 1),
            kernel(1_000 * i + 20, 1_000 * i + 90, i + 1, f"kernel{i}"),
        ]
    assert [c.steps for c in analyze(build(events)).steps.classes] == [list(range(1, 10))]


def test_too_many_classes_still_keep_phases_and_sizes_apart() -> None:
    """Twelve steps of one name with kernels of their own: four launch eight times as much."""
    events: list[Event] = [*steps(*range(0, 13_000, 1_000))]
    for i in range(13):
        for k in range(8 if i in (1, 4, 7, 10) else 1):
            at, id = 1_000 * i + 60 * k, 10 * i + k + 1
            events += [call(LAUNCH, at, at + 10, id), kernel(at + 20, at + 70, id, f"k{i}")]
    found = [c.steps for c in analyze(build(events)).steps.classes]
    assert sorted(found) == [[1, 4, 7, 10], [2, 3, 5, 6, 8, 9, 11, 12]]


def test_too_many_classes_still_keep_long_and_short_steps_apart() -> None:
    events: list[Event] = [*steps(*range(0, 13_000, 1_000))]
    for i in range(13):
        at, runs = 1_000 * i, 800 if i in (1, 4, 7, 10) else 100 + i
        events += [
            call(LAUNCH, at, at + 10, i + 1),
            kernel(at + 20, at + 20 + runs, i + 1, f"k{i}"),
        ]
    found = [c.steps for c in analyze(build(events)).steps.classes]
    assert sorted(found) == [[1, 4, 7, 10], [2, 3, 5, 6, 8, 9, 11, 12]]


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("execute_context_2(512)_generation_0(0)", "prefill"),
        ("execute_context_0(0)_generation_14(14)", "decode"),
        ("execute_context_2(512)_generation_14(14)", "prefill + decode"),
        ("step[DECODE bs=16]", "step[DECODE bs=#]"),
        ("train 7", "train #"),
        ("", ""),
    ],
)
def test_phases(label: str, expected: str) -> None:
    assert phase(label) == expected


def test_the_summary_of_steps() -> None:
    summary = analyze(build(serving("ddd"))).steps
    assert (summary.count, summary.first, summary.source) == (2, 1, "annotation")
    assert summary.fill_ns == 40
    assert summary.durations_ns == [1_000, 1_000]
    assert summary.classes[0].duration_median_ns == 1_000
    assert summary.per_step is not None
    assert summary.per_step.idle_ns == 980
    both = analyze(build(serving("ddd")), Options(steps=(0, 2))).steps
    assert (both.count, both.first, both.fill_ns) == (2, 0, None)


# --- blocking calls -------------------------------------------------------------------------------


def item_loop(n: int) -> list[Event]:
    events = [frame("user.py(10): decode", 0, 1_000 * n), *steps(*range(0, 1_000 * n, 1_000))]
    for i in range(n):
        at = 1_000 * i
        events += [
            call(LAUNCH, at, at + 10, 10 * i + 1),
            kernel(at + 20, at + 400, 10 * i + 1),
            op("aten::item", at + 190, at + 440),
            call(COPY_CALL, at + 200, at + 210, 10 * i + 2),
            copy(at + 400, at + 410, 10 * i + 2, D2H),
            call(STREAM_SYNC, at + 220, at + 420),
        ]
    return events


def test_syncs_are_put_together_by_call_and_site() -> None:
    (sync,) = analyze(build(item_loop(4))).syncs
    # the window begins in the shadow of the last wait before it
    assert (sync.count, sync.blocked_ns, sync.shadow_ns) == (3, 3 * 200, 3 * 590)
    (sync,) = analyze(build(item_loop(4)), WHOLE).syncs
    assert (sync.call, sync.copy, sync.count) == (STREAM_SYNC, "d2h", 4)
    assert sync.blocked_ns == 4 * 200
    # from each wait's return to the next launch's; nothing follows the last
    assert sync.shadow_ns == 3 * 590
    assert sync.site is not None
    assert (sync.site.file, sync.site.line, sync.site.function) == ("user.py", 10, "decode")


def test_a_sync_that_starves_nothing_has_no_shadow() -> None:
    diagnosis = whole(
        call(LAUNCH, 0, 5, 1),
        kernel(10, 20, 1),
        call("cudaEventSynchronize", 6, 22),
        call(LAUNCH, 6, 8, 2, thread=(1, 2)),
        kernel(20, 90, 2),
    )
    (sync,) = diagnosis.syncs
    assert (sync.blocked_ns, sync.shadow_ns, sync.copy) == (16, 0, None)


# --- one device only ------------------------------------------------------------------------------


def test_only_one_device() -> None:
    events = [
        call(LAUNCH, 0, 5, 1),
        kernel(10, 20, 1, device=0),
        call(COPY_CALL, 5, 9, 2),
        copy(10, 50, 2, D2H, device=1),
    ]
    diagnosis = whole(events, options=Options(window="trace", device=1))
    assert [(d.device, d.window_ns) for d in diagnosis.devices] == [(1, 40)]
    assert diagnosis.counts.copies.d2h == 1
    assert whole(events, options=Options(window="trace", device="0")).counts.copies.d2h == 0
    with pytest.raises(HostgapError, match="no such device") as caught:
        whole(events, options=Options(device=7))
    assert caught.value.hint == "devices: 0, 1"
