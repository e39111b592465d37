"""HG506: the launching thread was taken off the CPU."""

from __future__ import annotations

from collections.abc import Iterator

from hostgap.trace.model import HostKind
from tests.analysis.build import LAUNCH, MAIN, Event, call, kernel
from tests.rules.check import findings, not_applicable, repeated, sample


def interrupted(t: int, i: int, busy_until: int = 60_000) -> Iterator[Event]:
    """Two launches, and 200 us between them without a core."""
    yield call(LAUNCH, t + 2_000, t + 8_000, i)
    yield kernel(t + 10_000, t + busy_until, i)
    yield Event("host", "off CPU", t + 70_000, t + 270_000, 0, MAIN, HostKind.OFF_CPU)
    yield call(LAUNCH, t + 280_000, t + 288_000, i + 1)
    yield kernel(max(t + 290_000, t + busy_until), t + 390_000, i + 1)


def test_fires_where_the_gpu_waits_for_a_core() -> None:
    (found,) = findings("HG506", repeated(interrupted, 400_000))
    assert (found.count_per_step, found.severity) == (1.0, "error")
    assert found.predicted_saving_ns is not None
    assert 4 * 180_000 < found.predicted_saving_ns <= 4 * 201_000


def test_silent_where_the_gpu_has_work_meanwhile() -> None:
    assert findings("HG506", repeated(lambda t, i: interrupted(t, i, 300_000), 400_000)) == []


def test_silent_without_scheduling_events() -> None:
    assert "--cpuctxsw" in not_applicable("HG506", sample("eager.json.gz"))
    assert "--cpuctxsw" in not_applicable("HG506", sample("eager_item.sqlite"))
