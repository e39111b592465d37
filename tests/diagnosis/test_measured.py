"""A trace beside what was measured without a profiler: savings, the step itself, exact lines."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import msgspec
import pytest

from hostgap.analysis.analyze import analyze
from hostgap.analysis.calibration import Calibration, calibration_of, step_alone
from hostgap.analysis.examine import Options
from hostgap.diagnosis.judge import Judging
from hostgap.diagnosis.model import Diagnosis, Finding
from hostgap.errors import ConfigError, TraceError
from hostgap.output.markdown import render_markdown
from hostgap.output.summary import caveat, headline, saving, unprofiled_line
from hostgap.profiling.measurement import (
    Estimate,
    GraphTimes,
    HostTimes,
    Inflation,
    Measurement,
    Site,
    Timing,
)
from hostgap.trace.model import Trace
from tests.analysis.build import DEVICE_SYNC, LAUNCH, Event, build, call, frame, kernel
from tests.analysis.simulate import Read, Replayed, Work, traced, true_step_ns
from tests.analysis.simulate import calibration_of as measured
from tests.rules.check import SAMPLES, measurement, repeated, sample

STEP = [("", Work(150_000)), ("", Replayed(605_000, 2_599_000)), ("fault", Read())]


def diagnosed(calibration: Calibration | None, **options: str) -> Diagnosis:
    judging = Judging(select=("HG105",), calibration=calibration)
    return analyze(traced(STEP), Options(**options), judging)  # type: ignore[arg-type]


@pytest.mark.parametrize("window", ["steps", "trace"])
def test_savings_are_of_the_unprofiled_step(window: str) -> None:
    diagnosis = diagnosed(measured(STEP), window=window)
    whole = true_step_ns(STEP)
    true = whole - true_step_ns(STEP, ("fault",))
    steps = diagnosis.steps.total - (diagnosis.steps.fill_ns is not None) * (window == "steps")
    (finding,) = diagnosis.findings
    assert diagnosis.saving_basis == "calibrated"
    assert finding.severity == "error"
    assert finding.predicted_saving_ns == pytest.approx(true * steps, rel=0.03)
    assert finding.predicted_saving_share == pytest.approx(true / whole, rel=0.03)
    low = finding.predicted_saving_low_ns
    assert low is not None
    assert 0.9 * true * steps < low < finding.predicted_saving_ns
    assert diagnosis.whatif is not None
    assert abs(diagnosis.whatif.misfit_ns or 0) < 100


def test_the_unprofiled_step() -> None:
    diagnosis = diagnosed(measured(STEP))
    whole, real = true_step_ns(STEP), diagnosis.unprofiled
    assert real is not None
    assert real.step_ns == pytest.approx(whole, rel=1e-6)
    assert real.low_ns < real.step_ns < real.high_ns
    assert real.exposed_idle_ns == pytest.approx(whole - 2_599_000, rel=0.02)
    assert real.inflation == pytest.approx(diagnosis.devices[0].window_ns / 11 / whole)
    assert real.kernel_utilization == pytest.approx(2_599_000 / whole, rel=0.02)
    # the trace's own figures are as they were
    alone = diagnosed(None)
    assert (diagnosis.devices, diagnosis.counts) == (alone.devices, alone.counts)
    assert alone.unprofiled is None
    assert alone.saving_basis == "upper_bound"


def test_the_measured_span_comes_first() -> None:
    beside = measurement(step_ns=true_step_ns(STEP), span_ns=2_000_000.0)
    diagnosis = analyze(traced(STEP), judging=Judging().of_run(beside))
    assert diagnosis.unprofiled is not None
    assert diagnosis.unprofiled.exposed_idle_ns == round(true_step_ns(STEP) - 2_000_000)


def test_what_people_read() -> None:
    diagnosis = diagnosed(measured(STEP))
    assert headline(diagnosis).startswith(
        "GPU waits for its host 23 % of the unprofiled step: 757 us of 3.36 ms; "
    )
    assert "in the trace it idles 2." in headline(diagnosis)
    assert "up to" not in headline(diagnosis)
    assert unprofiled_line(diagnosis).startswith("Without the profiler a step takes 3.36 ms (3.35 ")
    (finding,) = diagnosis.findings
    shown = saving(diagnosis, finding.predicted_saving_low_ns, finding.predicted_saving_ns)
    assert " us a step (at least " in shown
    assert caveat(diagnosis).startswith("Savings are of the unprofiled step.")
    assert "time a step in the trace" in render_markdown(diagnosis)


def test_a_misfit_is_said() -> None:
    far = 3 * true_step_ns(STEP)
    assert "shorter than that step" in caveat(diagnosed(step_alone(far)))


def test_an_unprofiled_step_needs_steps() -> None:
    trace = build(call(LAUNCH, 0, 10, 1), kernel(20, 50, by=1))
    with pytest.raises(ConfigError, match="a trace without steps"):
        analyze(trace, judging=Judging(calibration=step_alone(1_000)))


@pytest.mark.parametrize(("slow", "fast"), [("eager", "cuda_graph"), ("compile", "compile_graphs")])
def test_what_was_measured_is_predicted(slow: str, fast: str) -> None:
    """Both steps were timed on an H200 without a profiler, before and after capture."""
    entries = json.loads((SAMPLES / "samples.json").read_text(encoding="utf-8"))
    step = {entry["name"]: entry["unprofiled_step_ms"] * 1e6 for entry in entries}
    judging = Judging(select=("HG201",), calibration=step_alone(step[slow]))
    diagnosis = analyze(sample(f"{slow}.json.gz"), judging=judging)
    (storm,) = diagnosis.findings
    saved = (storm.predicted_saving_ns or 0) / diagnosis.steps.count
    assert saved == pytest.approx(step[slow] - step[fast], abs=0.02 * step[slow])


# --- from a measurement --------------------------------------------------------------------------


def test_graphs_of_a_rank_are_not_as_long_in_the_loop_as_when_all_are_lined_up() -> None:
    one = measurement(graphs=[GraphTimes(call_ns=5.0, span_ns=9.0)])
    ranked = msgspec.structs.replace(one, options={**one.options, "ranks": 2})
    assert calibration_of(one).graph_span_ns == (9.0,)
    assert calibration_of(ranked).graph_span_ns == ()
    assert calibration_of(ranked).graph_call_ns == (5.0,)


def test_calibration_of_a_measurement() -> None:
    row = Inflation(
        what="eager launch",
        nodes=None,
        unprofiled_ns=8_700.0,
        cuda_ns=9_800.0,
        cpu_cuda_ns=11_600.0,
    )
    beside = measurement(graphs=[GraphTimes(call_ns=5.0, span_ns=9.0)], inflation=[row])
    made = calibration_of(beside)
    assert (made.graph_call_ns, made.graph_span_ns, made.launch_ratio) == ((5.0,), (9.0,), 0.75)
    assert (made.step_ns, made.low_ns, made.high_ns) == pytest.approx((100_000, 99_800, 100_200))
    unknown = calibration_of(measurement(graphs=[GraphTimes(call_ns=0.0, span_ns=9.0)]))
    assert unknown == Calibration(made.step_ns, made.low_ns, made.high_ns)


@pytest.mark.parametrize("ends", [(0.0, 1.0, 2.0), (3.0, 2.0, 4.0), (1.0, 2.0, float("inf"))])
def test_a_step_that_takes_no_time(ends: tuple[float, float, float]) -> None:
    step = Estimate(median_ns=ends[1], low_ns=ends[0], high_ns=ends[2])
    bad = msgspec.structs.replace(measurement(), timing=Timing(step=step, steps=1, blocks_ns=[]))
    with pytest.raises(TraceError, match="no time"):
        calibration_of(bad)


# --- exact lines ---------------------------------------------------------------------------------


def waiting_step(t: int, i: int) -> Iterator[Event]:
    yield frame("app/decode.py(10): step", t, t + 90_000)
    yield call(LAUNCH, t + 2_000, t + 8_000, i)
    yield kernel(t + 10_000, t + 60_000, i)
    yield call(DEVICE_SYNC, t + 9_000, t + 62_000, i + 1)


def bare_step(t: int, i: int) -> Iterator[Event]:
    return (event for event in waiting_step(t, i) if event.table != "frame")


def found(trace: Trace, *sites: Site) -> Finding:
    judging = Judging(select=("HG106",)).of_run(measurement(step_ns=90_000.0, sites=list(sites)))
    (finding,) = analyze(trace, judging=judging).findings
    return finding


def seen(
    line: int, what: str = "device", file: str = "/src/app/decode.py", often: float = 1
) -> Site:
    return Site(what=what, file=file, line=line, function="step", per_step=often)


def test_the_line_that_the_site_pass_saw() -> None:
    trace = repeated(waiting_step, 100_000)
    site = found(trace, seen(14), seen(20, "stream"), seen(30, file="/src/other.py")).site
    assert site is not None
    assert (site.file, site.line, site.precision) == ("app/decode.py", 14, "call")
    # by how often, where the function waits at several lines
    site = found(trace, seen(14), seen(16, often=5)).site
    assert site is not None
    assert site.line == 14
    site = found(trace, seen(14), seen(16)).site
    assert site is not None
    assert (site.line, site.precision, site.candidates) == (10, "function", (14, 16))


def test_a_line_for_a_trace_without_stacks() -> None:
    trace = repeated(bare_step, 100_000)
    site = found(trace, seen(14), seen(16, often=5)).site
    assert site is not None
    assert (site.file, site.line, site.function) == ("/src/app/decode.py", 14, "step")
    for sites in ((), (seen(14), seen(16)), (seen(14, "event"),)):
        site = found(trace, *sites).site
        assert site is None or site.file is None


def test_measurement_is_a_struct_with_regions() -> None:
    again = msgspec.json.decode(msgspec.json.encode(measurement()), type=Measurement)
    assert again.regions == []


@pytest.mark.parametrize("gc_ns", [-1.0, math.nan, math.inf, 1e300])
def test_garbage_collections_that_cannot_be_are_as_good_as_unknown(gc_ns: float) -> None:
    host = HostTimes(
        wall_ns=1e5,
        cpu_ns=1e5,
        run_delay_ns=None,
        throttled_ns=None,
        involuntary_switches=0.0,
        gc_ns=2e4,
        gc_collections=1.0,
        threads=1,
        cores=2.0,
    )
    assert calibration_of(measurement(host=host)).gc_ns == 2e4
    wrong = msgspec.structs.replace(host, gc_ns=gc_ns)
    assert calibration_of(measurement(host=wrong)).gc_ns is None
