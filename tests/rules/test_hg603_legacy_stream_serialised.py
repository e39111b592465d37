"""HG603: a second stream's copies never run beside the default stream."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import COPY_CALL, LAUNCH, Event, call, copy, frame, kernel
from tests.rules.check import findings, repeated, sample

UP = "Memcpy HtoD (Pinned -> Device)"
SIDE = 20


def step(
    t: int, i: int, *, serial: bool = True, stream: int = 7, wait_event: bool = False
) -> Iterator[Event]:
    """Four times a kernel of 40 us and a copy of 30 us, asked for at once; the host runs ahead.

    The host takes 100 us a step, the GPU 300.
    """
    gpu_t = t + (i // 1_000) * 200_000
    yield frame("copies.py(3): run", t, t + 95_000)
    for k in range(4):
        at, on_gpu = t + 1_000 + k * 20_000, gpu_t + 70_000 + k * 75_000
        yield call(LAUNCH, at, at + 4_000, i + 10 * k)
        yield kernel(on_gpu, on_gpu + 40_000, i + 10 * k, stream=stream)
        if wait_event:
            yield call("cudaStreamWaitEvent", at + 4_500, at + 4_900, i + 10 * k + 2)
        yield call(COPY_CALL, at + 5_000, at + 9_000, i + 10 * k + 1)
        start = on_gpu + (41_000 if serial else 5_000)
        yield copy(start, start + 30_000, i + 10 * k + 1, UP, stream=SIDE)


def test_fires_where_no_copy_ever_runs_beside_the_default_stream() -> None:
    (found,) = findings("HG603", repeated(step, 100_000))
    assert found.site is not None
    assert found.site.function == "run"
    assert found.count_per_step == 4.0
    assert found.severity == "error"
    # the copies of 30 us go out of the kernels' way
    assert found.predicted_saving_ns == pytest.approx(16 * 30_000, rel=0.2)


def test_silent_where_they_overlap_an_event_orders_them_or_the_stream_is_another() -> None:
    assert findings("HG603", repeated(lambda t, i: step(t, i, serial=False), 100_000)) == []
    assert findings("HG603", repeated(lambda t, i: step(t, i, wait_event=True), 100_000)) == []
    assert findings("HG603", repeated(lambda t, i: step(t, i, stream=13), 100_000)) == []


def test_silent_on_few_copies() -> None:
    assert findings("HG603", repeated(step, 100_000), least=100) == []


@pytest.mark.parametrize("name", ["eager_item.json.gz", "gpu_bound.json.gz", "eager_item.sqlite"])
def test_silent_on_real_steps_of_one_stream(name: str) -> None:
    assert findings("HG603", sample(name)) == []
