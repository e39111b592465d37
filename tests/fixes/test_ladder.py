"""The ladder on a simulated machine: what it keeps, what it takes back, and how it ends."""

from __future__ import annotations

import msgspec
import pytest

from hostgap.diagnosis.model import Diagnosis
from hostgap.errors import ConfigError, HostgapError, Stopped, TargetError, TraceError
from hostgap.fixes.ladder import ClimbOptions, climb
from hostgap.fixes.report import FixReport
from hostgap.profiling.bench import Traced, Variant
from tests.fixes.simulated import MS, Machine, Sim, fixes_of

START = Variant()
GRAPH = Sim("cuda-graph", ("HG201",), execution=2, captures=True)
COMPILE = Sim("compile+cuda-graph", ("HG202",), execution=3, captures=True, speeds_kernels=True)
PLAIN = Sim("compile", ("HG202",), execution=1, speeds_kernels=True)
READ = Sim("no-read", ("HG101",), execution=0)
GC = Sim("gc-freeze", ("HG501",), execution=0)


def run(machine: Machine, *fixes: Sim, **options: object) -> FixReport:
    chosen = ClimbOptions(**options)  # type: ignore[arg-type]
    return climb(machine, machine.diagnose, START, fixes_of(*fixes), chosen, lambda _: None)


def statuses(report: FixReport) -> list[tuple[str, str]]:
    return [(rung.name, rung.status) for rung in report.rungs]


def launch_bound(variant: Variant) -> tuple[float, float]:
    gpu = 1.0 if "compile+cuda-graph" in variant.fixes else 2.2
    graphed = any("cuda-graph" in name for name in variant.fixes)
    return (0.5 if graphed else 22.0) * MS, gpu * MS


def launch_findings(variant: Variant) -> dict[str, float | None]:
    return {} if variant.fixes else {"HG201": 19.0 * MS, "HG202": 10.0 * MS}


def test_climbs_by_predicted_saving_and_goes_on_where_no_prediction_can_tell() -> None:
    machine = Machine(launch_bound, launch_findings, tokens=4)
    report = run(machine, GRAPH, COMPILE, PLAIN, GC)
    assert statuses(report) == [
        ("start", "start"),
        ("cuda-graph", "kept"),
        ("compile+cuda-graph", "kept"),
    ]
    assert report.status == "complete"
    assert report.best == Variant(fixes=("compile+cuda-graph",))  # in the place of cuda-graph
    assert report.overall is not None
    assert report.overall.ratio == pytest.approx(1.0 / 22.0, rel=0.02)
    graph = report.rungs[1]
    assert graph.predicted_saving_ns == pytest.approx(19 * MS)
    assert graph.measured_saving_ns == pytest.approx(19.8 * MS, rel=0.02)
    assert graph.tokens_per_second == pytest.approx(4 / 0.0022, rel=0.02)
    assert graph.costs == {"capture_ms": 12.0}
    assert graph.figures is not None
    assert graph.figures.kernel_utilization == pytest.approx(1.0, rel=0.02)
    assert report.rungs[0].figures is not None
    assert report.rungs[0].figures.idle_share == pytest.approx(0.9, rel=0.02)
    skipped = {each.name: each.why for each in report.skipped}
    assert "HG501" in skipped["gc-freeze"]
    assert "more thorough" in skipped["compile"]
    assert machine.alive == {START, report.best}


def test_a_gpu_bound_step_keeps_nothing() -> None:
    machine = Machine(lambda _: (1.0 * MS, 9.0 * MS), lambda _: {"HG202": 0.0, "HG201": 0.01 * MS})
    report = run(machine, GRAPH, COMPILE, GC)
    assert {status for _, status in statuses(report)} <= {"start", "rolled-back"}
    assert report.best == START
    assert report.overall is None
    assert machine.alive == {START}


@pytest.mark.parametrize("seed", range(20))
def test_noise_alone_is_never_kept(seed: int) -> None:
    machine = Machine(
        lambda _: (9.0 * MS, 1.0 * MS), lambda _: {"HG201": 5.0 * MS, "HG501": 4.0 * MS}, noise=0.08
    )
    machine.random.seed(seed)
    report = run(machine, GRAPH, GC)
    assert {status for _, status in statuses(report)[1:]} == {"rolled-back"}


