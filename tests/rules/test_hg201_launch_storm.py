"""HG201: more launches than the host can keep ahead of."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import LAUNCH, Event, call, kernel, op
from tests.rules.check import findings, repeated, sample


def storm(t: int, i: int, kernel_ns: int = 2_000) -> Iterator[Event]:
    """Forty launches, 10 us apart."""
    for k in range(40):
        at = t + k * 10_000
        yield op("aten::add", at, at + 9_500)
        yield call(LAUNCH, at + 4_000, at + 9_000, i + k)
        yield kernel(at + 9_500, at + 9_500 + kernel_ns, i + k)


def test_fires_where_kernels_are_shorter_than_launches() -> None:
    (found,) = findings("HG201", repeated(storm, 400_000))
    assert found.count_per_step == 40
    assert found.severity == "error"
    assert found.title == "40 launches a step, one every 10.0 us, of kernels that take 2.0 us"


@pytest.mark.parametrize("name", ["eager.json.gz", "eager_item.sqlite", "compile.json.gz"])
def test_fires_on_real_eager_steps(name: str) -> None:
    (found,) = findings("HG201", sample(name))
    assert found.severity == "error"


def test_what_is_compiled_is_not_to_be_compiled() -> None:
    (compiled,) = findings("HG201", sample("compile.json.gz"))
    assert "compiled already" in compiled.advice
    (eager,) = findings("HG201", sample("eager.json.gz"))
    assert "torch.compile it" in eager.advice


def test_its_threshold_can_be_set() -> None:
    assert findings("HG201", repeated(storm, 400_000), **{"min-idle": 0.95}) == []


def test_silent_where_the_gpu_is_busy() -> None:
    assert findings("HG201", repeated(lambda t, i: storm(t, i, 9_900), 400_000)) == []


@pytest.mark.parametrize(
    "name", ["gpu_bound.json.gz", "cuda_graph.json.gz", "compile_graphs.json.gz"]
)
def test_silent_on_real_steps_in_graphs_and_bound_by_the_gpu(name: str) -> None:
    assert findings("HG201", sample(name)) == []
