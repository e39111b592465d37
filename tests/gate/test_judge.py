"""The gate's judgement on real and made traces: what fails, what is let be, what is refused."""

from __future__ import annotations

import msgspec
import pytest

from hostgap.analysis.analyze import analyze
from hostgap.errors import ConfigError
from hostgap.gate.canary import with_item
from hostgap.gate.subject import Subject
from hostgap.trace.model import Trace
from tests.analysis.build import (
    COPY_CALL,
    D2H,
    GRAPH,
    LAUNCH,
    STREAM_SYNC,
    build,
    call,
    copy,
    frame,
    kernel,
    note,
    op,
    steps,
)
from tests.gate.sides import check_of, entry, judged, runs_of, sample
from tests.rules.check import repeated

ITEM = {"function": "decode_until_eos", "owner": "me", "reason": "the answer ends there"}


def subject_of(trace: Trace) -> Subject:
    return Subject(name="made", diagnosis=analyze(trace), gpu="G", cuda="13.0", trace=trace)


def replay(items: int = 1, line: int = 10, nodes: int = 10) -> Trace:
    """Steps of one graph replay, each with reads of a number at a line of `f`."""

    def step(t: int, i: int) -> list[object]:
        events: list[object] = [call(GRAPH, t + 10, t + 60, i)]
        events += [kernel(t + 100 + 50 * n, t + 150 + 50 * n, i, node=n + 1) for n in range(nodes)]
        at, done = t + 70, t + 100 + 50 * nodes
        for n in range(items):
            name = f"/home/a/repo/model.py({line}): f"
            events += [
                frame(name, at, done + 45),
                op("aten::item", at, done + 40),
                call(COPY_CALL, at + 1, at + 5, i + 1 + n),
                copy(done + 5, done + 10, i + 1 + n, D2H),
                call(STREAM_SYNC, at + 6, done + 30),
            ]
            at, done = done + 50, done + 60
        return events

    return repeated(step, 1_000)  # type: ignore[arg-type]


# --- against a baseline ----------------------------------------------------------------------


def test_a_trace_against_itself_passes() -> None:
    for name in ("eager", "eager_item", "cuda_graph", "compile", "gpu_bound"):
        one = sample(f"{name}.json.gz")
        result = judged(one, [entry(one)])
        assert (result.outcome, result.exit_code) == ("passed", 0), name


def test_an_added_item_fails_with_its_place() -> None:
    clean, item = sample("eager.json.gz"), sample("eager_item.json.gz")
    result = judged(item, [entry(clean)])
    assert result.exit_code == 1
    failed = check_of(result, "sync_calls_per_step", "baseline")
    assert (failed.status, failed.value, failed.base) == ("failed", 1, 0)
    (where,) = failed.culprits
    assert (where.code, where.file, where.line) == ("HG101", "record.py", 67)
    assert where.function == "decode_until_eos"
    assert where.new is True


def test_an_item_after_a_graph_replay_fails_with_its_place() -> None:
    clean, item = subject_of(replay(items=0)), subject_of(replay(items=1))
    result = judged(item, [entry(clean)])
    failed = check_of(result, "sync_calls_per_step", "baseline")
    assert failed.status == "failed"
    assert failed.culprits[0].function == "f"
    assert failed.culprits[0].new is True
    assert check_of(result, "graph_launches_per_step", "baseline").status == "passed"


def test_a_second_item_in_the_same_function_is_new() -> None:
    result = judged(subject_of(replay(items=2)), [entry(subject_of(replay(items=1)))])
    failed = check_of(result, "sync_calls_per_step", "baseline")
    assert (failed.status, failed.value) == ("failed", 2)
    assert failed.culprits[0].new is True


def test_capturing_launches_is_no_regression() -> None:
    """1,228 launches became one graph launch."""
    result = judged(sample("cuda_graph.json.gz"), [entry(sample("eager.json.gz"))])
    assert result.outcome == "passed"
    assert any("better than the baseline" in note for note in result.notes)
    back = judged(sample("eager.json.gz"), [entry(sample("cuda_graph.json.gz"))])
    assert check_of(back, "launches_per_step", "baseline").status == "failed"


