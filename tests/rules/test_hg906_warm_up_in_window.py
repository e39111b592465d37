"""HG906: the first steps of the window are not like the rest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hostgap.trace.model import Trace
from tests.analysis.build import LAUNCH, Event, build, call, kernel, steps
from tests.rules.check import findings, sample


def trace(lengths: Sequence[int], kernels: Sequence[int] = (), load_in: int = -1) -> Trace:
    """Steps of these lengths in us, each with one kernel of 40 us at its end, or of `kernels`."""
    events: list[Event] = []
    starts, t = [], 1_000
    for i, length in enumerate(lengths):
        starts.append(t)
        end = t + length * 1_000
        work = (kernels[i] if kernels else 40) * 1_000
        if i == load_in:
            events.append(call("cuModuleLoadData", t + 1_000, t + 5_000))
        events.append(call(LAUNCH, end - work - 15_000, end - work - 8_000, i + 1))
        events.append(kernel(end - work - 6_000, end - 6_000, i + 1))
        t = end
    return build(steps(*starts), events)


def test_fires_on_slow_first_steps_and_says_which_to_use() -> None:
    (found,) = findings("HG906", trace([900, 500, 300, 100, 100, 100, 100, 100]))
    assert (found.count, found.severity) == (2, "info")
    # of eight steps the first is the fill and not counted anyway
    assert found.title == (
        "The first 2 steps are warm-up, up to 5.0 times as long as later ones: use --steps 3:"
    )


def test_fires_where_only_the_first_loads_modules() -> None:
    (found,) = findings("HG906", trace([100] * 8, load_in=1))
    assert found.count == 1
    assert "and compile, capture or load" in found.title
    assert found.title.endswith("use --steps 2:")


def test_silent_on_even_steps_and_on_modules_loaded_all_along() -> None:
    assert findings("HG906", trace([100] * 8)) == []
    assert findings("HG906", trace([100] * 8, load_in=6)) == []


def test_silent_on_a_first_step_with_more_work() -> None:
    """A prefill among decode steps."""
    assert findings("HG906", trace([100, 500, *[100] * 6], [40, 440, *[40] * 6])) == []


@pytest.mark.parametrize("name", ["eager.json.gz", "gpu_bound.json.gz", "cuda_graph.json.gz"])
def test_silent_on_real_steady_steps(name: str) -> None:
    assert findings("HG906", sample(name)) == []
