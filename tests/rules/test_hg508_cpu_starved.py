"""HG508: the process gets less CPU than it asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hostgap.analysis.examine import examine
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.rule import Match
from hostgap.profiling.measurement import HostTimes
from hostgap.rules.hg508_cpu_starved import CpuStarved, Options
from tests.analysis.build import LAUNCH, Event, call, kernel
from tests.rules.check import measurement, not_applicable, repeated, sample


def step(t: int, i: int) -> Iterator[Event]:
    yield call(LAUNCH, t + 2_000, t + 8_000, i)
    yield kernel(t + 10_000, t + 60_000, i)


def found(**measured: Any) -> list[Match]:
    """What the rule says of figures of steps of 100 us."""
    quiet: dict[str, Any] = {
        "wall_ns": 100_000.0,
        "cpu_ns": 90_000.0,
        "run_delay_ns": None,
        "throttled_ns": None,
        "involuntary_switches": 0.0,
        "gc_ns": 0.0,
        "gc_collections": 0.0,
        "threads": 4,
        "cores": 8.0,
    }
    beside = measurement(host=HostTimes(**(quiet | measured)))
    context = Context(examine(repeated(step, 100_000)), measurement=beside)
    return list(CpuStarved().find(context, Options()))


def test_fires_on_what_was_measured() -> None:
    (match,) = found(run_delay_ns=5_000.0, throttled_ns=40_000.0, threads=64, cores=4.0)
    said = "5% of the step ready but not run, throttled for 40 us a step, 64 threads on 4 cores"
    assert match.title.endswith(said)


def test_silent_where_the_process_gets_its_cpu() -> None:
    assert found(run_delay_ns=1_000.0, throttled_ns=0.0) == []
    assert found() == []  # neither is known


def test_silent_without_figures() -> None:
    context = Context(examine(repeated(step, 100_000)), measurement=measurement(host=None))
    assert list(CpuStarved().find(context, Options())) == []
    assert "the run directory" in not_applicable("HG508", sample("eager.json.gz"))
