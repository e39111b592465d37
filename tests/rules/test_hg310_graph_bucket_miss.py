"""HG310: decode steps of some batch sizes run without the graph that others have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hostgap.trace.model import Trace
from tests.analysis.build import GRAPH, LAUNCH, Event, build, call, kernel, note
from tests.rules.check import findings, sample

STEP = 400_000


def serving(steps: Sequence[tuple[str, bool]]) -> Trace:
    """Steps with a label each, of one graph or of 30 launches."""
    return build(*[_step(1_000 + k * STEP, 1 + k * 100, *step) for k, step in enumerate(steps)])


def _step(t: int, i: int, label: str, graph: bool) -> Iterator[Event]:
    yield note(label, t, t + STEP - 1_000)
    if graph:
        yield call(GRAPH, t + 1_000, t + 9_000, i)
        yield kernel(t + 9_000, t + 69_000, i)
        return
    for k in range(30):
        at = t + 1_000 + k * 12_000
        yield call(LAUNCH, at, at + 9_000, i + k)
        yield kernel(at + 9_000, at + 11_000, i + k)


def decode(batch: int) -> str:
    return f"step[DECODE bs={batch}]"


def test_fires_on_a_batch_size_without_graph() -> None:
    labels = [(16, True), (16, True), (17, False), (32, True), (17, False), (16, True)]
    trace = serving([(decode(batch), graph) for batch, graph in labels])
    (found,) = findings("HG310", trace)
    assert found.title == (
        "2 of 5 decode steps run without a graph: batch 17, while 16, 32 have one"
    )
    assert found.count_per_step == 2 / 5
    assert found.severity == "error"
    assert found.predicted_saving_ns is not None
    assert 2 * 250_000 < found.predicted_saving_ns < 2 * 410_000


def test_fires_on_labels_of_vllm() -> None:
    labels = [(8, True), (8, True), (9, False), (8, True)]
    named = [(f"execute_context_0(0)_generation_{b}({b})", graph) for b, graph in labels]
    (found,) = findings("HG310", serving(named))
    assert found.title.endswith("batch 9, while 8 have one")


def test_silent_on_prefill_without_graph() -> None:
    labels = [(decode(16), True), (decode(16), True), ("step[EXTEND bs=1]", False)] * 2
    assert findings("HG310", serving(labels)) == []


def test_silent_where_all_or_none_have_one() -> None:
    assert findings("HG310", serving([(decode(16), True)] * 5)) == []
    assert findings("HG310", serving([(decode(16), False)] * 5)) == []
    assert findings("HG310", sample("eager.json.gz")) == []
    assert findings("HG310", sample("cuda_graph.json.gz")) == []
