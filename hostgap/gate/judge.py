"""The gate's judgement: a subject held against budgets, a baseline, and runs measured beside it."""

from __future__ import annotations

from hostgap import __version__
from hostgap.diagnosis.model import Diagnosis, StepClass
from hostgap.errors import ConfigError
from hostgap.gate import model as g
from hostgap.gate.baseline import Entry, entry_of, find_entry, told
from hostgap.gate.culprits import Waits, culprits_of, waits_of
from hostgap.gate.metrics import EXACT, METRICS, Metric, shown
from hostgap.gate.settings import Budget, Settings
from hostgap.gate.step_time import check_step_time
from hostgap.gate.subject import Subject, choose_class

# What makes even counts worthless: files cut or damaged, and work of the GPU that ran unrecorded.
_SALVAGED = {"HG920": "salvaged from a truncated file", "HG921": "salvaged from a damaged file"}
_UNRECORDED = "HG934"
_DROPPED = "HG903"  # some launches without their kernels: only what is read off GPU rows is wrong
DEFAULT_REGRESSION = 0.05  # of the step's time, where base runs are given and no budget is


def gate(
    new: Subject,
    settings: Settings,
    entries: list[Entry] | None = None,
    base: Subject | None = None,
    baseline: str | None = None,
) -> g.GateResult:
    """Judge one side.

    Args:
        new: what is gated.
        settings: budgets and the allow list.
        entries: of the baseline; None without one.
        base: runs of what it is compared with, measured in turn with it.
        baseline: the baseline's name, for the report.

    Raises:
        ConfigError: nothing to hold it against; GPUs, versions or workloads that may not be
            compared; a regression budget and nothing to compare with.
    """
    notes: list[str] = []
    known = [entry.key.step_class for entry in entries or []]
    step = choose_class(new.diagnosis, settings.step_class, known) if new.diagnosis else None
    key = new.key(step)
    bad = unmeasurable(new.diagnosis)
    entry, against = None, "baseline"
    if entries is not None and step is not None and bad is None:
        entry, said = find_entry(entries, key, allow_mismatch=settings.allow_mismatch)
        notes += said
        if entry is None:
            raise _no_entry(entries, key, baseline)
    elif entries is None and base is not None and base.diagnosis is not None and bad is None:
        entry, against = _entry_of_base(base, key, settings, notes), "base runs"

    regressions = [b for b in settings.budgets.values() if b.max_regression is not None]
    counted = [b.metric.name for b in regressions if b.metric.kind == "count"]
    if counted and entries is None and entry is None and bad is None:
        raise ConfigError(f"{counted[0]}: a regression, and no baseline to compare with", _ADVICE)
    if not settings.budgets and entries is None and base is None:
        raise ConfigError("nothing to gate on: no budget and no baseline", _ADVICE)

    waits = Waits(1.0, 0.0, 0.0, [], [])
    if new.diagnosis is not None and bad is None:
        waits = waits_of(new.places or new.diagnosis, settings.allow, entry)
    judge = _Judge(new, step, bad, waits, entry, against)
    checks = [judge.budget(budget) for budget in settings.budgets.values() if _has_limit(budget)]
    if entry is not None:
        checks += judge.against_entry(settings)
        notes += judge.notes(settings)
    if base is not None or "step_time" in settings.budgets:
        budget = settings.budgets.get("step_time")
        limit = budget.max_regression if budget else DEFAULT_REGRESSION
        if limit is not None:
            level = budget.level if budget else "error"
            checks.append(check_step_time(new, base, limit, level, settings.allow_mismatch))
    if bad is not None and not any(check.status == "unmeasurable" for check in checks):
        checks.append(_nothing(bad))
    return g.GateResult(
        schema=g.SCHEMA,
        tool=g.Tool(name="hostgap", version=__version__),
        subject=new.name,
        source=new.diagnosis.trace.source if new.diagnosis else None,
        steps=len(step.steps) if step else 0,
        key=key,
        baseline=baseline,
        outcome=g.outcome_of(checks),
        strict=settings.strict,
        checks=checks,
        stale=waits.stale,
        notes=notes + _class_note(new.diagnosis, step),
    )


_ADVICE = "give --budget sync_calls_per_step=0, or `--update-baseline` on a trace that is good"


def _has_limit(budget: Budget) -> bool:
    return budget.limit is not None


def _class_note(diagnosis: Diagnosis | None, step: StepClass | None) -> list[str]:
    if diagnosis is None or step is None or len(diagnosis.steps.classes) < 2:
        return []
    n = diagnosis.steps.count
    return [f"per step: {len(step.steps)} of {n} steps, those of {step.label!r} (--step-class)"]


