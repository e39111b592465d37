"""HG112: the next step is launched only after this one was waited for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import (
    COPY_CALL,
    DEVICE_SYNC,
    LAUNCH,
    STREAM_SYNC,
    Event,
    call,
    copy,
    kernel,
)
from tests.rules.check import findings, not_applicable, repeated, sample
from tests.rules.waits import PINNED_DOWN, PINNED_UP, STEP, copying, synchronizing, work

ITEM = ("aten::item", "aten::_local_scalar_dense")
EVENT_SYNC = "cudaEventSynchronize"


@pytest.mark.parametrize("ops", [ITEM, ()])
def test_fires_on_a_step_that_is_waited_for(ops: tuple[str, ...]) -> None:
    (found,) = findings("HG112", repeated(lambda t, i: copying(t, i, ops, PINNED_DOWN), STEP))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("decode.py", "step")
    # the wait of the last step is followed by no other step
    assert (found.count, len(found.evidence), found.severity) == (3, 3, "error")
    assert found.title.endswith("the GPU is idle for 48 us between them")
    assert found.predicted_saving_ns is not None
    assert 3 * 25_000 < found.predicted_saving_ns < 4 * 50_000


def test_fires_before_time_zero_too() -> None:
    trace = repeated(lambda t, i: copying(t, i, ITEM, PINNED_DOWN), STEP, first=-(10**9))
    (found,) = findings("HG112", trace)
    assert found.count == 3


def test_fires_on_a_plain_synchronize() -> None:
    for name in (DEVICE_SYNC, EVENT_SYNC):
        trace = repeated(lambda t, i, n=name: synchronizing(t, i, n), STEP)  # type: ignore[misc]
        (found,) = findings("HG112", trace)
        assert (found.count, found.severity) == (3, "error")


def test_silent_where_what_was_read_is_uploaded_again() -> None:
    def step(t: int, i: int) -> Iterator[Event]:
        yield from copying(t, i, ITEM, PINNED_DOWN)
        yield call(COPY_CALL, t + 100, t + 900, i + 5)
        yield copy(t + 5_000, t + 6_000, i + 5, PINNED_UP)

    assert findings("HG112", repeated(step, STEP)) == []


def test_silent_where_the_step_goes_on_behind_the_wait() -> None:
    def step(t: int, i: int) -> Iterator[Event]:
        yield from copying(t, i, ITEM, PINNED_DOWN)
        yield call(LAUNCH, t + 67_000, t + 69_000, i + 5)
        yield kernel(t + 70_000, t + 80_000, i + 5)

    assert findings("HG112", repeated(step, STEP)) == []


def test_silent_where_the_gpu_was_done_before() -> None:
    def step(t: int, i: int) -> Iterator[Event]:
        yield from work(t, i)
        yield call(EVENT_SYNC, t + 70_000, t + 71_000, i + 1)

    assert findings("HG112", repeated(step, STEP)) == []


def test_two_reads_in_a_row_are_one_wait() -> None:
    def step(t: int, i: int) -> Iterator[Event]:
        yield from copying(t, i, ITEM, PINNED_DOWN)
        yield call(COPY_CALL, t + 67_000, t + 69_000, i + 5)
        yield copy(t + 69_500, t + 69_800, i + 5, PINNED_DOWN)
        yield call(STREAM_SYNC, t + 69_200, t + 70_500, i + 6)

    trace = repeated(step, STEP)
    (found,) = findings("HG112", trace)
    assert (found.count, found.severity) == (3, "error")
    assert found.predicted_saving_ns is not None
    assert 3 * 25_000 < found.predicted_saving_ns < 4 * 50_000


def test_its_threshold_can_be_set() -> None:
    trace = repeated(lambda t, i: copying(t, i, ITEM, PINNED_DOWN), STEP)
    assert findings("HG112", trace, **{"min-idle": 0.6}) == []


@pytest.mark.parametrize(
    "name", ["eager.json.gz", "gpu_bound.json.gz", "cuda_graph.json.gz", "compile_graphs.json.gz"]
)
def test_silent_on_real_steps(name: str) -> None:
    assert findings("HG112", sample(name)) == []


def test_needs_steps() -> None:
    trace = repeated(lambda t, i: copying(t, i, ITEM, PINNED_DOWN), STEP, 1)
    assert "steps" in not_applicable("HG112", trace)
