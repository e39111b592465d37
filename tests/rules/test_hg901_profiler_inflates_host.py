"""HG901: the profiler lengthens what the trace says of the host."""

from __future__ import annotations

from tests.analysis.build import build, kernel
from tests.rules.check import findings, not_applicable, sample


def test_fires_on_a_graph_whose_nodes_are_traced() -> None:
    (found,) = findings("HG901", sample("cuda_graph.json.gz"))
    assert found.title.startswith("A graph launch of 1,245 nodes takes 1,059 us here: on an H200")
    assert found.title.endswith("762 us traced, 220 without, 3.5 times")
    assert (found.count_per_step, found.severity) == (1.0, "info")
    assert found.predicted_saving_ns is None


def test_fires_on_eager_launches_and_reads() -> None:
    waits, launches = sorted(
        findings("HG901", sample("eager_item.json.gz")), key=lambda one: one.count
    )
    assert launches.title.startswith("1,228 launches a step: on an H200 each takes 11.1 us")
    assert launches.title.endswith("more with stacks")
    assert waits.title.startswith("1 wait a step: on an H200 a read of an idle device")
    exported = findings("HG901", sample("eager_item.sqlite"))
    assert any("each takes 9.8 us" in one.title for one in exported)


def test_silent_where_graphs_are_traced_as_a_whole() -> None:
    assert findings("HG901", sample("cuda_graph_graphs.sqlite")) == []


def test_silent_without_calls() -> None:
    assert "CUDA calls" in not_applicable("HG901", build(kernel(0, 10), kernel(20, 30)))
