"""Decode steps by batch: where the host stops being the limit."""

from __future__ import annotations

import pytest

from hostgap.analysis.analyze import analyze
from hostgap.analysis.step_classes import decode_batch
from hostgap.output.summary import batch_line
from tests.analysis.build import LAUNCH, Event, build, call, kernel, note

STEP_NS = 100_000


@pytest.mark.parametrize(
    ("label", "batch"),
    [
        ("step[DECODE bs=16]", 16),
        ("step[EXTEND bs=16 toks=512]", None),
        ("execute_context_0(0)_generation_14(14)", 14),
        ("execute_context_2(512)_generation_14(14)", None),
        ("decode", None),
    ],
)
def test_the_batch_of_a_label(label: str, batch: int | None) -> None:
    assert decode_batch(label) == batch


def served(work: dict[int, int]) -> list[Event]:
    """Four steps per batch: the host takes `STEP_NS`, the GPU what `work` says."""
    events: list[Event] = []
    t, i = 1_000, 1
    for batch, busy in work.items():
        for _ in range(4):
            events += [
                note(f"step[DECODE bs={batch}]", t, t + 90_000),
                call(LAUNCH, t + 1_000, t + 6_000, i),
                kernel(t + 7_000, t + 7_000 + busy, i, f"k{batch}"),
            ]
            t, i = t + max(STEP_NS, busy + 2_000), i + 1
    return events


def test_the_host_limits_small_batches() -> None:
    diagnosis = analyze(build(served({1: 20_000, 8: 40_000, 64: 600_000})))
    batches = diagnosis.batches
    assert batches is not None
    assert [point.batch for point in batches.points] == [1, 8, 64]
    assert batches.host_bound_below == 64
    shares = [point.idle_share for point in batches.points]
    assert shares == sorted(shares, reverse=True)
    assert batch_line(diagnosis).endswith("Below 64 the host limits the step.")


def test_no_inflection_where_all_are_alike() -> None:
    batches = analyze(build(served({1: 20_000, 8: 40_000}))).batches
    assert batches is not None
    assert batches.host_bound_below is None


def test_one_batch_says_nothing() -> None:
    assert analyze(build(served({4: 20_000}))).batches is None