def test_a_regression_that_is_allowed() -> None:
    base = msgspec.structs.replace(
        entry(sample("eager.json.gz")), metrics={"launches_per_step": 1_200.0}
    )
    for share, status in (("2%", "failed"), ("3%", "passed")):
        result = judged(
            sample("eager.json.gz"), [base], launches_per_step={"max_regression": share}
        )
        assert check_of(result, "launches_per_step", "baseline").status == status


def test_once_in_all_steps_is_a_warning() -> None:
    """Not every step has it: a count that hangs on which steps were recorded is no hard limit."""
    base = entry(subject_of(replay(items=0)))
    one = subject_of(replay(items=0))
    assert one.diagnosis is not None
    (step,) = one.diagnosis.steps.classes
    per_step = msgspec.structs.replace(step.per_step, allocs=0.25)
    changed = msgspec.structs.replace(step, per_step=per_step)
    summary = msgspec.structs.replace(one.diagnosis.steps, classes=[changed])
    diagnosis = msgspec.structs.replace(one.diagnosis, steps=summary)
    result = judged(Subject(name="x", diagnosis=diagnosis, gpu="G", cuda="13.0"), [base])
    assert check_of(result, "allocs_per_step", "baseline").status == "warning"
    assert result.exit_code == 0


def test_other_step_counts_are_said_and_compared() -> None:
    base = msgspec.structs.replace(entry(sample("eager.json.gz")), steps=40)
    result = judged(sample("eager.json.gz"), [base])
    assert result.outcome == "passed"
    assert "counted over 4 steps, the baseline over 40" in result.notes


def test_kineto_against_nsight_compares_counts() -> None:
    kineto, nsys = sample("eager_item.json.gz"), sample("eager_item.sqlite")
    result = judged(nsys, [entry(kineto)], step_time={"max_regression": "5%"})
    assert check_of(result, "sync_calls_per_step", "baseline").status == "passed"
    assert check_of(result, "launches_per_step", "baseline").value == 1228
    assert check_of(result, "step_time", "base runs").status == "skipped"
    assert any("counts are compared, times are not" in note for note in result.notes)
    assert result.exit_code == 0


def test_whole_graphs_do_not_show_copies() -> None:
    result = judged(sample("cuda_graph_graphs.sqlite"), [entry(sample("cuda_graph.json.gz"))])
    assert check_of(result, "copies_per_step", "baseline").status == "skipped"
    assert check_of(result, "graph_launches_per_step", "baseline").status == "passed"


@pytest.mark.parametrize("key", [{"gpu": "NVIDIA A100"}, {"cuda": "12.8"}, {"step_class": "x"}])
def test_another_kind_of_baseline_is_refused(key: dict[str, str]) -> None:
    one = sample("eager.json.gz")
    other = entry(one, **key)
    with pytest.raises(ConfigError, match="it has") as refused:
        judged(one, [other])
    assert "--allow-mismatch" in (refused.value.hint or "")
    result = judged(one, [other], allow_mismatch=True)
    assert result.outcome == "passed"
    assert any("of another kind" in note for note in result.notes)


def test_what_is_not_known_is_said() -> None:
    one = sample("eager.json.gz")  # a trace does not say which torch made it
    result = judged(one, [entry(one, torch="2.11")])
    assert any("torch's version is not known for this trace" in note for note in result.notes)
    assert result.outcome == "passed"


def test_the_entry_that_says_most_is_taken() -> None:
    one = sample("eager.json.gz")
    loose = msgspec.structs.replace(entry(one, cuda=None), metrics={"launches_per_step": 1.0})
    assert judged(one, [loose, entry(one)]).outcome == "passed"