def unmeasurable(diagnosis: Diagnosis | None) -> str | None:
    """Why nothing of a trace may be gated on, None where it may."""
    if diagnosis is None:
        return None
    integrity = diagnosis.trace.integrity
    if diagnosis.verdict == "unmeasurable" or integrity.verdict == "unmeasurable":
        texts = [reason.text for reason in integrity.reasons]
        reasons = [device.reason for device in diagnosis.devices if device.reason]
        return (reasons or texts or ["the trace supports no verdict"])[0]
    for reason in integrity.reasons:
        if reason.code in _SALVAGED:
            return f"{_SALVAGED[reason.code]}: {reason.text}"
        if reason.code == _UNRECORDED:
            return reason.text
    return None


def _no_entry(entries: list[Entry], key: g.Key, baseline: str | None) -> ConfigError:
    kinds = "; ".join(told(entry.key) for entry in entries[:3]) or "nothing"
    more = f" and {len(entries) - 3} more" if len(entries) > 3 else ""
    return ConfigError(
        f"{baseline}: nothing for {told(key)}; it has: {kinds}{more}",
        "--update-baseline adds an entry, --allow-mismatch compares all the same",
    )


def _entry_of_base(base: Subject, key: g.Key, settings: Settings, notes: list[str]) -> Entry | None:
    """The base runs' trace as an entry to compare counts with."""
    assert base.diagnosis is not None
    if reason := unmeasurable(base.diagnosis):
        notes.append(f"counts are not compared with the base runs': {reason}")
        return None
    step = choose_class(base.diagnosis, settings.step_class, [key.step_class])
    if step is None:
        notes.append("counts are not compared with the base runs': their trace has no steps")
        return None
    made = entry_of(base, step)
    found, said = find_entry([made], key, allow_mismatch=settings.allow_mismatch)
    if found is None:
        raise ConfigError(
            f"{base.name} is of {told(made.key)}, this of {told(key)}",
            "--allow-mismatch compares all the same",
        )
    notes += said
    return found


def _nothing(reason: str) -> g.Check:
    return g.Check(
        metric="trace",
        against="budget",
        level="error",
        status="unmeasurable",
        value=None,
        limit=None,
        base=None,
        text=f"the trace supports no verdict: {reason}",
    )


