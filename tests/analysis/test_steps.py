"""Where steps begin, whose ops are whose, and the periods they make."""

from __future__ import annotations

import numpy as np
import pytest

from hostgap.analysis.analyze import analyze
from hostgap.analysis.clock import Clock
from hostgap.analysis.examine import Options, examine
from hostgap.analysis.steps import Steps, assign_steps, find_steps
from hostgap.errors import HostgapError
from hostgap.trace.model import Trace
from tests.analysis.build import (
    DEVICE_SYNC,
    GRAPH,
    LAUNCH,
    Event,
    build,
    call,
    kernel,
    note,
    op,
    steps,
)


def found(trace: Trace, marker: str | None = None) -> Steps:
    return assign_steps(trace, Clock(), find_steps(trace, Clock(), marker))


def launch(at: int, id: int, name: str = "k", *, runs: int = 30, after: int = 20) -> list[Event]:
    """A launch call of 10 ns, and its kernel."""
    return [
        call(LAUNCH, at, at + 10, id),
        kernel(at + after, at + after + runs, id, name),
    ]


def replay(at: int, id: int, nodes: str = "abc") -> list[Event]:
    """A graph launch of 10 ns and its nodes, 30 ns each, 10 apart."""
    return [
        call(GRAPH, at, at + 10, id),
        *(
            kernel(at + 20 + 40 * i, at + 50 + 40 * i, id, name, node=i + 1)
            for i, name in enumerate(nodes)
        ),
    ]


def names(trace: Trace, result: Steps, step: int) -> list[str]:
    return [trace.names[code] for code in trace.gpu_ops.name[result.op_step == step]]


# --- periods --------------------------------------------------------------------------------------


def test_a_period_runs_from_the_last_op_to_the_last_op() -> None:
    trace = build(steps(0, 100, 200), *(launch(10 + 100 * i, i + 1) for i in range(3)))
    result = found(trace)
    assert result.boundaries.tolist() == [0, 60, 160, 260]
    assert result.fill
    assert list(result.counted) == [1, 2]


def test_the_host_running_ahead_does_not_make_periods_overlap() -> None:
    """Two launches in the first 40 ns, kernels that run one after the other much later."""
    trace = build(
        steps(0, 20, 40),
        call(LAUNCH, 0, 5, 1),
        call(LAUNCH, 20, 25, 2),
        call(LAUNCH, 40, 45, 3),
        kernel(10, 1_000, 1),
        kernel(1_000, 2_000, 2),
        kernel(2_000, 3_000, 3),
    )
    assert found(trace).boundaries.tolist() == [0, 1_000, 2_000, 3_000]


def test_ops_launched_after_an_annotations_end_belong_to_the_step_before() -> None:
    trace = build(
        steps(0, 100, 200, length=40),
        *(launch(10 + 100 * i, 2 * i + 1, "model") for i in range(3)),
        *(launch(60 + 100 * i, 2 * i + 2, "sample") for i in range(3)),
    )
    result = found(trace)
    assert [names(trace, result, k) for k in range(3)] == [["model", "sample"]] * 3
    assert result.boundaries.tolist() == [0, 110, 210, 310]


def test_the_last_step_is_followed_by_as_much_as_any_other_was() -> None:
    """Up to 60 ns passed between an annotation's end and the next one; then the work is not its."""
    trace = build(
        steps(0, 100, 200, length=40),
        *(launch(10 + 100 * i, i + 1) for i in range(3)),
        launch(295, 8, "sample"),
        launch(310, 9, "something else"),
    )
    result = found(trace)
    assert names(trace, result, 2) == ["k", "sample"]
    assert result.op_step.tolist() == [0, 1, 2, 2, -1]
    assert result.boundaries[-1] == 345


def test_ops_that_run_after_the_next_step_began_stay_with_their_launcher() -> None:
    trace = build(
        steps(0, 100, 200),
        call(LAUNCH, 10, 20, 1),
        kernel(150, 180, 1, "late"),
        launch(110, 2, "own", after=75),
        launch(210, 3, "third"),
    )
    result = found(trace)
    assert names(trace, result, 0) == ["late"]
    assert names(trace, result, 1) == ["own"]
    assert result.boundaries.tolist() == [0, 180, 215, 260]


def test_an_orphan_belongs_where_it_starts() -> None:
    trace = build(steps(0, 100, 200), kernel(5, 8), kernel(150, 160), launch(210, 1))
    result = found(trace)
    assert result.op_step.tolist() == [0, 1, 2]


def test_with_two_steps_there_is_no_fill() -> None:
    trace = build(steps(20, 100), kernel(0, 10), launch(30, 1), launch(110, 2))
    result = found(trace)
    assert not result.fill
    assert list(result.counted) == [0, 1]
    assert result.boundaries.tolist() == [20, 80, 160]


