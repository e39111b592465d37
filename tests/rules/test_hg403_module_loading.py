"""HG403: kernels are loaded onto the GPU inside a step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import LAUNCH, Event, call, frame, kernel, overhead
from tests.rules.check import findings, repeated, sample

LAZY = "Lazy Function Loading"


def step(t: int, i: int, name: str = LAZY) -> Iterator[Event]:
    """A launch that takes 60 us, as its kernel is loaded in it."""
    yield frame("serve.py(7): prefill", t, t + 95_000)
    yield call(LAUNCH, t + 1_000, t + 66_000, i)
    if name == LAZY:
        yield overhead("Runtime Triggered Module Loading", t + 3_000, t + 63_000)
        yield overhead(name, t + 4_000, t + 50_000)
    else:
        yield call(name, t + 3_000, t + 63_000, i + 1)
    yield kernel(t + 66_000, t + 96_000, i)


@pytest.mark.parametrize("name", [LAZY, "cuModuleLoadDataEx", "cuLibraryLoadData"])
def test_fires_on_loading_in_every_step(name: str) -> None:
    (found,) = findings("HG403", repeated(lambda t, i: step(t, i, name), 100_000))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("serve.py", "prefill")
    assert (found.count_per_step, found.severity) == (1, "error")
    assert found.title.endswith("inside a step: 60 us each time")
    assert found.predicted_saving_ns is not None
    # at least three of the four steps: a load is in the way of its own launch, too
    assert 3 * 55_000 < found.predicted_saving_ns < 4 * 65_000


def test_silent_on_lookups_and_on_other_overhead() -> None:
    assert (
        findings("HG403", repeated(lambda t, i: step(t, i, "cuModuleGetFunction"), 100_000)) == []
    )

    def flushed(t: int, i: int) -> Iterator[Event]:
        yield from (e for e in step(t, i, "cudaFuncGetAttributes"))
        yield overhead("Buffer Flush", t + 70_000, t + 80_000)

    assert findings("HG403", repeated(flushed, 100_000)) == []


@pytest.mark.parametrize("name", ["eager.json.gz", "compile.json.gz", "eager_item.sqlite"])
def test_silent_on_real_steps(name: str) -> None:
    assert findings("HG403", sample(name)) == []
