"""HG108: a call that is no synchronize drains the GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import BLOCKING_COPY, D2D, STREAM_SYNC, Event, call, copy
from tests.rules.check import findings, repeated, sample
from tests.rules.waits import STEP, synchronizing, work


def calling(t: int, i: int, name: str, end: int = 62_000) -> Iterator[Event]:
    """Work that is done 60 us into the step, and a call behind it."""
    yield from work(t, i)
    yield call(name, t + 12_000, t + end, i + 1)


@pytest.mark.parametrize("name", ["cudaFree", "cuMemFree", "cudaFreeHost", "cudaMemset"])
def test_fires_on_a_call_in_which_the_gpu_runs_dry(name: str) -> None:
    (found,) = findings("HG108", repeated(lambda t, i: calling(t, i, name), STEP))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("decode.py", "step")
    assert found.count_per_step == 1.0
    assert found.title == f"{name}: the GPU ran dry in it"
    assert found.predicted_saving_ns is not None
    assert 4 * 25_000 < found.predicted_saving_ns < 4 * 55_000
    # the replay takes only frees to wait: of a memset it promises less
    assert found.severity == ("info" if name == "cudaMemset" else "error")


def test_fires_on_a_synchronize_inside_an_op() -> None:
    trace = repeated(lambda t, i: synchronizing(t, i, STREAM_SYNC, "aten::linalg_eigh"), STEP)
    (found,) = findings("HG108", trace)
    assert found.title == "cudaStreamSynchronize inside aten::linalg_eigh"
    assert (found.count_per_step, found.blocked_ns) == (1.0, 4 * 50_000)
    assert found.severity == "error"


def test_a_blocking_copy_within_the_device_counts_where_it_drains() -> None:
    def step(t: int, i: int, end: int) -> Iterator[Event]:
        yield from work(t, i)
        yield call(BLOCKING_COPY, t + 12_000, t + end, i + 1)
        yield copy(t + 60_500, t + 61_000, i + 1, D2D)

    (found,) = findings("HG108", repeated(lambda t, i: step(t, i, 62_000), STEP))
    assert found.count_per_step == 1.0
    assert findings("HG108", repeated(lambda t, i: step(t, i, 20_000), STEP)) == []


def test_a_copy_that_a_synchronize_is_said_to_launch_needs_no_op_around_it() -> None:
    """As found by fuzzing: the correlation of one is that of the other."""

    def step(t: int, i: int) -> Iterator[Event]:
        yield from work(t, i)
        yield call(STREAM_SYNC, t + 14_500, t + 62_000, i + 1)
        yield copy(t + 60_500, t + 61_000, i + 1, D2D)

    (found,) = findings("HG108", repeated(step, STEP))
    assert found.title == "A call that is no synchronize drains the GPU"


@pytest.mark.parametrize("name", ["cudaFreeAsync", "cudaMemsetAsync", "cudaMalloc"])
def test_silent_on_calls_that_drain_nothing_by_themselves(name: str) -> None:
    assert findings("HG108", repeated(lambda t, i: calling(t, i, name), STEP)) == []


def test_silent_where_the_gpu_goes_on_or_was_done() -> None:
    assert findings("HG108", repeated(lambda t, i: calling(t, i, "cudaFree", 30_000), STEP)) == []
    # a long call in which the GPU happens to run dry early waited for something else
    long = repeated(lambda t, i: calling(t, i, "cudaFree", 112_000), 2 * STEP)
    assert findings("HG108", long) == []


@pytest.mark.parametrize("name", ["eager_item.json.gz", "eager_item.sqlite", "gpu_bound.json.gz"])
def test_silent_on_real_steps(name: str) -> None:
    assert findings("HG108", sample(name)) == []
