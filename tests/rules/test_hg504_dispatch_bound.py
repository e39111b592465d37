"""HG504: the GPU waits for the framework's own work per op."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import LAUNCH, Event, call, kernel, op
from tests.rules.check import findings, not_applicable, repeated, sample


def eager(t: int, i: int, kernel_ns: int = 2_000) -> Iterator[Event]:
    """Twenty ops, each 10 us of dispatch before its launch."""
    for k in range(20):
        at = t + k * 20_000
        yield op("aten::add", at, at + 19_000)
        yield call(LAUNCH, at + 12_000, at + 17_000, i + k)
        yield kernel(at + 18_000, at + 18_000 + kernel_ns, i + k)


def test_fires_on_dispatch_before_every_launch() -> None:
    (found,) = findings("HG504", repeated(eager, 400_000))
    assert found.site is not None
    assert (found.site.op, found.severity) == ("aten::add", "error")
    assert found.count_per_step == 20
    assert found.predicted_saving_share is not None
    assert 0.4 < found.predicted_saving_share < 0.8


def test_fires_on_at_most_five_places_of_a_real_step() -> None:
    found = findings("HG504", sample("eager.json.gz"))
    assert 1 <= len(found) <= 5
    assert found[0].severity == "error"
    assert found[0].site is not None
    assert found[0].site.file == "hostgap/decoder/model.py"


def test_its_threshold_can_be_set() -> None:
    assert findings("HG504", repeated(eager, 400_000), **{"min-idle": 0.95}) == []


def test_silent_where_the_gpu_is_busy() -> None:
    assert findings("HG504", repeated(lambda t, i: eager(t, i, 19_900), 400_000)) == []


@pytest.mark.parametrize("name", ["gpu_bound.json.gz", "compile_graphs.json.gz"])
def test_silent_on_real_steps_in_graphs_and_bound_by_the_gpu(name: str) -> None:
    assert findings("HG504", sample(name)) == []


def test_silent_where_no_op_is_recorded() -> None:
    assert "framework ops" in not_applicable("HG504", sample("cuda_graph.json.gz"))
