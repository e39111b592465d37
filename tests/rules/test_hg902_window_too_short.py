"""HG902: too few steps to say what is usual."""

from __future__ import annotations

from collections.abc import Iterator

from tests.analysis.build import LAUNCH, Event, build, call, kernel
from tests.rules.check import findings, repeated, sample


def step(t: int, i: int) -> Iterator[Event]:
    yield call(LAUNCH, t + 1_000, t + 8_000, i)
    yield kernel(t + 10_000, t + 4_900_000, i)


def test_fires_on_two_counted_steps() -> None:
    (found,) = findings("HG902", repeated(step, 10_000_000, 3))
    assert (found.title, found.severity) == ("The window is short: 2 counted steps", "info")


def test_fires_on_a_short_window() -> None:
    (found,) = findings("HG902", sample("compile_graphs.json.gz"))
    assert found.title == "The window is short: 5.01 ms"


def test_fires_without_steps() -> None:
    (found,) = findings("HG902", build(call(LAUNCH, 0, 5, 1), kernel(10, 20_000_000, 1)))
    assert found.title == "The window is short: no steps found"


def test_silent_on_enough_of_both() -> None:
    assert findings("HG902", repeated(step, 10_000_000)) == []
    assert findings("HG902", sample("eager.json.gz")) == []
    assert findings("HG902", repeated(step, 10_000_000, 3), **{"min-steps": 2}) == []
