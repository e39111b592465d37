"""HG206: many small copies a step from one place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import COPY_CALL, D2D, Event, call, copy, frame, op
from tests.rules.check import findings, repeated, sample

UP = "Memcpy HtoD (Pinned -> Device)"


def step(t: int, i: int, count: int, name: str = D2D, length: int = 1_000) -> Iterator[Event]:
    """A copy every 10 us, from one function."""
    yield frame("cache.py(3): write", t, t + count * 10_000)
    for k in range(count):
        at = t + k * 10_000
        yield op("aten::copy_", at, at + 9_000)
        yield call(COPY_CALL, at + 4_000, at + 8_000, i + k)
        yield copy(at + 8_500, at + 8_500 + length, i + k, name)


@pytest.mark.parametrize(("name", "where"), [(D2D, "on the device"), (UP, "to the device")])
def test_fires_on_ten_copies_and_keeps_one(name: str, where: str) -> None:
    (found,) = findings("HG206", repeated(lambda t, i: step(t, i, 10, name), 120_000))
    assert found.site is not None
    assert (found.site.function, found.count_per_step) == ("write", 10.0)
    assert found.title == f"10 small copies a step {where}"
    assert found.severity == "error"
    # nine ops of 9 us go; the one copy is as long as ten
    assert found.predicted_saving_ns is not None
    assert 4 * 68_000 <= found.predicted_saving_ns <= 4 * 82_000


def test_silent_on_few_and_on_long_copies() -> None:
    few = repeated(lambda t, i: step(t, i, 7), 120_000)
    assert findings("HG206", few) == []
    assert len(findings("HG206", few, **{"per-step": 7})) == 1
    assert findings("HG206", repeated(lambda t, i: step(t, i, 10, D2D, 8_000), 120_000)) == []


def test_fires_on_the_clones_of_the_decoders_masks() -> None:
    (found,) = findings("HG206", sample("eager.json.gz"))
    # one a layer, 2 KiB each, inside masked_fill; the copy of the token stands elsewhere
    assert found.count_per_step == 16.0
    # only the clone goes, not the whole masked_fill
    assert 0 < (found.predicted_saving_share or 0) < 0.02


@pytest.mark.parametrize(
    "name",
    ["gpu_bound.json.gz", "compile.json.gz", "cuda_graph.json.gz", "cuda_graph_graphs.sqlite"],
)
def test_silent_on_real_steps_without_copies(name: str) -> None:
    assert findings("HG206", sample(name)) == []