class _Judge:
    """One diagnosis and class of steps, asked for one metric after the other."""

    def __init__(
        self,
        new: Subject,
        step: StepClass | None,
        bad: str | None,
        waits: Waits,
        entry: Entry | None,
        against: str,
    ) -> None:
        self.new, self.step, self.bad = new, step, bad
        self.waits, self.entry, self.against = waits, entry, against

    def value(self, metric: Metric) -> tuple[float | None, str | None]:
        """A metric's value, or why there is none."""
        diagnosis = self.new.diagnosis
        if metric.kind == "step time":
            times = sorted(self.new.times_ns)
            if times:
                return times[len(times) // 2], None
            if diagnosis is not None and diagnosis.unprofiled is not None:
                return float(diagnosis.unprofiled.step_ns), None
            return None, None  # a trace says nothing of it: not a fault of the trace
        if diagnosis is None:
            return None, f"{self.new.name} has no trace to count in"
        if self.bad is not None:
            return None, self.bad
        if self.step is None and (metric.name.endswith("_per_step")):
            return None, "a figure per step, and the trace has no steps (--step-marker)"
        for reason in diagnosis.trace.integrity.reasons:
            if metric.gpu_side and reason.code == _DROPPED:
                return None, reason.text
        step = self.step or diagnosis.steps.classes[0]
        value = metric.value(diagnosis, step)
        return value, None if value is not None else "the trace does not say"

    def budget(self, budget: Budget) -> g.Check:
        """One budget with a limit of its own."""
        metric, limit = budget.metric, budget.limit
        assert limit is not None
        value, reason = self.value(metric)
        if value is None and reason is None:
            return self._check(
                budget, "skipped", None, "only runs of hostgap profile know the unprofiled step"
            )
        if value is None:
            return self._check(budget, "unmeasurable", None, reason or "")
        held = self._held(metric, value)
        allowed, value = value - held, held
        worse = value > limit + 1e-9 if metric.worse == "higher" else value < limit - 1e-9
        status: g.Status = "passed"
        if worse:
            status = "failed" if budget.level == "error" else "warning"
        held_to = shown(metric, limit)
        wanted = f"at most {held_to} allowed"
        if metric.worse == "lower":
            wanted = f"at least {held_to} wanted"
        text = f"{shown(metric, value)}, {wanted}"
        if allowed > 1e-9:
            count = METRICS["sync_calls_per_step"]
            text += f"; {shown(count, allowed)} more a step on the allow list"
        if metric.kind in ("share", "traced time") and not self._measured(metric):
            bound = "lower" if metric.worse == "lower" else "upper"
            text += f" (with the profiler on: {'an' if bound == 'upper' else 'a'} {bound} bound)"
        return self._check(budget, status, value, text, allowed=allowed, worse=worse)

    def _held(self, metric: Metric, value: float) -> float:
        """A count without what the allow list lets be.

        Waits are counted by place over all steps, and so a share of them is taken off a class's.
        """
        if metric.name == "sync_calls_per_step":
            return value * self.waits.left
        if metric.name == "blocking_syncs_per_step":
            return max(0.0, value - self.waits.allowed)
        if metric.name == "copies_per_step":
            return max(0.0, value - self.waits.allowed_copies)
        return value

    def _measured(self, metric: Metric) -> bool:
        """Whether it does not depend on how much the profiler slows the host."""
        if metric.name == "gpu_ops_in_graphs":
            return True
        diagnosis = self.new.diagnosis
        assert diagnosis is not None
        unprofiled = diagnosis.unprofiled
        return metric.name == "kernel_utilization" and (
            unprofiled is not None and unprofiled.kernel_utilization is not None
        )

    def _check(
        self,
        budget: Budget,
        status: g.Status,
        value: float | None,
        text: str,
        *,
        allowed: float = 0.0,
        worse: bool = False,
    ) -> g.Check:
        return g.Check(
            metric=budget.metric.name,
            against="budget",
            level=budget.level,
            status=status,
            value=value,
            limit=budget.limit,
            base=None,
            text=text,
            allowed=round(allowed, 6),
            culprits=self._culprits(budget.metric) if worse else [],
        )

    def _culprits(self, metric: Metric) -> list[g.Culprit]:
        if metric.name == "sync_calls_per_step":
            return self.waits.culprits
        assert self.new.diagnosis is not None
        return culprits_of(metric, self.new.diagnosis)

    def against_entry(self, settings: Settings) -> list[g.Check]:
        """Every count of the baseline."""
        assert self.entry is not None
        return [
            self._regression(METRICS[name], settings.budgets.get(name))
            for name in EXACT
            if name in self.entry.metrics
        ]

    def _regression(self, metric: Metric, budget: Budget | None) -> g.Check:
        entry = self.entry
        assert entry is not None
        assert self.new.diagnosis is not None
        base = entry.metrics[metric.name]
        level: g.Level = budget.level if budget else "error"
        value, reason = self.value(metric)
        status: g.Status = "passed"
        text, worse = "", False
        from hostgap.gate.baseline import whole_graphs

        if value is None:
            status, text = "unmeasurable", reason or ""
        elif metric.name == "copies_per_step" and entry.whole_graphs != whole_graphs(
            self.new.diagnosis
        ):
            status, text = "skipped", "one of the traces does not show what is inside graphs"
        else:
            # what was allowed after the baseline was written is no regression
            value = max(min(value, base), self._held(metric, value))
            limit = base * (1 + (budget.max_regression or 0.0)) if budget else base
            text = f"{shown(metric, value)}, {_where(self.against)} {shown(metric, base)}"
            if value > limit + 1e-6:
                status, worse = ("failed" if level == "error" else "warning"), True
                if metric.name == "graph_launches_per_step" and self._captured(value - base):
                    status, worse = "passed", False
                    text += "; they take the place of more launches"
                elif (value - limit) * min(entry.steps, self._steps) <= 1 + 1e-6 and (
                    value != round(value)
                ):
                    status = "warning"
                    text += f": once in {self._steps} steps, so not in each of them"
        return g.Check(
            metric=metric.name,
            against=self.against,  # type: ignore[arg-type]  # one of the two
            level=level,
            status=status,
            value=value,
            limit=None,
            base=base,
            text=text,
            culprits=self._culprits(metric) if worse else [],
        )

    @property
    def _steps(self) -> int:
        return len(self.step.steps) if self.step else 1

    def _captured(self, more: float) -> bool:
        """Whether launches were put into graphs: fewer of them than graphs have come."""
        assert self.entry is not None
        before = self.entry.metrics.get("launches_per_step", 0.0)
        now, _ = self.value(METRICS["launches_per_step"])
        return now is not None and before - now > more

    def notes(self, settings: Settings) -> list[str]:
        """What differs between the two without being worse."""
        entry, diagnosis = self.entry, self.new.diagnosis
        assert entry is not None
        assert diagnosis is not None
        said = []
        if entry.source != diagnosis.trace.source:
            said.append(
                f"{_SOURCES[entry.source]} against {_SOURCES[diagnosis.trace.source]}: counts are "
                "compared, times are not"
            )
        if entry.steps != self._steps:
            said.append(f"counted over {self._steps} steps, the {self.against} over {entry.steps}")
        better = []
        for name in EXACT:
            value, _ = self.value(METRICS[name])
            base = entry.metrics.get(name)
            if value is not None and base is not None and value < base - 1e-6:
                better.append(
                    f"{name} {shown(METRICS[name], base)} -> {shown(METRICS[name], value)}"
                )
        if better:
            update = "; --update-baseline keeps it so" if self.against == "baseline" else ""
            said.append(f"better than the {self.against}: {', '.join(better)}{update}")
        return said


_SOURCES = {"kineto": "a torch.profiler trace", "nsys": "an Nsight trace"}


def _where(against: str) -> str:
    return "baseline" if against == "baseline" else "base runs"
