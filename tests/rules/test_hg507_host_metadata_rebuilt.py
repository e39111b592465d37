"""HG507: many tiny CPU tensor ops in every step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import LAUNCH, Event, call, frame, kernel, op
from tests.rules.check import findings, repeated, sample


def offsets(
    t: int, i: int, name: str = "aten::add", each: int = 5_000, count: int = 30
) -> Iterator[Event]:
    """Thirty ops on CPU tensors, and one kernel."""
    yield frame("batch.py(4): offsets", t, t + 395_000)
    for k in range(count):
        at = t + 1_000 + k * 10_000
        yield op(name, at, at + each)
        yield op("aten::empty", at + 1_000, at + 2_000)
    yield op("aten::mul", t + 310_000, t + 330_000)
    yield call(LAUNCH, t + 315_000, t + 325_000, i)
    yield kernel(t + 330_000, t + 380_000, i)


def test_fires_on_a_storm_of_cpu_ops() -> None:
    (found,) = findings("HG507", repeated(offsets, 400_000))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("batch.py", "offsets")
    assert (found.count_per_step, found.severity) == (30.0, "error")
    assert found.title.endswith("30, mostly aten::add")
    # the ops' own time; the Python around them stays
    assert found.predicted_saving_ns is not None
    assert 4 * 130_000 < found.predicted_saving_ns <= 4 * 151_000


def test_silent_on_views_long_ops_and_a_few() -> None:
    for step in (
        lambda t, i: offsets(t, i, "aten::transpose"),
        lambda t, i: offsets(t, i, count=10),
    ):
        assert findings("HG507", repeated(step, 400_000)) == []
    assert findings("HG507", repeated(offsets, 400_000), **{"max-op-us": 2}) == []


def test_silent_on_ops_that_launch() -> None:
    def step(t: int, i: int) -> Iterator[Event]:
        for k in range(30):
            at = t + k * 10_000
            yield op("aten::add", at, at + 9_000)
            yield call(LAUNCH, at + 2_000, at + 8_000, i + k)
            yield kernel(at + 9_000, at + 9_900, i + k)

    assert findings("HG507", repeated(step, 400_000)) == []


@pytest.mark.parametrize("name", ["eager.json.gz", "eager_item.json.gz", "compile.json.gz"])
def test_silent_on_real_eager_steps(name: str) -> None:
    assert findings("HG507", sample(name)) == []
