"""HG303: a compiled function is broken into several graphs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import LAUNCH, Event, call, frame, kernel, op
from tests.rules.check import findings, not_applicable, repeated, sample

GRAPH = "## Call CompiledFxGraph abc ##"
RESUMED = "model.py(31): torch_dynamo_resume_in_forward_at_31"


def entered(t: int, end: int, i: int, number: int, name: str) -> Iterator[Event]:
    """A lookup and a region from t to `end` whose graph launches one kernel, 90 us behind t."""
    yield op("TorchDynamo Cache Lookup", t, t + 20_000)
    yield op(f"Torch-Compiled Region: {number}/0", t + 21_000, end)
    yield frame(name, t + 22_000, end - 1_000)
    yield op(GRAPH, t + 80_000, t + 100_000)
    yield call(LAUNCH, t + 90_000, t + 97_000, i)
    yield kernel(t + 98_000, t + 100_000, i)


def broken(t: int, i: int, breaks: int = 2) -> Iterator[Event]:
    """A function with breaks: each region goes on inside the one before, 120 us later."""
    yield frame("model.py(12): step", t, t + 480_000)
    for k in range(breaks + 1):
        name = RESUMED.replace("31", str(30 + k)) if k else "model.py(20): forward"
        begin = t + 1_000 + 120_000 * k
        yield from entered(begin, t + 470_000 - 5_000 * k, i + k, k, name)


def test_fires_at_the_place_of_each_break() -> None:
    found = findings("HG303", repeated(broken, 500_000))
    places = sorted((f.site.line, f.site.function) for f in found if f.site is not None)
    assert places == [(31, "forward"), (32, "forward")]
    for finding in found:
        assert (finding.count_per_step, finding.severity) == (1, "error")
        assert finding.title == "A compiled function breaks into several graphs in forward"
        # from the lookup to the entry of the graph: 80 us, all of it exposed
        assert finding.predicted_saving_ns is not None
        assert 4 * 70_000 < finding.predicted_saving_ns < 4 * 90_000


def test_silent_on_one_graph_and_on_several_functions_in_a_row() -> None:
    assert findings("HG303", repeated(lambda t, i: broken(t, i, 0), 500_000)) == []

    def layers(t: int, i: int) -> Iterator[Event]:
        for k in range(4):
            yield from entered(t + 110_000 * k, t + 110_000 * k + 105_000, i + k, 0, "m.py(3): l")

    assert findings("HG303", repeated(layers, 500_000)) == []


@pytest.mark.parametrize("name", ["compile.json.gz", "compile_graphs.json.gz", "eager.json.gz"])
def test_silent_on_real_steps_without_breaks(name: str) -> None:
    assert findings("HG303", sample(name)) == []


def test_says_what_it_needs() -> None:
    assert "framework ops" in not_applicable("HG303", sample("cuda_graph.json.gz"))
