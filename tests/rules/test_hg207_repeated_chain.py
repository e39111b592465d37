"""HG207: kernels that always follow one another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import LAUNCH, Event, call, frame, kernel
from tests.rules.check import findings, repeated, sample


def step(t: int, i: int, names: str) -> Iterator[Event]:
    """A kernel every 10 us; each letter is a kernel."""
    yield frame("model.py(3): layers", t, t + len(names) * 10_000)
    for k, name in enumerate(names):
        at = t + k * 10_000
        yield call(LAUNCH, at, at + 4_000, i + k)
        yield kernel(at + 6_000, at + 8_000, i + k, name)


def chains(names: str) -> list[tuple[str, float]]:
    found = findings("HG207", repeated(lambda t, i: step(t, i, names), 200_000))
    assert all(f.severity == "info" and f.predicted_saving_ns is None for f in found)
    return [(f.title, f.count_per_step) for f in found]


def test_fires_on_what_recurs_and_informs() -> None:
    assert chains("abcdXabcdYabcd") == [("4 kernels that always follow one another", 3.0)]
    # the one with more launches to save comes first, and none shares a kernel with another
    assert chains("abcdXpqrYabcdZpqr") == [
        ("4 kernels that always follow one another", 2.0),
        ("3 kernels that always follow one another", 2.0),
    ]


def test_silent_where_a_kernel_is_followed_by_another_or_once_a_step() -> None:
    assert chains("abcXadcYaec") == []
    assert chains("abcdefgh") == []
    assert chains("abXabYab") == []


def test_fires_on_the_decoders_layer() -> None:
    for name in ("eager.json.gz", "eager_item.sqlite"):
        (found,) = findings("HG207", sample(name))
        assert found.count_per_step == 16.0
        assert found.title.startswith("56 kernels")


@pytest.mark.parametrize("name", ["gpu_bound.json.gz", "cuda_graph.json.gz"])
def test_silent_in_graphs_and_on_one_kernel(name: str) -> None:
    assert findings("HG207", sample(name)) == []