def test_classes_of_steps_are_not_mixed() -> None:
    """The class that the baseline knows is gated, though another takes more time."""

    def trace(decode_launches: int) -> Subject:
        events: list[object] = []
        for n in range(6):
            t, prefill = 1_000 + 10_000 * n, n % 2
            label = "step[PREFILL]" if prefill else "step[DECODE bs=4]"
            events.append(note(label, t, t + 9_990))
            for k in range(8 if prefill else decode_launches):
                i = 1 + 100 * n + k
                events.append(call(LAUNCH, t + 100 * k, t + 100 * k + 50, i))
                length = 900 if prefill else 90
                events.append(kernel(t + 200 + 1_000 * k, t + 200 + 1_000 * k + length, i))
        return subject_of(build(*events))  # type: ignore[arg-type]

    good = trace(2)
    assert good.diagnosis is not None
    labels = [each.label for each in good.diagnosis.steps.classes]
    if len(labels) < 2:
        pytest.skip("these marks make one class")
    assert judged(good, None, launches_per_step={"max": 2}, step_class="DECODE").exit_code == 0
    assert judged(trace(3), None, launches_per_step={"max": 2}, step_class="DECODE").exit_code == 1
    with pytest.raises(ConfigError, match="no class of steps"):
        judged(good, None, launches_per_step={"max": 2}, step_class="VERIFY")


# --- budgets and the allow list --------------------------------------------------------------


def test_budgets() -> None:
    item = sample("eager_item.json.gz")
    result = judged(
        item,
        sync_calls_per_step={"max": 0},
        launches_per_step={"max": 2_000},
        kernel_utilization={"min": "95%", "level": "warning"},
        idle_share={"max": "99%"},
    )
    assert check_of(result, "sync_calls_per_step").status == "failed"
    assert check_of(result, "launches_per_step").status == "passed"
    low = check_of(result, "kernel_utilization")
    assert low.status == "warning"
    assert "a lower bound" in low.text
    assert low.culprits
    assert low.culprits[0].code == "HG201"
    assert check_of(result, "idle_share").status == "passed"


def test_an_allowed_wait_passes_wherever_its_line_is() -> None:
    allow = [{"function": "f", "file": "model.py", "owner": "me", "reason": "meant"}]
    for line in (10, 99):
        one = subject_of(replay(items=1, line=line))
        result = judged(one, sync_calls_per_step={"max": 0}, allow=allow)
        found = check_of(result, "sync_calls_per_step")
        assert (found.status, found.allowed) == ("passed", 1)
        assert result.stale == []


def test_an_allowed_wait_passes_against_a_baseline_without_it() -> None:
    """With the copy that it waits for."""
    allow = [{"function": "f", "owner": "me", "reason": "meant"}]
    clean = entry(subject_of(replay(items=0)))
    assert judged(subject_of(replay(items=1)), [clean], allow=allow).outcome == "passed"
    assert judged(subject_of(replay(items=2)), [clean], allow=allow).outcome == "failed"


def test_more_than_is_allowed_fails() -> None:
    allow = [{"function": "f", "owner": "me", "reason": "meant"}]
    two = subject_of(replay(items=2))
    result = judged(two, sync_calls_per_step={"max": 0}, allow=allow)
    found = check_of(result, "sync_calls_per_step")
    assert (found.status, found.value, found.allowed) == ("failed", 1, 1)
    allow[0] |= {"per_step": 2}  # type: ignore[dict-item]
    assert judged(two, sync_calls_per_step={"max": 0}, allow=allow).outcome == "passed"


def test_entries_that_match_nothing_are_stale() -> None:
    wrong = [
        {**ITEM, "function": "gone"},
        {**ITEM, "file": "other.py"},
        {"op": "aten::nonzero", "owner": "me", "reason": "was there"},
    ]
    result = judged(sample("eager_item.json.gz"), sync_calls_per_step={"max": 0}, allow=wrong)
    assert len(result.stale) == 3
    assert result.outcome == "failed"
    right = judged(sample("eager_item.json.gz"), sync_calls_per_step={"max": 0}, allow=[ITEM])
    assert (right.outcome, right.stale) == ("passed", [])