def test_a_small_gain_in_much_noise_is_timed_until_it_shows() -> None:
    kept, longest = 0, 0
    for seed in range(20):
        machine = Machine(
            lambda v: ((9.6 if v.fixes else 10.0) * MS, MS),
            lambda _: {"HG501": 5.0 * MS},
            noise=0.02,
        )
        machine.random.seed(seed)
        report = run(machine, GC)
        kept += report.rungs[1].status == "kept"
        times = sum(line == "compare start gc-freeze" for line in machine.log)
        longest = max(longest, times)
    assert kept >= 15
    assert longest == 3


def test_a_slower_step_is_taken_back_with_the_reason() -> None:
    machine = Machine(
        lambda v: ((12.0 if v.fixes else 10.0) * MS, MS), lambda _: {"HG501": 5.0 * MS}
    )
    report = run(machine, GC)
    assert report.rungs[1].status == "rolled-back"
    assert report.rungs[1].why.startswith("20")
    assert (report.rungs[1].measured_saving_ns or 0) < 0


def test_another_output_is_taken_back_however_fast_and_not_tried_again() -> None:
    machine = Machine(
        launch_bound,
        lambda _: {"HG201": 19.0 * MS, "HG202": 10.0 * MS},
        wrong=lambda v: "case 0, step 3: 5 instead of 7" if v.fixes == ("cuda-graph",) else None,
    )
    report = run(machine, GRAPH, COMPILE)
    assert statuses(report)[1:] == [("cuda-graph", "rolled-back"), ("compile+cuda-graph", "kept")]
    assert report.rungs[1].why == "output differs: case 0, step 3: 5 instead of 7"
    assert report.rungs[1].step is None  # not worth timing


def blocked(variant: Variant) -> str | None:
    reads = "no-read" not in variant.fixes
    return "the step reads from the GPU" if reads and "cuda-graph" in variant.fixes else None


def test_a_capture_that_failed_is_tried_again_once_something_changed() -> None:
    def times(v: Variant) -> tuple[float, float]:
        host = 22.0 - (4.0 if "no-read" in v.fixes else 0.0)
        return (0.5 if "cuda-graph" in v.fixes else host) * MS, 2.0 * MS

    machine = Machine(
        times,
        lambda v: {"HG201": 15.0 * MS} | ({} if "no-read" in v.fixes else {"HG101": 4.0 * MS}),
        fails=blocked,
    )
    report = run(machine, GRAPH, READ)
    assert statuses(report)[1:] == [
        ("cuda-graph", "failed"),
        ("no-read", "kept"),
        ("cuda-graph", "kept"),
    ]
    assert report.rungs[1].why == "the step reads from the GPU"


def test_what_costs_nothing_itself_is_undone_for_the_capture_it_stands_in_the_way_of() -> None:
    def times(v: Variant) -> tuple[float, float]:
        return (0.5 if "cuda-graph" in v.fixes else 22.0) * MS, 2.0 * MS

    machine = Machine(
        times,
        lambda v: {} if v.fixes else {"HG201": 15.0 * MS, "HG101": 0.0},
        fails=blocked,
        infos=("HG101",),
    )
    report = run(machine, GRAPH, READ)
    assert statuses(report)[1:] == [("cuda-graph", "failed"), ("no-read + cuda-graph", "kept")]
    assert set(report.best.fixes) == {"no-read", "cuda-graph"}


def test_two_waits_are_undone_together_where_either_alone_saves_nothing() -> None:
    other = Sim("async-output", ("HG102",), execution=0)

    def times(v: Variant) -> tuple[float, float]:
        return (1.0 if len(v.fixes) == 2 else 5.0) * MS, 2.0 * MS

    found: dict[str, float | None] = {"HG101": 0.0, "HG102": 0.0}
    machine = Machine(times, lambda v: {} if len(v.fixes) == 2 else found, infos=tuple(found))
    for forced in (False, True):
        report = run(machine, READ, other, forced=forced)
        alone = [("no-read", "rolled-back"), ("async-output", "rolled-back")] if forced else []
        assert statuses(report)[1:] == [*alone, ("no-read + async-output", "kept")]


def test_several_at_once_are_predicted_too() -> None:
    other = Sim("async-output", ("HG102",), execution=0)
    little = {"HG101": 0.02 * MS, "HG102": 0.03 * MS}  # each within the noise

    def times(v: Variant) -> tuple[float, float]:
        return (4.9 if len(v.fixes) == 2 else 5.0) * MS, 2.0 * MS

    report = run(Machine(times, lambda v: {} if v.fixes else little), READ, other)
    assert report.rungs[1].name == "no-read + async-output"
    assert report.rungs[1].predicted_saving_ns == pytest.approx(0.05 * MS)


