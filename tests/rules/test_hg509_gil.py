"""HG509: the launching thread waits for the interpreter lock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import LAUNCH, Event, call, frame, kernel, op
from tests.rules.check import findings, repeated, sample

OTHER = (1, 2)


def contended(t: int, i: int, other: str = "text.py(9): tokenize") -> Iterator[Event]:
    """An op whose call returns 300 us late, while another thread works."""
    yield frame("serve.py(3): step", t, t + 490_000)
    yield frame("<built-in method add of Tensor object at 0x1>", t + 1_000, t + 320_000)
    yield op("aten::add", t + 2_000, t + 20_000)
    yield call(LAUNCH, t + 5_000, t + 15_000, i)
    yield kernel(t + 18_000, t + 60_000, i)
    yield op("aten::mul", t + 330_000, t + 350_000)
    yield call(LAUNCH, t + 335_000, t + 345_000, i + 1)
    yield kernel(t + 350_000, t + 400_000, i + 1)
    yield frame("text.py(1): run", t, t + 490_000, thread=OTHER)
    for k in range(4):
        yield frame(other, t + 10_000 + k * 100_000, t + 105_000 + k * 100_000, thread=OTHER)


def test_fires_where_another_thread_runs_python_meanwhile() -> None:
    (found,) = findings("HG509", repeated(contended, 500_000))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("serve.py", "step")
    assert (found.count_per_step, found.severity) == (1.0, "error")
    assert found.predicted_saving_ns is not None
    assert 4 * 220_000 < found.predicted_saving_ns <= 4 * 301_000


@pytest.mark.parametrize("other", ["<built-in function sleep>", "queue.py(154): get"])
def test_silent_where_the_other_thread_waits(other: str) -> None:
    assert findings("HG509", repeated(lambda t, i: contended(t, i, other), 500_000)) == []


def test_silent_where_the_other_thread_does_not_move() -> None:
    """A frame that merely stays open may be in a call that holds no lock."""

    def step(t: int, i: int) -> Iterator[Event]:
        return (e for e in contended(t, i) if "tokenize" not in e.name)

    assert findings("HG509", repeated(step, 500_000)) == []


def test_silent_with_one_thread() -> None:
    def alone(t: int, i: int) -> Iterator[Event]:
        return (e for e in contended(t, i) if e.thread != OTHER)

    assert findings("HG509", repeated(alone, 500_000)) == []
    assert findings("HG509", sample("eager.json.gz")) == []
