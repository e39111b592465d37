"""One rule over one trace, as `hostgap analyze --select CODE` runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hostgap.analysis.analyze import analyze
from hostgap.analysis.examine import Options
from hostgap.diagnosis.judge import Judging
from hostgap.diagnosis.model import Finding
from hostgap.profiling.measurement import SCHEMA, Environment, Estimate, Measurement, Timing
from hostgap.trace.load import load_trace
from hostgap.trace.model import Trace
from tests.analysis.build import Event, build, steps

SAMPLES = Path(__file__).parents[2] / "sample_traces"


def findings(code: str, trace: Trace, window: Any = "steps", **thresholds: Any) -> list[Finding]:
    """What the rule `code` finds. A rule that fails, or cannot look, fails the test."""
    judging = Judging(select=(code,), thresholds={code: thresholds} if thresholds else {})
    diagnosis = analyze(trace, Options(window=window), judging)
    assert diagnosis.problems == []
    assert diagnosis.not_applicable == []
    return diagnosis.findings


def not_applicable(code: str, trace: Trace) -> str:
    """Why the rule `code` cannot look at a trace."""
    diagnosis = analyze(trace, judging=Judging(select=(code,)))
    assert diagnosis.findings == []
    (reason,) = [entry.reason for entry in diagnosis.not_applicable]
    return reason


def repeated(
    step: Callable[[int, int], Iterable[Event]], length: int, count: int = 5, first: int = 1_000
) -> Trace:
    """A trace of `count` steps of `length` ns; `step(t, id)` gives the events of the one that
    begins at t (the first of them at `first`), and may use the 1,000 ids from `id`."""
    starts = [first + i * length for i in range(count)]
    events = [list(step(t, 1 + i * 1_000)) for i, t in enumerate(starts)]
    return build(steps(*starts), *events)


def measurement(step_ns: float = 100_000.0, **figures: Any) -> Measurement:
    """A measurement of a target's unprofiled step, as `hostgap profile` writes it."""
    step = Estimate(median_ns=step_ns, low_ns=step_ns * 0.998, high_ns=step_ns * 1.002)
    known: dict[str, Any] = {
        "schema": SCHEMA,
        "target": "decoder",
        "options": {},
        "status": "complete",
        "problems": [],
        "environment": Environment(
            gpu="NVIDIA H200",
            driver="580",
            torch="2.11",
            cuda="13.0",
            python="3.12",
            hostgap="0",
            cpus=8,
            sm_mhz=None,
            memory_mhz=None,
        ),
        "timing": Timing(step=step, steps=30, blocks_ns=[step_ns]),
        "span_ns": None,
        "graphs": [],
        "host": None,
        "inflation": [],
        "sites": [],
        "passes": [],
    }
    return Measurement(**(known | figures))


def sample(name: str) -> Trace:
    """A bundled trace, by the name of its file."""
    return load_trace(SAMPLES / name)