def test_a_capture_that_nothing_makes_possible_ends_the_climb() -> None:
    machine = Machine(launch_bound, launch_findings, fails=lambda v: "never" if v.fixes else None)
    report = run(machine, GRAPH, READ)
    assert statuses(report)[1:] == [("cuda-graph", "failed")]
    assert report.status == "complete"


@pytest.mark.parametrize(
    ("doing", "error", "status", "why"),
    [
        ("build", KeyboardInterrupt(), "interrupted", "interrupted while it was tried"),
        # by SIGTERM, as a job that runs out of time
        ("prove", Stopped(143), "interrupted", "interrupted while it was tried"),
        ("compare", HostgapError("died"), "failed", "died"),
        ("trace", KeyboardInterrupt(), "interrupted", "interrupted while it was tried"),
    ],
)
def test_what_was_found_stands_when_interrupted_or_when_the_target_dies(
    doing: str, error: BaseException, status: str, why: str
) -> None:
    machine = Machine(
        launch_bound, lambda v: launch_findings(v) | {"HG203": None, "HG501": 0.01 * MS}
    )
    do = getattr(machine, doing)

    def stop(*variants: Variant) -> object:
        if "compile+cuda-graph" in variants[-1].fixes:
            raise error
        return do(*variants)

    setattr(machine, doing, stop)
    later = Sim("fused-projection", ("HG203",), speeds_kernels=True)
    report = run(machine, GRAPH, COMPILE, later, GC)
    assert report.status == status
    assert report.problem
    assert [(rung.name, rung.status, rung.why) for rung in report.rungs[2:]] == [
        ("compile+cuda-graph", "failed", why),
        ("fused-projection", "candidate", "not reached before the climb ended"),
    ]
    tried = report.rungs[2]
    assert (tried.costs != {}) == (doing != "build")
    assert (tried.proof is not None) == (doing in ("compare", "trace"))
    assert (tried.step is not None) == (doing == "trace")
    assert [(each.name, each.why) for each in report.skipped] == [
        ("gc-freeze", "it would save less than the noise")
    ]
    assert report.rungs[1].status == "kept"
    assert report.best.fixes == ("cuda-graph",)


def test_an_error_after_the_last_fix_blames_none() -> None:
    machine = Machine(launch_bound, launch_findings)
    compare = machine.compare

    def stop(old: Variant, new: Variant) -> object:
        if "compare start cuda-graph" in machine.log:
            raise HostgapError("died")
        return compare(old, new)

    machine.compare = stop  # type: ignore[method-assign, assignment]
    report = run(machine, GRAPH, GC)
    assert (report.status, report.overall) == ("failed", None)
    assert statuses(report) == [("start", "start"), ("cuda-graph", "kept")]


def test_a_target_that_cannot_be_measured_is_an_error() -> None:
    machine = Machine(launch_bound, launch_findings, fails=lambda _: "no memory")
    with pytest.raises(Exception, match="no memory"):
        run(machine, GRAPH)


def test_a_target_that_does_not_repeat_itself_is_an_error() -> None:
    machine = Machine(launch_bound, launch_findings, wrong=lambda _: "step 2: 5 instead of 7")
    with pytest.raises(TargetError, match="does not repeat itself"):
        run(machine, GRAPH)


def test_out_of_time() -> None:
    machine = Machine(launch_bound, launch_findings)
    report = run(machine, GRAPH, max_seconds=0.0)
    assert report.status == "out-of-time"
    assert statuses(report)[1:] == [("cuda-graph", "candidate")]


def test_dry_run_applies_nothing() -> None:
    machine = Machine(launch_bound, launch_findings)
    report = run(machine, COMPILE, GRAPH, GC, dry_run=True)
    assert report.status == "dry-run"
    assert statuses(report)[1:] == [
        ("cuda-graph", "candidate"),
        ("compile+cuda-graph", "candidate"),
    ]
    assert [entry for entry in machine.log if entry.startswith("build")] == ["build start"]


def test_named_fixes_are_tried_in_their_order_whatever_was_found() -> None:
    machine = Machine(launch_bound, lambda _: {})
    report = run(machine, GC, GRAPH, forced=True)
    assert statuses(report)[1:] == [("gc-freeze", "rolled-back"), ("cuda-graph", "kept")]


