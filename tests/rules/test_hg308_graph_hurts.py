"""HG308: a captured region is slower than its launches would be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hostgap.analysis.examine import examine
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.rule import Match
from hostgap.rules.hg308_graph_hurts import GraphHurts, Options
from tests.analysis.build import GRAPH, Event, call, kernel
from tests.rules.check import not_applicable, repeated, sample


def replays(t: int, i: int) -> Iterator[Event]:
    yield call(GRAPH, t, t + 5_000, i)
    yield kernel(t + 5_000, t + 90_000, i)


def found_with(metadata: dict[str, Any]) -> list[Match]:
    """What the rule finds in a trace whose metadata says what `profile` measured."""
    trace = replace(repeated(replays, 100_000), metadata=metadata)
    return list(GraphHurts().find(Context(examine(trace)), Options()))


def test_fires_on_a_graph_that_was_measured_to_be_slower() -> None:
    region = {"graph_ns": 90_000, "eager_ns": 80_000, "file": "a.py", "line": 7, "function": "f"}
    (match,) = found_with({"hostgap": {"graphs": [region]}})
    assert match.site is not None
    assert (match.site.file, match.site.line, match.count) == ("a.py", 7, 4)
    assert match.title == "A captured region takes 90 us as a graph and 80 us without"


def test_silent_where_the_graph_is_faster_or_nothing_was_measured() -> None:
    assert found_with({"hostgap": {"graphs": [{"graph_ns": 80_000, "eager_ns": 90_000}]}}) == []
    assert found_with({"hostgap": {"graphs": [{"graph_ns": "x"}, 3]}}) == []
    assert found_with({"hostgap": 1}) == []
    assert found_with({}) == []


def test_silent_on_a_trace_alone() -> None:
    assert "measurements beside the trace" in not_applicable("HG308", sample("cuda_graph.json.gz"))
