"""The gate's judgement: a subject held against budgets, a baseline, and runs measured beside it."""

from __future__ import annotations

from typing import Literal

from hostgap import __version__
from hostgap.diagnosis.model import Diagnosis, StepClass
from hostgap.errors import ConfigError
from hostgap.gate import model as g
from hostgap.gate.baseline import Entry, entry_of, find_entry, told
from hostgap.gate.checks import Checks
from hostgap.gate.culprits import Waits, waits_of
from hostgap.gate.settings import Settings
from hostgap.gate.step_time import check_step_time
from hostgap.gate.subject import Subject, choose_class

# What makes even counts worthless: files cut or damaged, and work of the GPU that ran unrecorded.
_SALVAGED = {"HG920": "salvaged from a truncated file", "HG921": "salvaged from a damaged file"}
_UNRECORDED = "HG934"
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
    entry: Entry | None = None
    against: Literal["baseline", "base runs"] = "baseline"
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

    waits = Waits(1.0, 0.0, 0.0, [], [], [])
    if new.diagnosis is not None and bad is None:
        waits = waits_of(new.diagnosis, settings.allow, entry)
    judge = Checks(new, step, bad, waits, entry, against)
    checks = [
        judge.budget(budget) for budget in settings.budgets.values() if budget.limit is not None
    ]
    if entry is not None:
        checks += judge.against_entry(settings)
        notes += judge.notes(settings)
    if base is not None or "step_time" in settings.budgets:
        budget = settings.budgets.get("step_time")
        limit = budget.max_regression if budget else DEFAULT_REGRESSION
        if limit is not None:
            level = budget.level if budget else "error"
            checks.append(check_step_time(new, base, limit, level, settings.allow_mismatch))
    if entries is not None and entry is None and bad is None:  # what was counted on is not there
        if new.diagnosis is not None:
            bad = "it has no steps (--step-marker)"
        elif not checks:
            bad = "there is none to count in"
        else:
            notes.append(f"the baseline's counts are not compared: {new.name} has no trace")
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