def test_a_report_survives_json() -> None:
    report = run(Machine(launch_bound, launch_findings), GRAPH, COMPILE)
    assert msgspec.json.decode(msgspec.json.encode(report), type=FixReport) == report


def test_findings_that_overlap_predict_no_more_than_all_of_them_together() -> None:
    from hostgap.diagnosis.model import WhatIf
    from tests.fixes.simulated import STEPS, diagnosis

    both = Sim("both", ("HG201", "HG504"))
    found = diagnosis({"HG201": 5.0 * MS, "HG504": 4.0 * MS})
    prediction = both.applies_to(found)
    assert prediction is not None
    assert prediction.saving_ns == pytest.approx(9 * MS)
    whatif = WhatIf(
        steps=STEPS,
        residual_ns=0,
        combined_saving_ns=6 * MS * STEPS,
        combined_saving_low_ns=0,
        misfit_ns=None,
        host_rate=None,
    )
    prediction = both.applies_to(msgspec.structs.replace(found, whatif=whatif))
    assert prediction is not None
    assert prediction.saving_ns == pytest.approx(6 * MS)
    assert both.applies_to(diagnosis({})) is None
    unknown = both.applies_to(diagnosis({"HG201": None}))
    assert unknown is not None
    assert unknown.saving_ns is None


@pytest.mark.parametrize(
    "error",
    [
        TargetError("out of GPU memory"),
        TraceError("it has no events"),
        ConfigError("no CUDA device"),
    ],
)
def test_a_fix_that_cannot_be_traced_is_kept_all_the_same(error: HostgapError) -> None:
    machine = Machine(launch_bound, launch_findings)
    diagnose = machine.diagnose

    def broken(traced: Traced) -> Diagnosis:
        if machine.last.fixes:
            raise error
        return diagnose(traced)

    machine.diagnose = broken  # type: ignore[method-assign]
    report = run(machine, GRAPH)
    assert report.status == "complete"
    assert statuses(report)[1:] == [("cuda-graph", "kept")]
    assert f"not traced: {error.message}" in report.rungs[1].why
    assert report.best.fixes == ("cuda-graph",)
    assert machine.alive == {START, report.best}


def test_a_capture_that_failed_is_tried_again_after_a_fix_that_cannot_be_traced() -> None:
    def times(v: Variant) -> tuple[float, float]:
        host = 22.0 - (4.0 if "no-read" in v.fixes else 0.0)
        return (0.5 if "cuda-graph" in v.fixes else host) * MS, 2.0 * MS

    machine = Machine(times, lambda _: {"HG201": 15.0 * MS, "HG101": 4.0 * MS}, fails=blocked)
    diagnose = machine.diagnose

    def broken(traced: Traced) -> Diagnosis:
        if machine.last.fixes == ("no-read",):
            raise TraceError("it has no events")
        return diagnose(traced)

    machine.diagnose = broken  # type: ignore[method-assign]
    report = run(machine, GRAPH, READ)
    assert statuses(report)[1:] == [
        ("cuda-graph", "failed"),
        ("no-read", "kept"),
        ("cuda-graph", "kept"),
    ]


def test_a_fix_whose_later_steps_raise_is_taken_back() -> None:
    machine = Machine(launch_bound, launch_findings)
    compare = machine.compare

    def broken(old: Variant, new: Variant) -> object:
        if "compile+cuda-graph" in new.fixes:
            raise TargetError("it raised in step 40")
        return compare(old, new)

    machine.compare = broken  # type: ignore[method-assign, assignment]
    report = run(machine, GRAPH, COMPILE)
    assert report.status == "complete"
    assert ("compile+cuda-graph", "failed") in statuses(report)
    assert report.best.fixes == ("cuda-graph",)


def test_of_several_at_once_the_wrong_one_is_left_out() -> None:
    waits = {name: Sim(name, ("HG101",), execution=0) for name in ("one", "two", "wrong")}

    def times(variant: Variant) -> tuple[float, float]:
        both = {"one", "two"} <= set(variant.fixes)
        return (1.0 * MS if both else 2.0 * MS), 1.0 * MS

    machine = Machine(
        times,
        lambda v: {} if {"one", "two"} <= set(v.fixes) else {"HG101": None},
        wrong=lambda v: "case 0, step 1: 5 instead of 7" if "wrong" in v.fixes else None,
    )
    report = run(machine, *waits.values())
    assert set(report.best.fixes) == {"one", "two"}
