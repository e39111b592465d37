"""Runs the rules over a trace, prices what they find, and ranks it.

A finding costs what the step would lose by its absence: its edit is replayed, at the pace of the
unprofiled step where that is known. From a trace alone, what the profiler's own slowing of the host
explains is no defect: the replay is repeated with the host as fast as it may be without a profiler,
and only what still costs something there is more than `info`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from hostgap.analysis.edit import Edit
from hostgap.analysis.syncs import blocking_calls
from hostgap.analysis.whatif import MOST_EVENTS
from hostgap.diagnosis import model as m
from hostgap.diagnosis.check import checked, said
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.measured import exact_site
from hostgap.diagnosis.rule import Match, Options, Rule, WaitRule
from hostgap.errors import Stopped
from hostgap.trace.model import Int64

MIN_SAVING = 0.01  # share of the step below which a finding is harmless
ERROR_SAVING = 0.05  # share from which it is an error
EVIDENCE = 20  # events named per finding
MOST_PLACES = 50  # of one rule
KIND = len("HG2")  # of a code: rules that begin alike look at the same tables
FEWEST_PRICED = 8  # however large a step is
PRICED = 60  # matches replayed: the costliest by what can be seen without
Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the rules said.

    Attributes:
        findings: the costliest first.
        not_applicable: rules that could not look, and what they lack.
        problems: a line per rule that failed.
        whatif: how well the replay fits, and what all findings would save together.
    """

    findings: list[m.Finding] = field(default_factory=list)
    not_applicable: list[m.NotApplicable] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    whatif: m.WhatIf | None = None


@dataclass(frozen=True, slots=True)
class _Priced:
    rule: Rule
    match: Match
    saving_ns: int | None  # over the window: of the unprofiled steps, else as the trace has it
    low_ns: int | None  # the low end of that, else the same with the host as fast as it may be
    share: float | None
    low_share: float | None


def run_rules(
    context: Context,
    rules: Sequence[Rule],
    options: Mapping[str, Options] | None = None,
    min_saving: float = MIN_SAVING,
) -> Outcome:
    """Run rules over a context.

    Args:
        context: the trace.
        rules: the rules to run.
        options: code -> options, where they are not the rule's defaults.
        min_saving: share of the step that a finding must save to be more than `info`.
    """
    options = options or {}
    not_applicable: list[m.NotApplicable] = []
    problems: list[str] = []
    matches: list[_Weighed] = []
    price = _Prices(context)
    kind = ""
    for rule in rules:
        if rule.code[:KIND] != kind:
            kind = rule.code[:KIND]
            context.forget()
        try:
            lacking = context.lacks(rule.needs)
            if lacking is not None:
                reason = f"needs {lacking.value}"
                not_applicable.append(
                    m.NotApplicable(code=rule.code, name=rule.name, reason=reason)
                )
            else:
                chosen = options.get(rule.code) or rule.options()
                found = [checked(context.trace, match) for match in rule.find(context, chosen)]
                matches += [price.weighed(rule, match) for match in _fewer(rule, found)]
        except (KeyboardInterrupt, Stopped):
            raise
        except BaseException as error:  # noqa: BLE001  a rule of a user's own stops no other
            problems.append(f"{rule.code}: failed: {said(error)}")
    context.forget()
    problems += context.problems
    replayed = price.costliest(matches)
    priced = [price(one.rule, one.match, one in replayed) for one in matches]
    findings = [(one, _finding(context, one, min_saving)) for one in priced]
    findings.sort(key=lambda pair: _rank(pair[1]))
    whatif = None
    if context.replay is not None:
        defects = [one for one, finding in findings if finding.severity != "info"]
        whatif = _together(price, defects)
    return Outcome([finding for _, finding in findings], not_applicable, problems, whatif)


def _fewer(rule: Rule, found: list[Match]) -> list[Match]:
    """At most `MOST_PLACES` matches of a rule: the ones with fewest calls become one."""
    if len(found) <= MOST_PLACES:
        return found
    found = sorted(found, key=lambda match: -len(match.calls))
    kept, rest = found[: MOST_PLACES - 1], found[MOST_PLACES - 1 :]
    edits = [match.edit for match in rest if match.edit is not None]
    counts = [len(match.calls) if match.count is None else match.count for match in rest]
    calls = np.unique(np.concatenate([match.calls for match in rest]))
    edit = Edit().plus(*edits) if edits else None
    title = f"{rule.title}: {len(rest):,} more places"
    return [*kept, Match(calls=calls, edit=edit, count=sum(counts), title=title)]


@dataclass(frozen=True, slots=True, eq=False)
class _Weighed:
    rule: Rule
    match: Match
    weight: int  # what it may cost, by what can be seen without a replay


