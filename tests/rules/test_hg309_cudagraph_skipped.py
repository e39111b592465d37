"""HG309: compiled with CUDA graphs asked for, and run without one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import GRAPH, LAUNCH, Event, call, frame, kernel
from tests.rules.check import findings, not_applicable, repeated, sample

MANAGER = "torch/_inductor/cudagraph_trees.py(2109): run"


def compiled(t: int, i: int, launch: str = LAUNCH, count: int = 20) -> Iterator[Event]:
    """A compiled function under the graph manager that launches short kernels."""
    yield frame("serve.py(5): decode", t, t + 390_000)
    yield frame(MANAGER, t + 1_000, t + 380_000)
    yield frame(MANAGER.replace("run", "_run"), t + 2_000, t + 370_000)
    for k in range(count):
        at = t + 10_000 + k * 15_000
        yield call(launch, at, at + 9_000, i + k)
        yield kernel(at + 9_500, at + 11_500, i + k)


def test_fires_where_the_manager_launches_kernels() -> None:
    (found,) = findings("HG309", repeated(compiled, 400_000))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("serve.py", "decode")
    assert (found.count_per_step, found.severity) == (1, "error")
    assert found.title == "Compiled with CUDA graphs, and run without one: 20 launches each time"
    # 294 us of launches become one of 6 us and 20 nodes of 0.6 us
    assert found.predicted_saving_ns is not None
    assert 4 * 220_000 < found.predicted_saving_ns < 4 * 280_000


def test_silent_where_it_replays() -> None:
    assert findings("HG309", repeated(lambda t, i: compiled(t, i, GRAPH, 1), 400_000)) == []


@pytest.mark.parametrize("name", ["compile.json.gz", "compile_graphs.json.gz", "eager.json.gz"])
def test_silent_on_real_steps(name: str) -> None:
    assert findings("HG309", sample(name)) == []


def test_says_what_it_needs() -> None:
    assert "stacks" in not_applicable("HG309", sample("eager_item.sqlite"))
