"""HG308: a captured region is slower than its launches would be."""

from __future__ import annotations

from collections.abc import Iterator

from hostgap.analysis.examine import examine
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.rule import Match
from hostgap.profiling.measurement import Region
from hostgap.rules.hg308_graph_hurts import GraphHurts, Options
from tests.analysis.build import GRAPH, Event, call, kernel
from tests.rules.check import measurement, not_applicable, repeated, sample


def replays(t: int, i: int) -> Iterator[Event]:
    yield call(GRAPH, t, t + 5_000, i)
    yield kernel(t + 5_000, t + 90_000, i)


def found_with(*regions: Region) -> list[Match]:
    """What the rule finds beside a trace where these regions were timed."""
    beside = measurement(regions=list(regions))
    context = Context(examine(repeated(replays, 100_000)), measurement=beside)
    return list(GraphHurts().find(context, Options()))


def region(graph_ns: float, eager_ns: float, line: int | None = 7) -> Region:
    return Region(file="a.py", line=line, function="f", graph_ns=graph_ns, eager_ns=eager_ns)


def test_fires_on_a_graph_that_was_measured_to_be_slower() -> None:
    (match,) = found_with(region(90_000, 80_000))
    assert match.site is not None
    assert (match.site.file, match.site.line, match.count) == ("a.py", 7, 4)
    assert match.title == "A captured region takes 90 us as a graph and 80 us without"
    (match,) = found_with(region(90_000, 80_000, line=None))
    assert match.site is not None
    assert match.site.precision == "none"


def test_silent_where_the_graph_is_faster_or_nothing_was_measured() -> None:
    assert found_with(region(80_000, 90_000), region(80_500, 80_000)) == []
    assert found_with() == []


def test_silent_on_a_trace_alone() -> None:
    assert "the run directory" in not_applicable("HG308", sample("cuda_graph.json.gz"))
