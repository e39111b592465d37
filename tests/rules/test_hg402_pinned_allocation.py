"""HG402: pinned host memory is allocated or given back in a step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import LAUNCH, Event, call, frame, kernel
from tests.rules.check import findings, repeated, sample


def step(t: int, i: int, name: str = "cudaHostAlloc", kernel_ns: int = 30_000) -> Iterator[Event]:
    """A call of 60 us, and a kernel behind it."""
    yield frame("load.py(7): stage", t, t + 95_000)
    yield call(name, t + 1_000, t + 61_000, i)
    yield call(LAUNCH, t + 62_000, t + 68_000, i + 1)
    yield kernel(t + 68_000, t + 68_000 + kernel_ns, i + 1)


@pytest.mark.parametrize("name", ["cudaHostAlloc", "cudaFreeHost", "cudaHostRegister"])
def test_fires_on_a_call_in_every_step(name: str) -> None:
    (found,) = findings("HG402", repeated(lambda t, i: step(t, i, name), 100_000))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("load.py", "stage")
    assert (found.count_per_step, found.severity) == (1, "error")
    assert found.title.endswith("in a step: 60 us each time")
    assert found.predicted_saving_ns is not None
    assert 4 * 55_000 < found.predicted_saving_ns < 4 * 65_000


def test_costs_nothing_where_the_gpu_is_busy_meanwhile() -> None:
    trace = repeated(lambda t, i: step(t, i, kernel_ns=100_000), 100_000)
    (found,) = findings("HG402", trace)
    assert found.severity == "info"


def test_silent_on_device_memory_and_on_real_steps() -> None:
    assert findings("HG402", repeated(lambda t, i: step(t, i, "cudaMalloc"), 100_000)) == []
    assert findings("HG402", sample("eager_item.json.gz")) == []
