"""HG302: a step is many small CUDA graphs, and the GPU waits between them."""

from __future__ import annotations

from collections.abc import Iterator

from tests.analysis.build import GRAPH, LAUNCH, STREAM_SYNC, Event, call, frame, kernel
from tests.rules.check import findings, repeated, sample


def pieces(t: int, i: int, graph_ns: int = 10_000, count: int = 10) -> Iterator[Event]:
    """Graphs of 10 us launched every 40 us, with one eager launch between every other two."""
    yield frame("model.py(5): forward", t, t + count * 40_000)
    for k in range(count):
        at = t + k * 40_000
        yield call(GRAPH, at, at + 8_000, i + 2 * k)
        begin = t + 6_000 + k * max(40_000, graph_ns)
        yield kernel(begin, begin + graph_ns, i + 2 * k)
        if k % 2 and graph_ns < 40_000:
            yield call(LAUNCH, at + 20_000, at + 26_000, i + 2 * k + 1)
            yield kernel(at + 26_000, at + 28_000, i + 2 * k + 1)


def test_fires_where_the_gpu_waits_between_graphs() -> None:
    (found,) = findings("HG302", repeated(pieces, 400_000))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("model.py", "forward")
    assert (found.count_per_step, found.severity) == (10, "error")
    # 9 times from the end of a graph, 8 us behind its launch, to the next launch, less 4 kernels
    assert found.title == "10 graph launches a step, and the GPU idles 208 us a step between them"
    # 9 gaps of 32 us of host time are gone but for the launches
    assert found.predicted_saving_ns is not None
    assert 4 * 150_000 < found.predicted_saving_ns < 4 * 290_000


def test_silent_where_the_launches_hide() -> None:
    assert findings("HG302", repeated(lambda t, i: pieces(t, i, 50_000), 500_000)) == []


def test_silent_where_the_host_decides_between_graphs() -> None:
    def decided(t: int, i: int) -> Iterator[Event]:
        for k in range(4):
            at = t + k * 40_000
            yield call(GRAPH, at, at + 8_000, i + k)
            yield kernel(at + 6_000, at + 16_000, i + k)
            yield call(STREAM_SYNC, at + 9_000, at + 17_000, i + 10 + k)

    assert findings("HG302", repeated(decided, 160_000)) == []


def test_silent_on_one_or_two_graphs_a_step() -> None:
    assert findings("HG302", repeated(lambda t, i: pieces(t, i, count=2), 400_000)) == []
    assert findings("HG302", sample("cuda_graph.json.gz")) == []
    assert findings("HG302", sample("eager.json.gz")) == []