class _Prices:
    """Prices matches by replaying the window's first steps without them."""

    def __init__(self, context: Context) -> None:
        self.replay = context.calibrated or context.replay
        self._steps = context.counted_steps
        self._window: float = context.window_ns
        self._idle = context.idle()
        self._trace = context.trace
        self._blocking = blocking_calls(context.trace)
        if self.replay is not None and self.replay.calibration is not None:
            self._window = self.low_window = self.replay.calibration.step_ns * self._steps
        elif self.replay is not None:
            self.scale = context.window_ns / max(1, self.replay.high - self.replay.low)
            self.low_window = self.replay.length(Edit(), untraced=True) * self.scale

    def weighed(self, rule: Rule, match: Match) -> _Weighed:
        """A match with its weight, and of its edit only what is replayed: the rest may be much."""
        api, gpu = self._trace.api_calls, self._trace.gpu_ops
        calls = match.calls[self._blocking[match.calls]] if len(match.calls) else match.calls
        weight = int((api.end[calls] - api.start[calls]).sum()) + len(match.calls)
        if match.edit is None:
            return _Weighed(rule, match, weight)
        weight += match.edit.cut.total + match.edit.capture.total
        gone = np.concatenate((match.edit.drop, np.array(list(match.edit.length)))).astype(np.int64)
        weight += int((gpu.end[gone] - gpu.start[gone]).sum())
        if self.replay is not None:
            match = replace(match, edit=self.replay.local(match.edit))
        return _Weighed(rule, match, weight)

    def costliest(self, matches: Sequence[_Weighed]) -> set[_Weighed]:
        """The matches to replay."""
        most = PRICED
        if self.replay is not None:  # one step may be larger than what is replayed otherwise
            most = max(
                FEWEST_PRICED, min(PRICED, PRICED * MOST_EVENTS // max(1, self.replay.events))
            )
        priced = [one for one in matches if not one.rule.informs]
        return set(sorted(priced, key=lambda one: -one.weight)[:most])

    def __call__(self, rule: Rule, match: Match, replayed: bool) -> _Priced:
        if self.replay is None or not replayed:
            return _Priced(rule, match, None, None, None, None)
        if match.edit is None:
            return _Priced(rule, match, 0, 0, 0.0, 0.0)
        high, low = self.saving(match.edit)
        share, low_share = high / max(1, self._window), low / max(1, self.low_window)
        return _Priced(rule, match, high, low, share, low_share)

    def saving(self, edit: Edit) -> tuple[int, int]:
        """What an edit saves over the window: the most, or the best estimate; and the least."""
        assert self.replay is not None
        if self.replay.calibration is not None:
            fitted, scale = self.replay.interval(edit), self._steps / len(self.replay.steps)
            return round(fitted.best * scale), round(fitted.low * scale)
        high = self.replay.saving(edit)
        low = min(high, self.replay.saving(edit, untraced=True)) if high > 0 else high
        residual = self.replay.residual_ns
        if abs(high) < 10 * residual:
            high, low = high + residual, low - residual
        # no more than what the GPU idles, and the work that is gone
        shorter = self.replay.shortened(edit)
        most = self._idle + int(shorter * self.scale)
        return min(max(0, int(high * self.scale)), most), min(max(0, int(low * self.scale)), most)


def _together(price: _Prices, found: Sequence[_Priced]) -> m.WhatIf:
    """What the findings save together: their savings do not add up."""
    edit = Edit().plus(*(one.match.edit for one in found if one.match.edit is not None))
    high, low = price.saving(edit) if found else (0, 0)
    replay = price.replay
    assert replay is not None
    fit = replay.fits[0] if replay.fits else None
    return m.WhatIf(
        steps=len(replay.steps),
        residual_ns=replay.residual_ns,
        combined_saving_ns=high,
        combined_saving_low_ns=low,
        misfit_ns=None if fit is None else round(fit.residual_ns),
        host_rate=None if fit is None else fit.pace.host,
    )


def _finding(context: Context, one: _Priced, min_saving: float) -> m.Finding:
    match, rule = one.match, one.rule
    api = context.trace.api_calls
    calls = match.calls
    waiting = context.waiting(calls)
    shadow = int(context.shadow_ns[waiting].sum())
    count = len(calls) if match.count is None else match.count
    site = match.site if match.site is not None else _site(context, calls)
    if isinstance(rule, WaitRule):
        site = exact_site(context, site, calls)
    return m.Finding(
        code=rule.code,
        name=rule.name,
        severity=_severity(rule, one.low_share, min_saving),
        title=match.title or rule.title,
        site=site,
        count=count,
        count_per_step=count / context.steps,
        blocked_ns=int((api.end[waiting] - api.start[waiting]).sum()),
        shadow_ns=shadow,
        predicted_saving_ns=one.saving_ns,
        predicted_saving_low_ns=one.low_ns,
        predicted_saving_share=one.share,
        predicted_saving_low_share=one.low_share,
        advice=match.advice or rule.advice,
        evidence=[int(row) for row in calls[:EVIDENCE]],
        fix=rule.fix,
    )


def _site(context: Context, calls: Int64) -> m.Site | None:
    return next((site for site, _ in context.by_site(calls[:1])), None)


def _severity(rule: Rule, low_share: float | None, min_saving: float) -> Severity:
    if rule.informs or low_share is None or low_share < min_saving:
        return "info"
    return "error" if low_share >= max(ERROR_SAVING, min_saving) else "warning"


def _rank(finding: m.Finding) -> tuple[int, int, int, str]:
    """Errors, warnings, what is harmless; of each the largest saving first."""
    severity = ("error", "warning", "info").index(finding.severity)
    saving = finding.predicted_saving_ns or 0
    return severity, -saving, -finding.blocked_ns, finding.code