def test_ops_match_by_their_chain() -> None:
    """A trace without stacks names only ops."""

    def step(t: int, i: int) -> list[object]:
        return [
            call(LAUNCH, t + 10, t + 20, i),
            kernel(t + 30, t + 100, i),
            op("aten::item", t + 40, t + 200),
            op("aten::_local_scalar_dense", t + 41, t + 199),
            call(COPY_CALL, t + 42, t + 50, i + 1),
            copy(t + 110, t + 115, i + 1),
            call(STREAM_SYNC, t + 51, t + 150),
        ]

    one = subject_of(repeated(step, 1_000))  # type: ignore[arg-type]
    for chain, outcome in (
        ("aten::item", "passed"),
        ("aten::item > aten::_local_scalar_dense", "passed"),
        ("aten::_local_scalar_dense > aten::item", "failed"),
        ("aten::ite", "failed"),
    ):
        allow = [{"op": chain, "function": "f", "owner": "me", "reason": "meant"}]
        result = judged(one, sync_calls_per_step={"max": 0}, allow=allow)
        assert result.outcome == outcome, chain


def test_fingerprints_stay_when_lines_shift() -> None:
    prints = set()
    for line in (10, 250):
        result = judged(subject_of(replay(line=line)), sync_calls_per_step={"max": 0})
        prints |= {c.fingerprint for c in check_of(result, "sync_calls_per_step").culprits}
    assert len(prints) == 1


def test_alike_places_in_one_function_have_fingerprints_of_their_own() -> None:
    """Two reads at two lines of one function, as an Nsight export with stacks has them."""
    one = subject_of(replay(items=1))
    assert one.diagnosis is not None
    (sync,) = one.diagnosis.syncs
    assert sync.site is not None

    def at(*lines: int) -> list[str]:
        syncs = [
            msgspec.structs.replace(
                sync, site=msgspec.structs.replace(sync.site, line=line, precision="call")
            )
            for line in lines
        ]
        assert one.diagnosis is not None
        diagnosis = msgspec.structs.replace(one.diagnosis, syncs=syncs, findings=[])
        subject = Subject(name="x", diagnosis=diagnosis)
        result = judged(subject, sync_calls_per_step={"max": 0})
        return [c.fingerprint for c in check_of(result, "sync_calls_per_step").culprits]

    assert len(set(at(10, 20))) == 2
    assert set(at(10, 20)) == set(at(33, 47))


def test_nothing_to_gate_on() -> None:
    with pytest.raises(ConfigError, match="nothing to gate on"):
        judged(sample("eager.json.gz"))
    with pytest.raises(ConfigError, match="no baseline to compare with"):
        judged(sample("eager.json.gz"), launches_per_step={"max_regression": "5%"})


# --- what supports no verdict ----------------------------------------------------------------


def test_steps_that_are_not_there() -> None:
    trace = build(call(LAUNCH, 0, 10, 1), kernel(20, 50, 1))
    result = judged(subject_of(trace), sync_calls_per_step={"max": 0})
    assert (result.outcome, result.exit_code) == ("unmeasurable", 3)
    assert "--step-marker" in check_of(result, "sync_calls_per_step").text


def test_graphs_that_ran_unrecorded_are_no_idle_time() -> None:
    """The host waits a millisecond for a graph of which two of its kernels were recorded."""

    def step(t: int, i: int) -> list[object]:
        return [
            call(GRAPH, t + 10_000, t + 20_000, i),
            kernel(t + 30_000, t + 60_000, i, node=1),
            kernel(t + 70_000, t + 100_000, i, node=2),
            call(STREAM_SYNC, t + 21_000, t + 900_000),
        ]

    one = subject_of(repeated(step, 1_000_000))  # type: ignore[arg-type]
    for table in ({"kernel_utilization": {"min": "95%"}}, {"sync_calls_per_step": {"max": 5}}):
        result = judged(one, **table)
        assert result.exit_code == 3
        (check,) = result.checks
        assert check.status == "unmeasurable"
        assert check.value is None
        assert "not recorded" in check.text
    with pytest.raises(ConfigError):
        judged(subject_of(replay()), [entry(subject_of(replay()), gpu="A100")])


