"""The replay: unchanged it gives the steps back, and what is taken away never makes them longer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostgap.analysis.analyze import analyze
from hostgap.analysis.edit import Edit
from hostgap.analysis.examine import Analysis, examine
from hostgap.analysis.intervals import Intervals, union
from hostgap.analysis.syncs import blocking_calls
from hostgap.analysis.whatif import ASYNC_NS, Replay
from hostgap.diagnosis.judge import Judging
from hostgap.trace.load import load_trace
from hostgap.trace.model import GpuKind, Trace
from tests.analysis.build import (
    COPY_CALL,
    GRAPH,
    LAUNCH,
    STREAM_SYNC,
    Event,
    build,
    call,
    copy,
    kernel,
    steps,
    whole_graph,
)
from tests.analysis.generate import played, wild

PINNED_UP = "Memcpy HtoD (Pinned -> Device)"
SAMPLES = sorted((Path(__file__).parents[2] / "sample_traces").glob("*.[js]*[ze]"))


def replay_of(trace: Trace) -> Replay:
    analysis = examine(trace)
    return Replay(analysis, next(iter(analysis.devices)))


def rows_of(analysis: Analysis, name: str) -> np.ndarray:
    trace = analysis.trace
    return np.array([r for r, n in enumerate(trace.api_calls.name) if trace.names[n] == name])


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_recorded_steps_come_out_as_they_were(path: Path) -> None:
    replay = replay_of(load_trace(path))
    assert replay.residual_ns == 0
    assert replay.high > replay.low
    assert len(replay.steps) >= 2


@given(st.one_of(wild(devices=2, processes=2), played()))
def test_any_trace_comes_out_as_it_was(events: list[Event]) -> None:
    """Ops that no call is known to have launched, or that overlap, are held where they were."""
    trace = build(events)
    analysis = examine(trace)
    for device in analysis.devices if analysis.clock.reconciled and analysis.chosen else ():
        replay = Replay(analysis, device)
        ops = trace.gpu_ops
        mine = (ops.device == device) & np.isin(analysis.steps.op_step, list(replay.steps))
        last = max([replay.low, *ops.end[mine].tolist()])
        assert replay.length(Edit()) == last - replay.low


@given(st.one_of(wild(devices=2, processes=2), played()), st.data())
def test_taking_away_never_costs(events: list[Event], data: st.DataObject) -> None:
    trace = build(events)
    analysis = examine(trace)
    spans = data.draw(st.lists(st.tuples(st.integers(0, 900), st.integers(1, 200)), max_size=4))
    cut = union(
        np.array([s for s, _ in spans], np.int64), np.array([s + n for s, n in spans], np.int64)
    )
    blocking = np.flatnonzero(blocking_calls(trace))
    drop = np.flatnonzero(np.arange(len(trace.gpu_ops)) % 3 == 0)
    for device in analysis.devices if analysis.clock.reconciled and analysis.chosen else ():
        replay = Replay(analysis, device)
        one, other = Edit(cut=cut), Edit(unblock=blocking, drop=drop)
        edits = (Edit(), one, other, one.plus(other))
        assert min(replay.saving(edit) for edit in edits) >= 0
        for untraced in (False, True):
            whole, *lengths, both = (replay.length(edit, untraced=untraced) for edit in edits)
            rounding = len(trace.api_calls) if untraced else 0  # ns, one per wait at most
            assert max(lengths) <= whole + rounding
            assert both <= min(lengths) + rounding


def reading_loop(host: int = 20_000, work: int = 50_000) -> Trace:
    """Steps of `host` ns before a launch, `work` ns of kernel, and a read that waits for it."""
    period = host + work + 10_000

    def step(t: int, i: int) -> list[Event]:
        return [
            call(LAUNCH, t + host - 5_000, t + host - 1_000, i),
            kernel(t + host, t + host + work, i),
            call(COPY_CALL, t + host, t + host + 2_000, i + 1),
            copy(t + host + work + 1_000, t + host + work + 2_000, i + 1),
            call(STREAM_SYNC, t + host + 2_000, t + host + work + 5_000, i + 2),
        ]

    starts = [1_000 + k * period for k in range(6)]
    return build(steps(*starts), *(step(t, 1 + 10 * k) for k, t in enumerate(starts)))


def test_without_its_wait_the_host_runs_ahead() -> None:
    analysis = examine(reading_loop())
    replay = Replay(analysis, 0)
    n = len(replay.steps)
    saved = replay.saving(Edit(unblock=rows_of(analysis, STREAM_SYNC))) / n
    # 50 us of kernel, 1 of copy and the gaps between them remain of 80
    assert 22_000 <= saved <= 28_000


def test_a_wait_that_starves_nothing_costs_nothing() -> None:
    """The host needs longer for its own part than the GPU for its: it would wait for no one."""
    trace = reading_loop(host=90_000, work=5_000)
    analysis = examine(trace)
    replay = Replay(analysis, 0)
    saved = replay.saving(Edit(unblock=rows_of(analysis, STREAM_SYNC))) / len(replay.steps)
    # only the time inside the wait itself comes off the host
    assert saved <= 8_000 - ASYNC_NS + 1


def test_two_waits_in_a_row_save_nothing_one_by_one() -> None:
    def step(t: int, i: int) -> list[Event]:
        return [
            call(LAUNCH, t + 15_000, t + 19_000, i),
            kernel(t + 20_000, t + 70_000, i),
            call(STREAM_SYNC, t + 20_000, t + 73_000, i + 1),
            call(STREAM_SYNC, t + 73_000, t + 73_000 + ASYNC_NS, i + 2),
        ]

    starts = [1_000 + k * 80_000 for k in range(6)]
    analysis = examine(build(steps(*starts), *(step(t, 1 + 10 * k) for k, t in enumerate(starts))))
    replay = Replay(analysis, 0)
    rows = rows_of(analysis, STREAM_SYNC)
    both = replay.saving(Edit(unblock=rows))
    assert both > 4 * 20_000
    assert replay.saving(Edit(unblock=rows[1::2])) < both / 10


def test_launches_become_one_graph() -> None:
    def step(t: int, i: int) -> list[Event]:
        events: list[Event] = []
        for k in range(20):
            at = t + k * 10_000
            events += [
                call(LAUNCH, at, at + 8_000, i + k),
                kernel(at + 9_000, at + 11_000, i + k),
            ]
        return events

    starts = [1_000 + k * 200_000 for k in range(5)]
    analysis = examine(build(steps(*starts), *(step(t, 1 + 100 * k) for k, t in enumerate(starts))))
    replay = Replay(analysis, 0)
    spans = Intervals(
        np.array(starts[1:], np.int64), np.array([*starts[2:], starts[-1] + 200_000], np.int64)
    )
    left = replay.length(Edit(capture=spans)) / len(replay.steps)
    # 20 kernels of 2 us, 400 ns apart, behind a launch of 18 us
    assert 40_000 <= left <= 70_000


def test_a_graph_replay_keeps_its_inner_gaps() -> None:
    def step(t: int, i: int) -> list[Event]:
        nodes = [
            kernel(t + 10_000 + k * 5_000, t + 12_000 + k * 5_000, i, node=k + 1) for k in range(8)
        ]
        return [call(GRAPH, t, t + 9_000, i), *nodes]

    starts = [1_000 + k * 60_000 for k in range(5)]
    analysis = examine(build(steps(*starts), *(step(t, 1 + 10 * k) for k, t in enumerate(starts))))
    replay = Replay(analysis, 0)
    everything = Edit(cut=Intervals(np.array([0]), np.array([10**6])))
    assert (
        replay.length(everything) / len(replay.steps) >= 37_000
    )  # from the first node to the last


def test_an_op_that_is_gone_takes_no_time() -> None:
    analysis = examine(reading_loop())
    replay = Replay(analysis, 0)
    copies = np.flatnonzero(analysis.trace.gpu_ops.kind == 1)
    base = Edit(unblock=rows_of(analysis, STREAM_SYNC))
    gained = replay.saving(base.plus(Edit(drop=copies))) - replay.saving(base)
    assert gained >= 1_000 * len(replay.steps)


def test_a_shorter_op_is_shorter() -> None:
    analysis = examine(reading_loop())
    replay = Replay(analysis, 0)
    kernels = np.flatnonzero(analysis.trace.gpu_ops.kind == 0).tolist()
    assert replay.saving(Edit(length=dict.fromkeys(kernels, 10_000))) == 40_000 * len(replay.steps)


def test_without_a_copy_that_it_waits_for_a_kernel_still_comes_after_the_one_before_it() -> None:
    """An upload of 200 us beside a kernel of 150: without it the next begins 50 us sooner."""

    def step(t: int, i: int) -> list[Event]:
        return [
            call(LAUNCH, t, t + 2_000, i),
            kernel(t + 4_000, t + 14_000, i),
            call(COPY_CALL, t + 3_000, t + 5_000, i + 1),
            copy(t + 15_000, t + 215_000, i + 1, PINNED_UP, stream=8),
            call(LAUNCH, t + 6_000, t + 8_000, i + 2),
            kernel(t + 15_000, t + 165_000, i + 2),
            call(LAUNCH, t + 9_000, t + 11_000, i + 3),
            kernel(t + 216_000, t + 400_000, i + 3),
            call(STREAM_SYNC, t + 12_000, t + 402_000, i + 4),
        ]

    starts = [1_000 + k * 410_000 for k in range(6)]
    trace = build(steps(*starts), *(step(t, 1 + 10 * k) for k, t in enumerate(starts)))
    replay = replay_of(trace)
    copies = np.flatnonzero(trace.gpu_ops.kind == GpuKind.COPY)
    assert replay.residual_ns == 0
    assert replay.saving(Edit(drop=copies)) == 50_000 * len(replay.steps)
    kernels = 10_000 + 1_000 + 150_000 + 1_000 + 184_000
    assert replay.traced_span_ns == kernels


def test_a_whole_graph_is_work_and_not_beside_it() -> None:
    def step(t: int, i: int) -> list[Event]:
        return [
            call(COPY_CALL, t, t + 2_000, i),
            copy(t + 4_000, t + 6_000, i, PINNED_UP),
            call(GRAPH, t + 3_000, t + 8_000, i + 1),
            whole_graph(t + 9_000, t + 59_000, i + 1, stream=8),
        ]

    starts = [1_000 + k * 80_000 for k in range(4)]
    trace = build(steps(*starts), *(step(t, 1 + 10 * k) for k, t in enumerate(starts)))
    assert replay_of(trace).traced_span_ns == 50_000


def test_the_host_is_as_fast_as_it_may_be() -> None:
    """The untraced replay shortens the host's part and leaves the GPU's alone."""
    analysis = examine(reading_loop(host=23_000))
    replay = Replay(analysis, 0)
    n = len(replay.steps)
    shorter = (replay.length(Edit()) - replay.length(Edit(), untraced=True)) / n
    assert 10_000 <= shorter <= 18_000


@pytest.mark.parametrize(("slow", "fast"), [("eager", "cuda_graph"), ("compile", "compile_graphs")])
def test_what_was_measured_lies_between_the_ends(slow: str, fast: str) -> None:
    """Both steps were timed without a profiler, before and after capture (sample_traces)."""
    folder = SAMPLES[0].parent
    entries = json.loads((folder / "samples.json").read_text(encoding="utf-8"))
    measured = {entry["name"]: entry["unprofiled_step_ms"] for entry in entries}
    diagnosis = analyze(load_trace(folder / f"{slow}.json.gz"), judging=Judging(select=("HG201",)))
    (storm,) = diagnosis.findings
    low, high = (
        (ns or 0) / diagnosis.steps.count / 1e6
        for ns in (storm.predicted_saving_low_ns, storm.predicted_saving_ns)
    )
    assert low < measured[slow] - measured[fast] < high


def test_a_cut_inside_a_wait_does_not_shorten_it() -> None:
    analysis = examine(reading_loop())
    replay = Replay(analysis, 0)
    rows = rows_of(analysis, STREAM_SYNC)[1:]  # the first is of the step before
    inside = union(
        analysis.trace.api_calls.start[rows] + 1_000, analysis.trace.api_calls.end[rows] - 1_000
    )
    assert replay.saving(Edit(cut=inside)) == 0
