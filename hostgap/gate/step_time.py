"""The check of the unprofiled step: processes of two sides that ran in turn."""

from __future__ import annotations

from hostgap.errors import ConfigError
from hostgap.gate import model as g
from hostgap.gate.subject import Subject, unlike
from hostgap.gate.times import FEWEST, Decision, decide


def check_step_time(
    new: Subject, base: Subject | None, limit: float, level: g.Level, allow_mismatch: bool
) -> g.Check:
    """Whether the new side's step is slower than the base's by `limit`.

    Args:
        new, base: sides; None where there are no runs of a base.
        limit: the slowdown that must be found, such as 0.05.
        level: what a slowdown is.
        allow_mismatch: compare runs of different machines, versions or targets.

    Raises:
        ConfigError: such runs without `allow_mismatch`.
    """
    if base is None:
        return _check(level, limit, "skipped", "no base runs to compare with (--base)")
    for side in (new, base):
        if not side.runs:
            why = f"{side.name} holds no unprofiled steps: traces say nothing of them"
            return _check(level, limit, "skipped", why)
    differences = unlike(base.runs[0], new.runs[0])
    if differences and not allow_mismatch:
        raise ConfigError(
            f"{base.name} and {new.name} differ in {', '.join(differences)}: times of them say "
            "nothing",
            "--allow-mismatch compares them all the same",
        )
    old, now = base.times_ns, new.times_ns
    decision = decide(old, now, limit)
    times = g.Times(
        base_ns=old,
        new_ns=now,
        ratio=decision.ratio,
        low=decision.low,
        high=decision.high,
        spread=decision.spread,
        p=decision.p,
        runs_needed=decision.runs_needed,
    )
    status: g.Status = decision.outcome
    if status == "failed" and level == "warning":
        status = "warning"
    return _check(level, limit, status, _said(decision, len(old), len(now), limit), times)


def _said(decision: Decision, old: int, new: int, limit: float) -> str:
    runs = f"{old} runs against {new}" if old != new else f"{new} runs a side"
    if decision.ratio is None:
        return f"{runs}: at least {FEWEST} a side are needed"
    change = change_of(decision.ratio)
    if decision.low is not None and decision.high is not None:
        change += f" ({change_of(decision.low)} to {change_of(decision.high)})"
    text = f"{change}, {runs}, spread {decision.spread:.1%}".replace("%", " %")
    held = f"{limit:.3g}" if limit >= 1 else f"{limit * 100:.3g} %"
    if decision.outcome == "passed":
        return f"{text}: a slowdown of {held} is ruled out"
    if decision.outcome == "failed":
        return f"{text}: slower, and {held} cannot be ruled out"
    needed = decision.runs_needed
    how = f"{needed} runs a side" if needed else "more than 50 runs a side"
    return f"{text}: undecided; {how} would decide"


def change_of(ratio: float) -> str:
    """`+1.2%`, of a ratio."""
    return f"{ratio - 1:+.1%}"


def _check(
    level: g.Level, limit: float, status: g.Status, text: str, times: g.Times | None = None
) -> g.Check:
    ratio = times.ratio if times else None
    return g.Check(
        metric="step_time",
        against="base runs",
        level=level,
        status=status,
        value=ratio - 1 if ratio is not None else None,
        limit=limit,
        base=None,
        text=text,
        times=times,
    )
