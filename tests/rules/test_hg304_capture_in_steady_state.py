"""HG304: a CUDA graph is captured inside a step."""

from __future__ import annotations

from collections.abc import Iterator

from tests.analysis.build import GRAPH, LAUNCH, Event, call, frame, kernel
from tests.rules.check import findings, repeated, sample


def captured(t: int, i: int, update: bool = False) -> Iterator[Event]:
    """A capture of ten launches, and a replay of what was captured."""
    yield frame("serve.py(8): decode", t, t + 400_000)
    if update:
        yield call("cudaGraphExecUpdate", t + 260_000, t + 300_000, i + 3)
    else:
        yield call("cudaStreamBeginCapture", t + 10_000, t + 12_000, i)
        for k in range(10):
            at = t + 20_000 + 20_000 * k
            yield call(LAUNCH, at, at + 5_000, i + 10 + k)
        yield call("cudaStreamEndCapture", t + 240_000, t + 250_000, i + 2)
        yield call("cudaGraphInstantiate", t + 260_000, t + 300_000, i + 3)
    yield call(GRAPH, t + 310_000, t + 320_000, i + 4)
    yield kernel(t + 315_000, t + 345_000, i + 4)


def test_fires_on_a_capture_in_every_step() -> None:
    (found,) = findings("HG304", repeated(captured, 400_000))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("serve.py", "decode")
    assert (found.count_per_step, found.severity) == (1, "error")
    assert found.title == "CUDA graphs are captured inside a step: 4, 280 us each"
    # 240 us of capture and 40 of instantiation
    assert found.predicted_saving_ns is not None
    assert 4 * 270_000 < found.predicted_saving_ns < 4 * 290_000


def test_silent_where_graphs_are_only_updated_or_replayed() -> None:
    assert findings("HG304", repeated(lambda t, i: captured(t, i, update=True), 400_000)) == []
    assert findings("HG304", sample("cuda_graph.json.gz")) == []
    assert findings("HG304", sample("compile_graphs.json.gz")) == []
