"""The analysis as a whole: windows, and what must not change its result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hostgap
from hostgap.analysis import examine as stages
from hostgap.analysis.analyze import analyze
from hostgap.analysis.attribution import Attribution
from hostgap.analysis.examine import Options, examine
from hostgap.analysis.parts import Parts
from hostgap.diagnosis.model import SCHEMA, Diagnosis
from tests.analysis.build import (
    LAUNCH,
    STREAM_SYNC,
    Event,
    build,
    call,
    frame,
    kernel,
    op,
    steps,
)
from tests.analysis.generate import played

SOME = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
NOW = 1_760_000_000_000_000_000


def decode(n: int = 4) -> list[Event]:
    events = [*steps(*range(0, 1_000 * n, 1_000))]
    for i in range(n):
        at = 1_000 * i
        events += [
            op("aten::mm", at + 100, at + 160),
            call(LAUNCH, at + 120, at + 130, i + 1),
            kernel(at + 150, at + 600, i + 1),
            call(STREAM_SYNC, at + 200, at + 610),
        ]
    return events


def test_the_public_function() -> None:
    trace = build(decode())
    diagnosis = hostgap.analyze(trace)
    assert diagnosis == analyze(trace, Options())
    assert diagnosis.schema == SCHEMA
    assert (diagnosis.tool.name, diagnosis.tool.version) == ("hostgap", hostgap.__version__)
    assert (diagnosis.trace.file, diagnosis.trace.window) == ("built.json", "steps")
    assert diagnosis.trace.events == len(decode())
    assert diagnosis.saving_basis == "upper_bound"
    assert [finding.code for finding in diagnosis.findings if finding.severity != "info"] == []


def test_the_window_of_all_counted_steps() -> None:
    device = analyze(build(decode())).devices[0]
    assert device.window_ns == 3_000
    assert device.active_ns == 3 * 450
    assert device.idle_by_cause == {
        "sync": 3 * 10,
        "python": 3 * (390 + 100),
        "dispatch": 3 * 20,
        "launch_call": 3 * 10,
        "launch_latency": 3 * 20,
    }


def test_the_window_of_the_trace() -> None:
    device = analyze(build(decode()), Options(window="trace")).devices[0]
    assert device.window_ns == 3_450
    assert device.idle_ns == 3 * 550


def test_each_device_has_its_own_window_of_the_trace_but_all_share_the_steps() -> None:
    events = [*decode(), call(LAUNCH, 1_140, 1_145, 9), kernel(1_200, 1_300, 9, device=1)]
    trace = build(events)
    assert [d.window_ns for d in analyze(trace, Options(window="trace")).devices] == [3_450, 100]
    assert [d.window_ns for d in analyze(trace).devices] == [3_000, 3_000]


def test_a_figure_that_does_not_add_up_is_never_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Attribution.attribute

    def forgetful(*args: object, **kwargs: object) -> Iterator[Parts]:
        for parts in whole(*args, **kwargs):  # type: ignore[arg-type]
            yield parts.take(parts.start != parts.start.max())

    monkeypatch.setattr(stages.Attribution, "attribute", forgetful)
    with pytest.raises(AssertionError, match="misses the idle time by"):
        examine(build(decode()))


def without_file(diagnosis: Diagnosis) -> dict[str, object]:
    figures = {name: getattr(diagnosis, name) for name in diagnosis.__struct_fields__}
    return {**figures, "trace": diagnosis.trace.integrity.verdict}


@SOME
@given(played(), st.sampled_from((1, -10_000, NOW)))
def test_when_it_was_recorded_does_not_matter(events: list[Event], by: int) -> None:
    later = [replace(e, start=e.start + by, end=e.end + by) for e in events]
    assert without_file(analyze(build(later))) == without_file(analyze(build(events)))


@SOME
@given(played())
def test_the_numbers_of_streams_do_not_matter(events: list[Event]) -> None:
    numbered = [replace(e, stream={7: 21, 9: 20}.get(e.stream, e.stream)) for e in events]
    mine, theirs = analyze(build(events)), analyze(build(numbered))
    assert [d.idle_by_cause for d in mine.devices] == [d.idle_by_cause for d in theirs.devices]
    assert mine.counts == theirs.counts
    assert mine.steps == theirs.steps


@SOME
@given(played())
def test_a_bystander_changes_nothing(events: list[Event]) -> None:
    """Another process that launches nothing, busy all the time."""
    high = max((e.end for e in events), default=1) + 1
    stranger = frame("other.py(1): spin", min([0, *(e.start for e in events)]), high, thread=(9, 9))
    # a frame gives the trace stacks: it must have had some before
    had = frame("user.py(1): f", high, high + 1)
    mine = analyze(build(events, had))
    assert [d.idle_by_cause for d in analyze(build(events, had, stranger)).devices] == [
        d.idle_by_cause for d in mine.devices
    ]
