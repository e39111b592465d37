"""The ladder: apply a fix, re-measure, prove the output equal, keep it or roll it back.

After each fix that is kept the step is traced and diagnosed again, and the fix with the largest
predicted saving is next; where a trace cannot tell, the order of the registry decides. A fix that
is slower, without effect beyond the noise, or unequal to the target as it was is taken back, with
the reason. One that could not be captured is tried again once something else has changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

import hostgap
from hostgap.diagnosis.model import Diagnosis, Tool
from hostgap.errors import FixFailed, HostgapError, Stopped, TargetError
from hostgap.fixes.figures import figures
from hostgap.fixes.fix import Fix, Prediction, promised
from hostgap.fixes.kernels import kernel_difference
from hostgap.fixes.report import SCHEMA, Ending, FixReport, Ratio, Rung, Skipped, Status
from hostgap.profiling.bench import Bench, Comparison, Traced, Variant
from hostgap.profiling.statistics import comparison

SMALL_GAIN = 0.9  # a ratio above it is measured again, the other way round, before it is believed
MORE_BLOCKS = 2  # times as many again, where the first leave it open
MUCH_SHORTER = 0.8  # a ratio below it gives all fixes another chance
MOST_TRIES = 5  # of one fix
_HOST = ("HG1", "HG4", "HG5", "HG6")  # findings of waits and of what the host does

Kernels = Callable[[Traced], dict[str, float]]


class ClimbOptions(msgspec.Struct, frozen=True):
    """How to climb.

    Attributes:
        noise: what a gain must exceed, as a share of the step.
        tolerance: that the bench allows for floating-point outputs; for the report.
        max_seconds: after which no further fix is tried.
        dry_run: say what would be tried, and apply nothing.
        forced: the fixes were named one by one: try each, whatever was found.
    """

    noise: float = 0.01
    tolerance: float = 0.05
    max_seconds: float = 3600.0
    dry_run: bool = False
    forced: bool = False


@dataclass(slots=True)
class _Candidate:
    """Fixes to be tried together, the variant with them, and what they should save."""

    fixes: list[Fix]
    variant: Variant
    prediction: Prediction

    @property
    def name(self) -> str:
        return " + ".join(fix.name for fix in self.fixes)


@dataclass(slots=True)
class _State:
    """Where the climb stands. `seen` are the codes of all diagnoses so far."""

    current: Variant
    diagnosis: Diagnosis
    step_ns: float
    kernels: dict[str, float] | None
    seen: set[str] = field(default_factory=set)
    tries: dict[str, int] = field(default_factory=dict)
    blocked: set[str] = field(default_factory=set)  # could not be applied to the current variant
    refused: dict[str, str] = field(default_factory=dict)  # tried on the current one, or unequal
    together: bool = False  # all that is left was tried at once


def climb(
    bench: Bench,
    diagnose: Callable[[Traced], Diagnosis],
    start: Variant,
    fixes: Mapping[str, Fix],
    options: ClimbOptions,
    progress: Callable[[str], None],
    kernels: Kernels | None = None,
) -> FixReport:
    """Climb as far as it goes.

    Args:
        bench: builds, times, compares and traces variants.
        diagnose: a variant's trace -> what is wrong with it.
        start: the target as it is, to which all outputs must be equal.
        fixes: by name, in the order in which to try those of unknown effect.
        options: how.
        progress: told what is being done, in a few words.
        kernels: a variant's trace -> how often each kernel ran in a step; to check pure captures.

    Returns:
        What was tried, and where a problem or Ctrl-C ended it, what was known by then.

    Raises:
        TargetError: the target cannot be measured as it is, or does not repeat itself.
    """
    return _Climb(bench, diagnose, start, fixes, options, progress, kernels).run()


class _Climb:
    def __init__(
        self,
        bench: Bench,
        diagnose: Callable[[Traced], Diagnosis],
        start: Variant,
        fixes: Mapping[str, Fix],
        options: ClimbOptions,
        progress: Callable[[str], None],
        kernels: Kernels | None,
    ) -> None:
        self.bench, self.diagnose, self.start = bench, diagnose, start
        self.fixes, self.options, self.progress = fixes, options, progress
        self.kernels = kernels
        self.rungs: list[Rung] = []
        self.tokens: int | None = None  # that a step makes
        self.end = time.monotonic() + options.max_seconds

    def run(self) -> FixReport:
        self.progress("measuring the target as it is")
        built = self.bench.build(self.start)
        self.tokens = built.tokens
        itself = self.bench.prove(self.start, self.start)
        if not itself.equal and not self.options.dry_run:
            raise TargetError(
                f"the step does not repeat itself, so no fix can be proven: {itself.why}",
                "give it a reset, a fixed seed, and an output to compare",
            )
        state, rung = self._measured(self.start, None)
        self.rungs.append(
            msgspec.structs.replace(rung, name="start", title="as it is", costs=built.costs)
        )
        ended: Ending = "dry-run" if self.options.dry_run else "complete"
        left = "would be tried" if self.options.dry_run else "not reached before the climb ended"
        problem = overall = None
        try:
            if not self.options.dry_run and not self._climb(state):
                ended = "out-of-time"
                problem = f"the time of {self.options.max_seconds:.0f} s was over"
                left = "there was no time left for it"
            if state.current != self.start:
                self.progress("comparing the best with the start")
                overall = _ratio(self.bench.compare(self.start, state.current))
        except HostgapError as error:
            ended, problem = "failed", error.message
            self._cut_short(state, problem)
        except (KeyboardInterrupt, Stopped):
            ended, problem = "interrupted", "what was found by then stands"
            self._cut_short(state, "interrupted while it was tried")
        self._list(state, left)
        return FixReport(
            schema=SCHEMA,
            tool=Tool(name="hostgap", version=hostgap.__version__),
            target="",
            options={},
            environment=None,
            status=ended,
            problem=problem,
            tolerance=self.options.tolerance,
            noise=self.options.noise,
            start=self.start,
            best=state.current,
            rungs=self.rungs,
            skipped=self._skipped(state),
            overall=overall,
        )

    def _climb(self, state: _State) -> bool:
        """Try candidates until none is left; False where the time was over before."""
        while True:
            candidates = self._candidates(state)
            if not candidates:
                return True
            if time.monotonic() >= self.end:
                return False
            self._try(candidates[0], state)

    def _candidates(self, state: _State) -> list[_Candidate]:
        """What may be tried now, the most promising first."""
        known: list[_Candidate] = []
        unknown: list[_Candidate] = []
        for fix in self.fixes.values():
            if fix.name in state.refused or state.tries.get(fix.name, 0) >= MOST_TRIES:
                continue
            variant = fix.on(state.current, self.fixes)
            prediction = self._predicted(fix, state)
            if variant is None or prediction is None:
                continue
            candidate = _Candidate([fix], variant, prediction)
            if prediction.saving_ns is None:
                unknown.append(candidate)
            elif self.options.forced or prediction.saving_ns > self.options.noise * state.step_ns:
                known.append(candidate)
        if self.options.forced:
            order = list(self.fixes)
            known = sorted([*known, *unknown], key=lambda each: order.index(each.fixes[0].name))
            return known or self._together(state)
        if not known:
            # while the host holds the step up, a faster kernel may not show at all
            return [*self._together(state), *unknown]
        known.sort(key=lambda each: -(each.prediction.saving_ns or 0.0))
        return [*known, *unknown]

    def _predicted(self, fix: Fix, state: _State) -> Prediction | None:
        prediction = fix.applies_to(state.diagnosis)
        if prediction is not None and prediction.saving_ns is not None:
            return prediction
        if prediction is None and fix.speeds_kernels and state.seen & set(fix.codes):
            # a chain does not go away by being captured; only the trace no longer shows it
            prediction = Prediction(None, tuple(sorted(state.seen & set(fix.codes))))
        if prediction is None and self.options.forced:
            prediction = Prediction(None, ())
        return prediction

    def _together(self, state: _State) -> list[_Candidate]:
        """Once for each step that is reached: all that the host waits for undone at once.

        Of two waits in a step, taking one away saves nothing while the other stands, and one that
        costs nothing while launching takes longer may be what forbids a capture: so a capture that
        failed is among them.
        """
        if state.together:
            return []
        state.together = True
        found = {finding.code for finding in state.diagnosis.findings}
        variant, used = state.current, []
        for fix in self.fixes.values():
            wrong = state.tries.get(fix.name, 0) >= MOST_TRIES
            waits = any(code.startswith(_HOST) for code in found & set(fix.codes))
            if not waits or wrong or fix.execution or fix.name in state.blocked:
                continue
            if (with_it := fix.on(variant, self.fixes)) is not None:
                variant = with_it
                used.append(fix)
        failed = [fix for fix in self.fixes.values() if fix.captures and fix.name in state.blocked]
        if failed and used and (with_it := failed[0].on(variant, self.fixes)) is not None:
            variant = with_it
            used.append(failed[0])
        if len(used) < 2:
            return []
        codes = tuple(sorted(found & {code for fix in used for code in fix.codes}))
        return [_Candidate(used, variant, Prediction(promised(state.diagnosis, codes), codes))]

    def _try(self, candidate: _Candidate, state: _State) -> None:
        name = candidate.name
        for fix in candidate.fixes:
            state.tries[fix.name] = state.tries.get(fix.name, 0) + 1
        self.rungs.append(_rung(candidate, "failed", ""))  # unless what follows says otherwise
        self.progress(f"{name}: building")
        try:
            costs = self.bench.build(candidate.variant).costs
        except FixFailed as error:
            at = f", {error.hint}" if error.hint else ""
            self._out(state, candidate, "failed", f"{error.message}{at}")
            state.blocked.update(fix.name for fix in candidate.fixes)
            return
        self._note(costs=costs)
        self.progress(f"{name}: proving")
        proof = self.bench.prove(self.start, candidate.variant)
        self._note(proof=proof)
        if not proof.equal:
            self._out(state, candidate, "rolled-back", f"output differs: {proof.why}")
            if len(candidate.fixes) == 1:
                state.tries[name] = MOST_TRIES  # what is wrong stays so
            else:
                self._without_wrong(candidate, state)
            return
        self.progress(f"{name}: timing")
        try:
            compared = self._compared(state.current, candidate.variant)
        except TargetError as error:  # a later step than those of the proof
            self._out(state, candidate, "failed", error.message)
            return
        saving = compared.old.step.median_ns - compared.new.step.median_ns
        self._note(
            step=compared.new.step,
            tokens_per_second=self._tokens(compared.new.step.median_ns),
            against=_ratio(compared),
            measured_saving_ns=saving,
        )
        if (against := self._verdict(compared, state.current, candidate.variant)) is not None:
            self._out(state, candidate, "rolled-back", against)
            return
        self.progress(f"{name}: tracing")
        self._keep(state, candidate, compared)

    def _without_wrong(self, candidate: _Candidate, state: _State) -> None:
        """Of several fixes that are unequal together: find the wrong ones, try without them."""
        for fix in candidate.fixes:
            alone = fix.on(state.current, self.fixes)
            if alone is None:
                continue
            self.progress(f"{fix.name}: proving it alone")
            try:
                self.bench.build(alone)
                equal = self.bench.prove(self.start, alone).equal
            except FixFailed:
                continue  # it needs the others
            self.bench.drop(alone)
            if not equal:
                state.tries[fix.name] = MOST_TRIES
                state.together = False

    def _compared(self, old: Variant, new: Variant) -> Comparison:
        """Two variants timed in turn, for longer where the first blocks leave it open whether the
        new one is faster beyond the noise."""
        compared = self.bench.compare(old, new)
        for _ in range(MORE_BLOCKS):
            edge = 1.0 - self.options.noise
            if not (compared.ratio < edge <= compared.ratio_high):
                break
            again = self.bench.compare(old, new)
            compared = comparison(
                [*compared.old.blocks_ns, *again.old.blocks_ns],
                [*compared.new.blocks_ns, *again.new.blocks_ns],
                compared.new.steps,
            )
        return compared

    def _verdict(self, compared: Comparison, old: Variant, new: Variant) -> str | None:
        """Why a fix does not stay; None where it is faster beyond the noise, small gains twice."""
        if (said := _against(compared, self.options.noise)) is not None:
            return said
        if compared.ratio_high <= SMALL_GAIN:
            return None
        again = self.bench.compare(new, old)
        if 1.0 / again.ratio_low < 1.0 - self.options.noise:
            return None
        return f"no effect: {_percent(compared.ratio)} at first, not when measured again"

    def _keep(self, state: _State, candidate: _Candidate, compared: Comparison) -> None:
        before, why = state.current, f"{_percent(compared.ratio)}, output equal"
        try:
            fresh, rung = self._measured(candidate.variant, self.rungs[-1])
        except HostgapError as error:  # faster and equal all the same
            step_ns = compared.new.step.median_ns
            fresh = _State(candidate.variant, state.diagnosis, step_ns, kernels=None)
            self._note(status="kept", why=f"{why}; not traced: {error.message}")
        else:
            differ = None
            if any(fix.pure for fix in candidate.fixes) and state.kernels and fresh.kernels:
                differ = kernel_difference(state.kernels, fresh.kernels)
            self.rungs[-1] = msgspec.structs.replace(
                rung, status="kept", why=why, kernels_differ=differ
            )
        state.current, state.diagnosis = fresh.current, fresh.diagnosis
        state.step_ns, state.kernels = fresh.step_ns, fresh.kernels
        state.seen |= fresh.seen
        # the same gain is more of what is left; fixes that were named are tried once each
        much = compared.ratio < MUCH_SHORTER and not self.options.forced
        for fix in self.fixes.values():  # what was in vain before may not be now
            predicted = fix.applies_to(state.diagnosis)
            if much or fix.name in state.blocked or (predicted and predicted.saving_ns is not None):
                state.refused.pop(fix.name, None)
        state.blocked.clear()
        state.together = False
        if before != self.start:  # last: what is kept stands where this fails
            self.bench.drop(before)

    def _out(self, state: _State, candidate: _Candidate, status: Status, why: str) -> None:
        self._note(status=status, why=why)
        for fix in candidate.fixes:
            state.refused[fix.name] = why
        self.bench.drop(candidate.variant)

    def _note(self, **known: Any) -> None:
        """Something more is known of the last rung."""
        self.rungs[-1] = msgspec.structs.replace(self.rungs[-1], **known)

    def _cut_short(self, state: _State, why: str) -> None:
        """The climb ends: what is being tried, if anything is, failed."""
        rung = self.rungs[-1]
        if rung.status == "failed" and not rung.why:
            self._note(why=why)
            state.refused |= dict.fromkeys(rung.name.split(" + "), why)

    def _measured(self, variant: Variant, rung: Rung | None) -> tuple[_State, Rung]:
        """Trace and diagnose a variant: the state with it as the current one, and its rung."""
        traced = self.bench.trace(variant)
        diagnosis = self.diagnose(traced)
        step = traced.timing.step
        state = _State(
            variant, diagnosis, step.median_ns, self.kernels(traced) if self.kernels else None
        )
        state.seen = {finding.code for finding in diagnosis.findings}
        base = rung or Rung(name="", title="", status="start", why="", variant=variant)
        measured = msgspec.structs.replace(
            base,
            step=step,
            tokens_per_second=self._tokens(step.median_ns),
            figures=figures(traced, diagnosis),
        )
        return state, measured

    def _tokens(self, step_ns: float) -> float | None:
        return None if self.tokens is None else self.tokens * 1e9 / step_ns

    def _list(self, state: _State, why: str) -> None:
        """What is left to try, as rungs without figures."""
        for candidate in self._candidates(state):
            self.rungs.append(_rung(candidate, "candidate", why))

    def _skipped(self, state: _State) -> list[Skipped]:
        """Why the fixes that are in no rung were not tried."""
        tried = {name for rung in self.rungs for name in rung.name.split(" + ")}
        skipped = []
        for fix in self.fixes.values():
            if fix.name in tried:
                continue
            if fix.defect is not None and fix.defect not in self.start.defects:
                continue  # another target's, or a defect that is off
            prediction = self._predicted(fix, state)
            if fix.on(state.current, self.fixes) is None:
                why = "a more thorough fix is in its place"
            elif prediction is None:
                why = f"nothing was found that it answers ({', '.join(fix.codes)})"
            else:
                why = "it would save less than the noise"
            skipped.append(Skipped(name=fix.name, why=why))
        return skipped


def _rung(candidate: _Candidate, status: Status, why: str) -> Rung:
    return Rung(
        name=candidate.name,
        title=" · ".join(fix.title for fix in candidate.fixes),
        status=status,
        why=why,
        variant=candidate.variant,
        predicted_saving_ns=candidate.prediction.saving_ns,
    )


def _ratio(compared: Comparison) -> Ratio:
    return Ratio(ratio=compared.ratio, low=compared.ratio_low, high=compared.ratio_high)


def _against(compared: Comparison, noise: float) -> str | None:
    """Why a comparison does not speak for the new variant, None where it does."""
    if compared.ratio_high < 1.0 - noise:
        return None
    if compared.ratio_low > 1.0 + noise:
        return _percent(compared.ratio)
    low, high = _percent(compared.ratio_low), _percent(compared.ratio_high)
    return f"no effect beyond the noise ({low} to {high})"


def _percent(ratio: float) -> str:
    """`1.8x as fast`, `4 % faster`, `2 % slower`."""
    if ratio <= 1 / 1.5:
        return f"{1 / ratio:.1f}x as fast"
    change = (ratio - 1.0) * 100
    return f"{abs(change):.1f} % {'slower' if change > 0 else 'faster'}"