def test_graphs_without_any_rows() -> None:
    def step(t: int, i: int) -> list[object]:
        events: list[object] = [call(GRAPH, t + 10, t + 60, i)]
        return [*events, call(LAUNCH, t + 70, t + 80, i + 1), kernel(t + 90, t + 95, i + 1)]

    result = judged(subject_of(repeated(step, 1_000)), idle_share={"max": "50%"})  # type: ignore[arg-type]
    assert result.exit_code == 3


def test_calls_that_were_not_recorded_are_not_none() -> None:
    """Only kernels, and marks of steps on the host: no wait was seen, for no call was."""
    trace = build(steps(0, 1_000, 2_000, 3_000), [kernel(t, t + 500) for t in (100, 1_100, 2_100)])
    result = judged(subject_of(trace), sync_calls_per_step={"max": 0}, idle_share={"max": "99%"})
    assert check_of(result, "sync_calls_per_step").status == "unmeasurable"
    assert "not recorded" in check_of(result, "sync_calls_per_step").text
    assert result.exit_code == 3


def test_unmeasurable_beats_failed() -> None:
    trace = build(call(LAUNCH, 0, 10, 1), kernel(20, 50, 1), call(LAUNCH, 900, 910, 2))
    result = judged(
        subject_of(trace), sync_calls_per_step={"max": 0}, kernel_utilization={"min": "99%"}
    )
    assert {check.status for check in result.checks} >= {"unmeasurable"}
    assert result.exit_code == 3


def test_a_baseline_and_a_trace_without_steps() -> None:
    """Whoever loses the annotation of steps must not have a gate that passes for ever."""
    eager = sample("eager.json.gz")
    bare = build([call(LAUNCH, 10, 20, 1), kernel(30, 40, 1)])
    result = judged(subject_of(bare), [entry(eager)])
    assert (result.outcome, result.exit_code) == ("unmeasurable", 3)
    assert "no steps" in result.checks[0].text


def test_a_baseline_and_runs_without_a_trace() -> None:
    result = judged(runs_of(*[1e6] * 5), [entry(sample("eager.json.gz"))])
    assert (result.outcome, result.exit_code) == ("unmeasurable", 3)
    timed = judged(runs_of(*[1e6] * 5), [entry(sample("eager.json.gz"))], step_time={"max": "2ms"})
    assert (timed.outcome, timed.exit_code) == ("passed", 0)
    assert any("has no trace" in note for note in timed.notes)


# --- the canary ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["eager.json.gz", "cuda_graph.json.gz", "compile.json.gz", "cuda_graph_graphs.sqlite"]
)
def test_one_item_a_step_more(name: str) -> None:
    before = sample(name)
    after = with_item(before)
    assert before.diagnosis is not None
    assert after.diagnosis is not None
    old, new = before.diagnosis.steps.per_step, after.diagnosis.steps.per_step
    assert old is not None
    assert new is not None
    assert new.sync_calls == old.sync_calls + 1
    assert new.copies == old.copies + 1
    assert (new.launches, new.graph_launches) == (old.launches, old.graph_launches)


def test_a_canary_needs_a_trace_with_steps() -> None:
    one = sample("eager.json.gz")
    with pytest.raises(ConfigError, match="holds no trace"):
        with_item(Subject(name="result.json", diagnosis=one.diagnosis))
    with pytest.raises(ConfigError, match="no steps"):
        with_item(subject_of(build(call(LAUNCH, 0, 10, 1), kernel(20, 50, 1))))
