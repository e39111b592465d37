"""HG111: the launching thread asks again and again whether the GPU is done."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import Event, call, frame, op
from tests.rules.check import findings, repeated, sample
from tests.rules.waits import STEP, work

QUERY = "cudaEventQuery"


def polling(
    t: int, i: int, times: int = 55, name: str = QUERY, thread: tuple[int, int] = (1, 1)
) -> Iterator[Event]:
    """Work of 20 us, and then a query each us."""
    yield from work(t, i, 20_000)
    for k in range(times):
        at = t + 12_000 + k * 1_000
        yield call(name, at, at + 600, i + 1 + k, thread=thread)


@pytest.mark.parametrize("name", [QUERY, "cudaStreamQuery", "hipEventQuery"])
def test_fires_on_a_loop_of_queries(name: str) -> None:
    (found,) = findings("HG111", repeated(lambda t, i: polling(t, i, name=name), STEP))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("decode.py", "step")
    assert (found.count_per_step, found.severity) == (1.0, "error")
    assert "55 times in a row" in found.title
    assert found.predicted_saving_ns is not None
    assert 4 * 40_000 < found.predicted_saving_ns <= 4 * 54_600


def test_fires_on_a_loop_that_sleeps() -> None:
    def step(t: int, i: int, between: str) -> Iterator[Event]:
        yield frame("decode.py(7): step", t, t + 1_900_000)
        yield from (event for event in work(t, i) if event.table != "frame")
        for k in range(8):
            at = t + 12_000 + k * 200_000
            yield call(QUERY, at, at + 600, i + 1 + k)
            yield frame(between, at + 1_000, at + 199_000)

    sleeping = "<built-in function sleep>"
    (found,) = findings("HG111", repeated(lambda t, i: step(t, i, sleeping), 2_000_000))
    assert (found.count_per_step, found.severity) == (1.0, "error")
    busy = repeated(lambda t, i: step(t, i, "serve.py(3): schedule"), 2_000_000)
    assert findings("HG111", busy) == []


def test_silent_on_a_few_and_on_a_watchdog() -> None:
    assert findings("HG111", repeated(lambda t, i: polling(t, i, 5), STEP)) == []
    assert findings("HG111", repeated(lambda t, i: polling(t, i, 20), STEP)) == []
    other = repeated(lambda t, i: polling(t, i, thread=(1, 2)), STEP)
    assert findings("HG111", other) == []


def test_silent_on_what_an_op_asks() -> None:
    def step(t: int, i: int) -> Iterator[Event]:
        yield from polling(t, i)
        yield op("aten::pin_memory", t + 11_000, t + 70_000)

    assert findings("HG111", repeated(step, STEP)) == []


def test_its_thresholds_can_be_set() -> None:
    trace = repeated(polling, STEP)
    for name, value in (("queries", 60), ("run-us", 60), ("pause-us", 0.1)):
        assert findings("HG111", trace, **{name: value}) == []


def test_silent_on_real_steps() -> None:
    for name in ("eager.json.gz", "gpu_bound.json.gz", "eager_item.sqlite"):
        assert findings("HG111", sample(name)) == []
