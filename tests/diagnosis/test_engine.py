"""The engine: what a rule may do wrong, how findings are priced and ranked, what is left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hostgap.analysis.analyze import analyze
from hostgap.analysis.edit import Edit
from hostgap.analysis.examine import examine
from hostgap.analysis.intervals import Intervals
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.engine import run_rules
from hostgap.diagnosis.judge import Judging
from hostgap.diagnosis.registry import load_rules
from hostgap.diagnosis.rule import Match, Need, Options, Rule, WaitRule
from hostgap.diagnosis.waits import Wait
from hostgap.errors import ConfigError
from hostgap.trace.model import Trace
from tests.analysis.build import (
    COPY_CALL,
    LAUNCH,
    STREAM_SYNC,
    Event,
    build,
    call,
    copy,
    frame,
    kernel,
    op,
    steps,
)
from tests.rules.check import repeated, sample

PINNED = "Memcpy DtoH (Device -> Pinned)"
PAGEABLE = "Memcpy DtoH (Device -> Pageable)"


def step_with_reads(t: int, i: int) -> Iterator[Event]:
    """A kernel, an `.item()` that waits for it, and a download right behind."""
    yield call(LAUNCH, t + 20_000, t + 24_000, i)
    yield kernel(t + 25_000, t + 75_000, i)
    yield op("aten::item", t + 25_000, t + 80_000)
    yield op("aten::_local_scalar_dense", t + 25_500, t + 79_500)
    yield call(COPY_CALL, t + 26_000, t + 27_000, i + 1)
    yield copy(t + 76_000, t + 77_000, i + 1, PINNED)
    yield call(STREAM_SYNC, t + 27_500, t + 79_000, i + 2)
    yield op("aten::_to_copy", t + 81_000, t + 90_000)
    yield call(COPY_CALL, t + 82_000, t + 86_000, i + 3)
    yield copy(t + 84_000, t + 85_000, i + 3, PAGEABLE)
    yield call(STREAM_SYNC, t + 86_100, t + 88_000, i + 4)


def two_reads() -> Trace:
    return repeated(step_with_reads, 100_000)


def test_savings_of_two_waits_do_not_add_up() -> None:
    diagnosis = analyze(two_reads(), judging=Judging(select=("HG101", "HG102")))
    by_code = {finding.code: finding for finding in diagnosis.findings}
    assert set(by_code) == {"HG101", "HG102"}
    savings = [finding.predicted_saving_ns or 0 for finding in diagnosis.findings]
    assert diagnosis.whatif is not None
    together = diagnosis.whatif.combined_saving_ns
    # either wait alone drains the GPU: without the one, the other still does
    assert max(savings) < together
    assert together > sum(savings)
    assert diagnosis.whatif.residual_ns == 0


def test_the_costliest_come_first_and_the_harmless_last() -> None:
    diagnosis = analyze(sample("eager_item.json.gz"))
    severities = [finding.severity for finding in diagnosis.findings]
    assert severities == sorted(severities, key=lambda severity: severity == "info")
    savings = [f.predicted_saving_ns or 0 for f in diagnosis.findings if f.severity != "info"]
    assert savings == sorted(savings, reverse=True)


def test_min_saving_decides_what_is_harmless() -> None:
    trace = two_reads()
    for min_saving, severity in ((0.0, "warning"), (1.0, "info")):
        found = analyze(trace, judging=Judging(select=("HG102",), min_saving=min_saving)).findings
        assert [finding.severity for finding in found] in ([severity], ["error"])
        assert (found[0].severity == "info") == (severity == "info")


def test_no_saving_is_more_than_the_trace_has() -> None:
    for name in ("eager.json.gz", "compile_graphs.json.gz", "eager_item.sqlite"):
        diagnosis = analyze(sample(name))
        window = diagnosis.devices[0].window_ns
        for finding in diagnosis.findings:
            low, high = finding.predicted_saving_low_ns, finding.predicted_saving_ns
            assert low is None or high is None or 0 <= low <= high <= window


def test_select_and_ignore() -> None:
    registry = load_rules()
    assert [rule.code for rule in registry.chosen(("HG10",), ("HG102",))][:1] == ["HG101"]
    assert {rule.code[:3] for rule in registry.chosen((), ("HG1",))} >= {"HG2"}
    assert not any(rule.code.startswith("HG1") for rule in registry.chosen((), ("hg1",)))
    with pytest.raises(ConfigError) as caught:
        registry.chosen(("HG1001",))
    assert "did you mean HG1" in str(caught.value.hint)


def test_the_waits_of_a_rule_do_not_depend_on_the_selection() -> None:
    """A download stays one although the rule that claims scalars is not selected."""
    trace = two_reads()
    everything = analyze(trace, judging=Judging(select=("HG1",)))
    alone = analyze(trace, judging=Judging(select=("HG102",)))
    assert [f for f in everything.findings if f.code == "HG102"] == alone.findings


def test_thresholds() -> None:
    trace = two_reads()
    with pytest.raises(ConfigError) as caught:
        analyze(trace, judging=Judging(thresholds={"HG201": {"min-idel": 0.5}}))
    assert caught.value.hint == "did you mean 'min-idle'?"
    with pytest.raises(ConfigError, match="HG201"):
        analyze(trace, judging=Judging(thresholds={"HG201": {"min-idle": "much"}}))
    with pytest.raises(ConfigError, match="no rule"):
        analyze(trace, judging=Judging(thresholds={"HG299": {}}))


# --- rules that misbehave ----------------------------------------------------------------------


class _Test(Rule):
    code, name, title, advice = "XX001", "test", "t", "a"


class Raises(_Test):
    def find(self, context: Context, options: Options) -> Iterator[Match]:
        yield Match()
        raise ValueError("no such thing")


class YieldsNonsense(_Test):
    def find(self, context: Context, options: Options) -> Iterator[Any]:
        yield "HG101"


class YieldsRowsThatAreNone(_Test):
    def find(self, context: Context, options: Options) -> Iterator[Match]:
        yield Match(calls=np.array([0.5]))


class YieldsRowsBeyondTheTable(_Test):
    def find(self, context: Context, options: Options) -> Iterator[Match]:
        yield Match(calls=np.array([10**9]))


class Informs(_Test):
    informs = True

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        calls = context.waits.call
        yield Match(calls=calls, edit=context.without(calls))


@pytest.mark.parametrize(
    "rule", [Raises(), YieldsNonsense(), YieldsRowsThatAreNone(), YieldsRowsBeyondTheTable()]
)
def test_a_rule_that_misbehaves_is_named_and_the_rest_runs(rule: Rule) -> None:
    context = Context(examine(two_reads()), load_rules().wait_rules())
    outcome = run_rules(context, [rule, *load_rules().chosen(("HG101",))])
    (problem,) = outcome.problems
    assert problem.startswith("XX001: failed: ")
    assert "\n" not in problem
    assert [finding.code for finding in outcome.findings] == ["HG101"]


def test_a_rule_that_informs_is_never_a_defect() -> None:
    context = Context(examine(two_reads()))
    (finding,) = run_rules(context, [Informs()]).findings
    assert (finding.severity, finding.predicted_saving_ns) == ("info", None)


def test_a_rule_that_cannot_look_says_what_it_lacks() -> None:
    class Stacks(Informs):
        needs = (Need.STACKS,)

    context = Context(examine(two_reads()))
    outcome = run_rules(context, [Stacks()])
    assert outcome.findings == []
    assert outcome.not_applicable[0].reason.startswith("needs Python stacks: record with")


def test_without_a_verdict_no_rule_looks() -> None:
    trace = build(call(LAUNCH, 0, 10, 1), call(LAUNCH, 20, 30, 2))
    diagnosis = analyze(trace)
    assert diagnosis.verdict == "unmeasurable"
    assert len(diagnosis.not_applicable) == len(load_rules().rules)


def test_clocks_that_cannot_be_reconciled_price_nothing() -> None:
    """Every kernel starts long before its launch, and ends after a wait for it has returned."""

    def step(t: int, i: int) -> list[Event]:
        early = t - 40_000 if i % 2 else t + 900_000
        return [
            call(LAUNCH, t, t + 1_000, i),
            kernel(early, early + 10_000, i),
            call(STREAM_SYNC, t + 1_000, t + 20_000, i + 1),
        ]

    starts = [100_000 + k * 100_000 for k in range(6)]
    analysis = examine(build(steps(*starts), *(step(t, 1 + 3 * k) for k, t in enumerate(starts))))
    context = Context(analysis, load_rules().wait_rules())
    if not analysis.clock.reconciled:
        assert context.replay is None
    outcome = run_rules(context, load_rules().chosen(("HG1",)))
    assert outcome.problems == []


# --- rules of the user's own --------------------------------------------------------------------

OWN = '''\
"""{code} {name}: a rule of my own."""
from hostgap.diagnosis.rule import Match, Rule

class Mine(Rule):
    """Mine."""
    code = "{code}"
    name = "{name}"
    title = "Mine"
    advice = "Do it."

    def find(self, context, options):
        for site, calls in context.by_site(context.waits.call):
            yield Match(calls=calls, site=site)
'''


def test_rules_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "my001_own.py").write_text(OWN.format(code="MY001", name="own"))
    (tmp_path / "helper.py").write_text("raise SystemError")  # no rule by its name: left alone
    diagnosis = analyze(two_reads(), judging=Judging(select=("MY",), folders=(tmp_path,)))
    assert {finding.code for finding in diagnosis.findings} == {"MY001"}
    assert diagnosis.problems == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("def find(:", "SyntaxError"),
        ("import no_such_module", "ModuleNotFoundError"),
        ("x = 1", "holds 0 rules instead of one"),
        (OWN.format(code="HG101", name="own"), "there is a rule HG101 already"),
        (OWN.format(code="my1", name="own"), "two to five capitals and three digits"),
        (OWN.format(code="MY001", name="own").replace('    title = "Mine"\n', ""), "has no title"),
        (OWN.format(code="MY001", name="own").replace("def find", "def look"), "abstract method"),
        ("raise KeyboardInterrupt('x') if 0 else ValueError('line one\\nline two')", "line one"),
    ],
)
def test_a_rule_file_that_is_none_is_named_and_skipped(
    tmp_path: Path, content: str, says: str
) -> None:
    path = tmp_path / "my001_own.py"
    path.write_text(content)
    diagnosis = analyze(two_reads(), judging=Judging(select=("HG101",), folders=(tmp_path,)))
    (problem,) = diagnosis.problems
    assert problem.startswith(f"{path}: skipped: ")
    assert says in problem
    assert "\n" not in problem
    assert [finding.code for finding in diagnosis.findings] == ["HG101"]


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        load_rules([tmp_path / "none"])


# --- context ------------------------------------------------------------------------------------


def test_a_region_is_the_innermost_frame_around_all_of_it() -> None:
    def step(t: int, i: int) -> list[Event]:
        return [
            frame("loop.py(1): main", t, t + 9_000),
            frame("model.py(5): layer", t + 100, t + 2_000),
            call(LAUNCH, t + 200, t + 300, i),
            kernel(t + 400, t + 500, i),
            frame("model.py(5): layer", t + 2_100, t + 4_000),
            call(LAUNCH, t + 2_200, t + 2_300, i + 1),
            kernel(t + 2_400, t + 2_500, i + 1),
        ]

    context = Context(examine(repeated(step, 10_000)))
    site = context.region_site(context.launched.call)
    assert site is not None
    assert site.function == "main"
    one = context.region_site(context.launched.call[:1])
    assert one is not None
    assert one.function == "layer"


class ClaimsWrongly(WaitRule):
    code, name, title, advice, order = "XX002", "test", "t", "a", 1

    def claims(self, wait: Wait) -> bool:
        raise KeyError("mine")


class CutsNonsense(_Test):
    def find(self, context: Context, options: Options) -> Iterator[Match]:
        yield Match(edit=Edit(cut=3))  # type: ignore[arg-type]


class CutsBackwards(_Test):
    def find(self, context: Context, options: Options) -> Iterator[Match]:
        start, end = np.array([9, 3]), np.array([4, 8])
        yield Match(edit=Edit(cut=Intervals(start, end)))


class NeedsNonsense(_Test):
    needs = ("stacks",)  # type: ignore[assignment]

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        yield Match()


@pytest.mark.parametrize("rule", [CutsNonsense(), CutsBackwards(), NeedsNonsense()])
def test_an_edit_or_a_need_that_is_none_is_named(rule: Rule) -> None:
    context = Context(examine(two_reads()), load_rules().wait_rules())
    outcome = run_rules(context, [rule, *load_rules().chosen(("HG101",))])
    assert len(outcome.problems) == 1
    assert [finding.code for finding in outcome.findings] == ["HG101"]


def test_a_rule_that_fails_to_claim_claims_nothing() -> None:
    registry = load_rules()
    context = Context(examine(two_reads()), [ClaimsWrongly(), *registry.wait_rules()])
    outcome = run_rules(context, registry.chosen(("HG101",)))
    assert [finding.code for finding in outcome.findings] == ["HG101"]
    assert outcome.problems == ["XX002: claims no wait: KeyError: 'mine'"]


class Exits(_Test):
    def find(self, context: Context, options: Options) -> Iterator[Match]:
        raise SystemExit(0)
        yield


class CannotSay(_Test):
    def find(self, context: Context, options: Options) -> Iterator[Match]:
        class Mute(Exception):
            def __str__(self) -> str:
                raise ValueError

        raise Mute
        yield


class ChangesTheTrace(_Test):
    def find(self, context: Context, options: Options) -> Iterator[Match]:
        context.trace.api_calls.start[:] = 0
        yield Match()


@pytest.mark.parametrize("rule", [Exits(), CannotSay(), ChangesTheTrace()])
def test_a_rule_can_neither_end_the_run_nor_falsify_it(rule: Rule) -> None:
    context = Context(examine(sample("eager_item.json.gz")), load_rules().wait_rules())
    outcome = run_rules(context, [rule, *load_rules().chosen(("HG101",))])
    assert len(outcome.problems) == 1
    assert [finding.code for finding in outcome.findings] == ["HG101"]


class CountsLikeNumpy(_Test):
    def find(self, context: Context, options: Options) -> Iterator[Match]:
        calls = context.waits.call
        yield Match(calls=calls[::-1], count=np.int64(3), title="a\x1b[31m")  # type: ignore[arg-type]


def test_what_a_rule_yields_is_brought_into_form() -> None:
    context = Context(examine(two_reads()), load_rules().wait_rules())
    (finding,) = run_rules(context, [CountsLikeNumpy()]).findings
    assert (finding.count, type(finding.count)) == (3, int)
    assert finding.evidence == sorted(finding.evidence)
    assert "\x1b" not in finding.title


class ManyPlaces(_Test):
    def find(self, context: Context, options: Options) -> Iterator[Match]:
        for row in range(200):
            yield Match(calls=np.array([row % len(context.trace.api_calls)]))


def test_too_many_places_become_one() -> None:
    context = Context(examine(two_reads()))
    findings = run_rules(context, [ManyPlaces()]).findings
    assert len(findings) == 50
    assert sum(finding.count for finding in findings) == 200
    assert any(finding.title == "t: 151 more places" for finding in findings)