def test_the_fill_waits_for_older_work() -> None:
    """What was launched before the first step delays it, whenever it ran."""
    trace = build(
        call(LAUNCH, 0, 5, 9),
        call(LAUNCH, 6, 8, 8),
        kernel(6, 130, 9, "older"),
        kernel(140, 145, 8, "older, started late"),
        steps(10, 100, 200),
        *(launch(20 + 100 * i, i + 1, after=130) for i in range(3)),
    )
    result = found(trace)
    assert result.op_step.tolist() == [-1, -1, 0, 1, 2]
    assert result.boundaries.tolist() == [145, 180, 280, 380]


def test_work_after_the_last_cycle_does_not_move_the_first() -> None:
    cycles = [replay(1_000 * i, i + 1) for i in range(4)]
    trace = build(*cycles, launch(4_000, 9, "tail"))
    result = found(trace)
    assert result.op_step[-1] == -1
    assert result.boundaries.tolist() == [0, 130, 1_130, 2_130, 3_130]


def test_only_the_chosen_devices_ops_end_periods() -> None:
    trace = build(
        steps(0, 100, 200),
        *(launch(10 + 100 * i, i + 1) for i in range(3)),
        *(call(LAUNCH, 50 + 100 * i, 55 + 100 * i, i + 11) for i in range(3)),
        *(kernel(60 + 100 * i, 95 + 100 * i, i + 11, device=1) for i in range(3)),
    )
    marks = find_steps(trace, Clock())
    assert assign_steps(trace, Clock(), marks, [0]).boundaries.tolist() == [0, 60, 160, 260]
    assert assign_steps(trace, Clock(), marks).boundaries.tolist() == [0, 95, 195, 295]
    assert [d.window_ns for d in analyze(trace, Options(device=1)).devices] == [200]


def test_a_step_without_gpu_work_has_no_length() -> None:
    trace = build(steps(0, 100, 200), launch(10, 1), launch(210, 2))
    assert np.diff(found(trace).boundaries).tolist() == [60, 0, 200]


def test_host_times_are_moved_before_they_are_compared() -> None:
    """Host clock 1000 ns early: the second step begins at 1100 on the GPU's clock."""
    trace = build(
        steps(0, 100, 200), kernel(1_010, 1_020), kernel(1_110, 1_150), kernel(1_210, 9_000)
    )
    clock = Clock(offset_ns=1_000)
    result = assign_steps(trace, clock, find_steps(trace, clock))
    assert result.op_step.tolist() == [0, 1, 2]
    assert result.boundaries[0] == 1_000


# --- sources --------------------------------------------------------------------------------------


def serving(label: str, n: int = 3) -> list[Event]:
    return [
        event
        for i in range(n)
        for event in (note(label, 100 * i, 100 * i + 40), *launch(10 + 100 * i, i + 1))
    ]


@pytest.mark.parametrize(
    "label",
    [
        "ProfilerStep#7",
        "execute_context_2(512)_generation_14(14)",
        "execute_new_2_cached_0",
        "step[DECODE bs=16]",
    ],
)
def test_known_annotations(label: str) -> None:
    result = found(build(*serving(label)))
    assert result.marks.source == "annotation"
    assert result.marks.start.tolist() == [0, 100, 200]
    assert result.marks.label == (label,) * 3
    assert result.marks.thread == 0


@pytest.mark.parametrize("label", ["execute_shell", "step 3", "my ProfilerStep#1", "forward"])
def test_other_annotations_are_no_steps(label: str) -> None:
    assert found(build(*serving(label, n=2))).marks.source == "whole"


def test_profiler_steps_come_before_an_engines() -> None:
    result = found(build(steps(0, 150), *serving("step[DECODE bs=1]")))
    assert result.marks.label == ("ProfilerStep#0", "ProfilerStep#1")


def test_an_op_of_that_name_is_no_annotation() -> None:
    trace = build(op("ProfilerStep#1", 0, 10), op("ProfilerStep#2", 20, 30), launch(0, 1))
    assert found(trace).marks.source == "whole"


def test_a_marker_beats_everything_and_finds_ops() -> None:
    trace = build(steps(0, 150), op("decode_one", 5, 60), op("decode_one", 160, 220), launch(9, 1))
    result = found(trace, "^decode")
    assert result.marks.start.tolist() == [5, 160]
    assert result.marks.source == "annotation"


def test_a_marker_that_matches_nothing_names_what_there_is() -> None:
    with pytest.raises(HostgapError, match="matches nothing") as caught:
        found(build(note("prefill", 0, 10), launch(0, 1)), "decode")
    assert caught.value.hint == "annotations: prefill"


def test_a_marker_that_is_no_regular_expression() -> None:
    with pytest.raises(HostgapError, match="not a regular expression"):
        found(build(launch(0, 1)), "(")


def test_of_nested_marks_the_outermost_count() -> None:
    trace = build(note("step[A]", 0, 50), note("step[B]", 10, 40), note("step[C]", 50, 90))
    assert found(trace).marks.label == ("step[A]", "step[C]")


def test_marks_of_the_busiest_thread_count() -> None:
    other = (1, 2)
    trace = build(steps(0, 100, 200), steps(50, 150, thread=other), launch(10, 1))
    assert found(trace).marks.start.tolist() == [0, 100, 200]


# --- cycles ---------------------------------------------------------------------------------------


