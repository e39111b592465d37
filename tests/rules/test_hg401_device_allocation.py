"""HG401: device memory is taken from or given back to the driver in a step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import LAUNCH, Event, call, frame, kernel
from tests.rules.check import findings, repeated, sample


def step(t: int, i: int, name: str = "cudaMalloc") -> Iterator[Event]:
    """A call of 60 us, and a kernel behind it."""
    yield frame("decode.py(7): grow", t, t + 95_000)
    yield call(name, t + 1_000, t + 61_000, i)
    yield call(LAUNCH, t + 62_000, t + 68_000, i + 1)
    yield kernel(t + 68_000, t + 98_000, i + 1)


@pytest.mark.parametrize(
    ("name", "what"),
    [("cudaMalloc", "allocated"), ("cuMemMap", "allocated"), ("cudaFree", "given back")],
)
def test_fires_on_a_call_in_every_step(name: str, what: str) -> None:
    (found,) = findings("HG401", repeated(lambda t, i: step(t, i, name), 100_000))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("decode.py", "grow")
    assert (found.count_per_step, found.severity) == (1, "error")
    assert found.title == f"Device memory is {what} in a step: 60 us each time"
    assert found.predicted_saving_ns is not None
    assert 4 * 55_000 < found.predicted_saving_ns < 4 * 65_000


@pytest.mark.parametrize("name", ["cudaMallocAsync", "cudaFreeAsync", "cudaMallocHost"])
def test_silent_on_allocations_in_stream_order_and_of_the_host(name: str) -> None:
    assert findings("HG401", repeated(lambda t, i: step(t, i, name), 100_000)) == []


def test_silent_on_a_cache_that_is_emptied() -> None:
    def emptied(t: int, i: int) -> Iterator[Event]:
        for k, name in enumerate(["cudaFree"] * 3 + ["cudaMalloc"] * 2):
            yield call(name, t + 5_000 * k, t + 5_000 * k + 4_000, i + k)
        yield call(LAUNCH, t + 62_000, t + 68_000, i + 10)
        yield kernel(t + 68_000, t + 98_000, i + 10)

    assert findings("HG401", repeated(emptied, 100_000)) == []


@pytest.mark.parametrize("name", ["eager.json.gz", "eager_item.sqlite", "gpu_bound.json.gz"])
def test_silent_on_real_steps(name: str) -> None:
    assert findings("HG401", sample(name)) == []
