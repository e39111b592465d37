"""HG502: the GPU waits while the host prepares the next step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import GRAPH, LAUNCH, STREAM_SYNC, Event, call, frame, kernel, note
from tests.rules.check import findings, repeated, sample


def serving(t: int, i: int, launch_at: int = 405_000) -> Iterator[Event]:
    """Scheduling for 400 us, then a graph of 500 us that is waited for."""
    yield frame("engine.py(3): schedule", t + 1_000, t + 401_000)
    yield call(GRAPH, t + launch_at, t + launch_at + 10_000, i)
    yield kernel(t + 420_000, t + 920_000, i, node=1)
    yield call(STREAM_SYNC, t + 430_000, t + 925_000, i + 1)


def test_fires_on_scheduling_between_steps() -> None:
    found = findings("HG502", repeated(serving, 930_000))[0]
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("engine.py", "schedule")
    assert (found.count_per_step, found.severity) == (1.0, "error")
    assert found.predicted_saving_ns is not None
    assert 4 * 350_000 < found.predicted_saving_ns <= 4 * 410_000
    assert found.title.endswith("400 us of idle a step")


def test_fires_on_an_annotation_without_stacks() -> None:
    def step(t: int, i: int) -> Iterator[Event]:
        for event in serving(t, i):
            is_frame = event.table == "frame"
            yield note("schedule", event.start, event.end) if is_frame else event

    found = findings("HG502", repeated(step, 930_000))[0]
    assert found.site is not None
    assert (found.site.op, found.severity) == ("schedule", "error")


def test_silent_where_the_next_step_is_launched_first() -> None:
    def ahead(t: int, i: int) -> Iterator[Event]:
        yield call(LAUNCH, t + 1_000, t + 8_000, i)
        yield kernel(t + 10_000, t + 500_000, i)
        yield frame("engine.py(3): schedule", t + 10_000, t + 410_000)

    assert findings("HG502", repeated(ahead, 500_000)) == []


def test_silent_where_the_loop_is_short() -> None:
    assert findings("HG502", repeated(serving, 930_000), **{"min-host-us": 500}) == []


@pytest.mark.parametrize(
    "name",
    [
        "eager.json.gz",
        "compile.json.gz",
        "gpu_bound.json.gz",
        "cuda_graph.json.gz",
        "compile_graphs.json.gz",
        "cuda_graph_graphs.sqlite",
    ],
)
def test_silent_where_the_steps_themselves_are_the_matter(name: str) -> None:
    assert findings("HG502", sample(name)) == []
