"""HG505: the GPU waits for Python between framework ops."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import LAUNCH, Event, call, frame, kernel
from tests.rules.check import findings, repeated, sample


def looping(t: int, i: int, kernel_ns: int = 2_000) -> Iterator[Event]:
    """Twenty launches, each behind 12 us of Python."""
    yield frame("model.py(9): masks", t, t + 399_000)
    for k in range(20):
        at = t + k * 20_000
        yield call(LAUNCH, at + 12_000, at + 17_000, i + k)
        yield kernel(at + 18_000, at + 18_000 + kernel_ns, i + k)


def test_fires_on_python_between_launches() -> None:
    (found,) = findings("HG505", repeated(looping, 400_000))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("model.py", "masks")
    assert found.severity == "error"
    # those within a step: what lies between two of them is HG502's
    assert found.count_per_step == 19
    assert found.predicted_saving_share is not None
    assert 0.4 < found.predicted_saving_share < 0.8


def test_fires_on_a_real_step() -> None:
    found = findings("HG505", sample("compile.json.gz"))
    assert found[0].severity == "error"
    assert found[0].site is not None
    assert found[0].site.function == "compiled_step"
    assert 1 <= len(findings("HG505", sample("eager.json.gz"))) <= 5


def test_silent_where_the_gpu_is_busy() -> None:
    assert findings("HG505", repeated(lambda t, i: looping(t, i, 19_900), 400_000)) == []


@pytest.mark.parametrize(
    "name",
    ["gpu_bound.json.gz", "cuda_graph.json.gz", "compile_graphs.json.gz", "eager_item.sqlite"],
)
def test_silent_on_real_steps_in_graphs_and_bound_by_the_gpu(name: str) -> None:
    assert findings("HG505", sample(name)) == []
