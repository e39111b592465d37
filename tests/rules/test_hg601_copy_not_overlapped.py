"""HG601: a copy within the step while no kernel runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.analysis.build import COPY_CALL, LAUNCH, STREAM_SYNC, Event, call, copy, frame, kernel
from tests.rules.check import findings, repeated, sample

UP, DOWN = "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)"
PAGEABLE = "Memcpy HtoD (Pageable -> Device)"


def step(t: int, i: int, name: str = UP, stream: int = 7, length: int = 50_000) -> Iterator[Event]:
    """A kernel, a copy that the next kernel follows, a kernel; the host runs ahead."""
    yield frame("offload.py(3): forward", t, t + 30_000)
    yield call(LAUNCH, t + 1_000, t + 5_000, i)
    yield kernel(t + 6_000, t + 56_000, i)
    yield call(COPY_CALL, t + 6_000, t + 10_000, i + 1)
    start = t + 57_000 if stream == 7 else t + 6_000
    yield copy(start, start + length, i + 1, name, stream=stream)
    yield call(LAUNCH, t + 11_000, t + 15_000, i + 2)
    behind = t + 58_000 + (length if stream == 7 else 0)
    yield kernel(behind, behind + 50_000, i + 2)


@pytest.mark.parametrize(
    ("name", "title"),
    [
        (UP, "Uploads of 50.0 us a step while no kernel runs, likely needed only later"),
        (DOWN, "Downloads of 50.0 us a step while no kernel runs"),
    ],
)
def test_fires_on_a_copy_between_kernels(name: str, title: str) -> None:
    (found,) = findings("HG601", repeated(lambda t, i: step(t, i, name), 160_000))
    assert found.site is not None
    assert (found.site.function, found.count_per_step) == ("forward", 1.0)
    assert found.title == title


def test_its_saving_is_the_copy_where_the_host_runs_ahead() -> None:
    def ahead(t: int, i: int) -> Iterator[Event]:
        """The host takes 40 us a step, the GPU 160."""
        later = (i // 1_000) * 120_000
        for e in step(t, i):
            by = later if e.table == "gpu" else 0
            yield replace(e, start=e.start + by, end=e.end + by)

    (found,) = findings("HG601", repeated(ahead, 40_000))
    assert found.severity == "error"
    assert found.predicted_saving_ns == pytest.approx(4 * 51_000, rel=0.1)


def test_silent_on_a_copy_beside_kernels_a_short_one_and_one_that_is_waited_for() -> None:
    assert findings("HG601", repeated(lambda t, i: step(t, i, UP, 20), 160_000)) == []
    assert findings("HG601", repeated(lambda t, i: step(t, i, UP, 7, 19_000), 160_000)) == []
    # pageable: the call itself waits, which is HG104's
    assert findings("HG601", repeated(lambda t, i: step(t, i, PAGEABLE), 160_000)) == []

    def synced(t: int, i: int) -> Iterator[Event]:
        """A download and, right behind it, the synchronize that waits for it."""
        events = list(step(t, i, DOWN))
        yield from (e for e in events if e.id != i + 2)
        yield call(STREAM_SYNC, t + 10_500, t + 108_000, i + 3)
        yield call(LAUNCH, t + 110_000, t + 114_000, i + 2)
        yield kernel(t + 115_000, t + 150_000, i + 2)

    assert findings("HG601", repeated(synced, 160_000)) == []


@pytest.mark.parametrize(
    "name", ["eager.json.gz", "eager_item.sqlite", "gpu_bound.json.gz", "cuda_graph.json.gz"]
)
def test_silent_on_real_steps_without_copies_to_hide(name: str) -> None:
    assert findings("HG601", sample(name)) == []