def test_repeating_graph_launches() -> None:
    result = found(build(*(replay(1_000 * i, i + 1) for i in range(4))))
    assert result.marks.source == "cycle"
    assert result.marks.start.tolist() == [0, 1_000, 2_000, 3_000]
    assert result.marks.stop is None


def decode(step: int, first_id: int, layers: int = 3) -> list[Event]:
    """An eager step: embed, `layers` times (norm, matmul, add), head. 100 ns each, then a pause."""
    body = ["embed", *["norm", "matmul", "add"] * layers, "head"]
    at = step * 5_000
    events = [launch(at + 100 * i, first_id + i, name) for i, name in enumerate(body)]
    return [event for pair in events for event in pair]


def test_the_layers_cycle_does_not_win() -> None:
    trace = build(*(decode(step, 1 + 20 * step) for step in range(5)))
    result = found(trace)
    assert result.marks.source == "cycle"
    assert result.marks.start.tolist() == [0, 5_000, 10_000, 15_000, 20_000]
    assert names(trace, result, 2)[0] == "embed"
    assert names(trace, result, 2)[-1] == "head"
    assert np.bincount(result.op_step).tolist() == [11] * 5


def test_a_trailing_partial_cycle_is_not_counted() -> None:
    whole = [decode(step, 1 + 20 * step) for step in range(4)]
    partial = decode(4, 1 + 20 * 4)[:8]  # four of eleven launches
    result = found(build(*whole, partial))
    assert result.marks.start.tolist() == [0, 5_000, 10_000, 15_000]
    assert result.marks.stop == 20_000
    assert result.op_step[-4:].tolist() == [-1] * 4
    assert result.call_step[-4:].tolist() == [-1] * 4


def test_a_step_begins_after_the_longest_pause() -> None:
    """The trace starts in the middle of a step: still, a step begins with embed."""
    begun = decode(0, 1)[10:]
    trace = build(begun, *(decode(step, 1 + 20 * step) for step in range(1, 6)))
    result = found(trace)
    assert result.marks.start.tolist() == [5_000 * i for i in range(1, 6)]
    assert names(trace, result, 0)[0] == "embed"


def test_two_cycles_are_no_cycle() -> None:
    assert found(build(*(replay(1_000 * i, i + 1) for i in range(2)))).marks.source == "whole"


def test_what_repeats_in_less_than_half_of_the_launches_is_no_step() -> None:
    cycles = [event for i in range(3) for event in replay(1_000 * i, i + 1)]
    others = [event for i in range(4) for event in launch(4_000 + 100 * i, 20 + i, f"k{i}")]
    assert found(build(cycles, others[:6])).marks.source == "cycle"  # three of six
    assert found(build(cycles, others)).marks.source == "whole"


def test_one_kernel_over_and_over_is_no_step() -> None:
    assert found(build(*(launch(100 * i, i + 1) for i in range(20)))).marks.source == "whole"


def test_whole_begins_with_the_first_launch() -> None:
    trace = build(launch(50, 1), launch(300, 2, "other"))
    result = found(trace)
    assert result.marks.source == "whole"
    assert result.marks.start.tolist() == [50]
    assert result.boundaries.tolist() == [50, 350]


# --- counts per step ------------------------------------------------------------------------------


def synced(step: int, *, sync: bool = True) -> list[Event]:
    at = 1_000 * step
    wait = [call(DEVICE_SYNC, at + 20, at + 60)] if sync else []
    return [*launch(at, step + 1), *wait]


def test_the_profilers_closing_synchronize_is_not_counted() -> None:
    events = [event for step in range(4) for event in synced(step)]
    trace = build(
        steps(0, 1_000, 2_000, 3_000, length=100), events, call(DEVICE_SYNC, 3_500, 3_600)
    )
    diagnosis = analyze(trace)
    assert diagnosis.counts.sync_calls == 3
    assert diagnosis.steps.per_step is not None
    assert diagnosis.steps.per_step.sync_calls == 1
    assert analyze(trace, Options(window="trace")).counts.sync_calls == 5


def test_counts_are_of_the_chosen_steps() -> None:
    events = [event for step in range(4) for event in synced(step, sync=step == 2)]
    trace = build(steps(0, 1_000, 2_000, 3_000), events)
    assert analyze(trace, Options(steps=(2, 3))).counts.sync_calls == 1
    assert analyze(trace, Options(steps=(3, 4))).counts.sync_calls == 0
    assert analyze(trace, Options(steps=(2, 3))).counts.launches == 1


def test_step_ranges() -> None:
    trace = build(steps(0, 100, 200, 300), *(launch(10 + 100 * i, i + 1) for i in range(4)))
    assert examine(trace).chosen == range(1, 4)
    assert examine(trace, Options(steps=(None, None))).chosen == range(4)
    assert examine(trace, Options(steps=(-2, None))).chosen == range(2, 4)
    assert examine(trace, Options(steps=(0, 1))).chosen == range(1)
    with pytest.raises(HostgapError, match="no such steps") as caught:
        examine(trace, Options(steps=(7, 9)))
    assert "4 (0 to 3)" in str(caught.value.hint)
