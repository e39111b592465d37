"""Traces of an H200 as the ladder reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hostgap.fixes.diagnosing import Diagnoser, gpu_work
from hostgap.fixes.figures import figures
from hostgap.profiling.bench import Traced
from hostgap.profiling.measurement import GraphTimes
from tests.fixes.simulated import MS, timing
from tests.fixes.test_fix_cli import ENVIRONMENT

SAMPLES = Path(__file__).parents[2] / "sample_traces"


def traced(name: str, step_ms: float, span_ms: float | None, graphs: int = 0) -> Traced:
    span = 0.0 if span_ms is None else span_ms * MS
    return Traced(
        SAMPLES / f"{name}.json.gz",
        timing([step_ms * MS] * 9),
        None if span_ms is None else span,
        [GraphTimes(call_ns=20_000.0, span_ns=span)] * graphs,
    )


def test_an_eager_step() -> None:
    diagnoser = Diagnoser(ENVIRONMENT)
    eager = traced("eager_item", 22.0, None)
    diagnosis = diagnoser.diagnose(eager)
    assert diagnosis.saving_basis == "calibrated"
    seen = figures(eager, diagnosis)
    assert seen.gpu_busy_ns is not None
    assert seen.kernel_utilization == pytest.approx(seen.gpu_busy_ns / (22.0 * MS), rel=0.2)
    assert seen.idle_share is not None
    assert seen.idle_share > 0.85
    assert (seen.launches or 0) > 500
    assert seen.graph_launches == 0
    assert (seen.syncs or 0) >= 1
    kernels = diagnoser.kernels(eager)
    assert sum(kernels.values()) == pytest.approx(seen.launches or 0, rel=0.05)


def test_a_step_in_one_graph_is_busy_for_as_much_of_its_unprofiled_span_as_of_the_traced() -> None:
    diagnoser = Diagnoser(ENVIRONMENT)
    replayed = traced("cuda_graph", 2.64, 2.3, graphs=1)
    diagnosis = diagnoser.diagnose(replayed)
    seen = figures(replayed, diagnosis)
    assert seen.graph_launches == 1
    assert seen.kernel_utilization is not None
    assert 0.6 < seen.kernel_utilization <= 2.3 / 2.64
    assert seen.idle_share is not None
    assert seen.idle_share == pytest.approx(1 - seen.kernel_utilization, abs=0.15)


def test_the_gpu_s_work_of_a_step_that_waits_for_it() -> None:
    work = gpu_work(traced("eager_item", 22.0, None), ENVIRONMENT)
    assert work is not None
    assert 2.0 * MS < work < 4.0 * MS  # its kernels are busy for 2.2, and have gaps between them
