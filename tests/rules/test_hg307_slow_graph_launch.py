"""HG307: the GPU waits while the host is inside cudaGraphLaunch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import GRAPH, LAUNCH, STREAM_SYNC, Event, call, frame, kernel
from tests.rules.check import findings, repeated, sample


def replay(t: int, i: int, nodes: int = 1, wait: bool = True) -> Iterator[Event]:
    """A graph launch of 200 us whose first node starts 195 us after the call did; the GPU runs dry
    right behind the call's start."""
    yield frame("serve.py(9): decode", t, t + 390_000)
    yield call(LAUNCH, t + 2_000, t + 6_000, i + 2)
    yield kernel(t + 7_000, t + 10_500, i + 2)
    yield call(GRAPH, t + 10_000, t + 210_000, i)
    each = 170_000 // nodes
    for node in range(nodes):
        yield kernel(t + 205_000 + node * each, t + 205_000 + (node + 1) * each, i, node=node + 1)
    if wait:
        yield call(STREAM_SYNC, t + 220_000, t + 385_000, i + 1)


def test_fires_where_nearly_the_whole_call_is_exposed() -> None:
    (found,) = findings("HG307", repeated(replay, 400_000))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("serve.py", "decode")
    assert found.count_per_step == 1
    assert found.title == (
        "The GPU waits 194 us while the host launches a CUDA graph (a call of 200 us in the trace)"
    )


def test_silent_where_the_profiler_may_have_made_it_so_long() -> None:
    assert findings("HG307", repeated(lambda t, i: replay(t, i, 120), 400_000)) == []


@pytest.mark.parametrize(
    "name", ["cuda_graph.json.gz", "compile_graphs.json.gz", "cuda_graph_graphs.sqlite"]
)
def test_silent_on_real_replays(name: str) -> None:
    assert findings("HG307", sample(name)) == []
