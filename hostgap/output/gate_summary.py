"""What every format says of a gate, before it is laid out: a view of a `GateResult`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hostgap.diagnosis.model import Site
from hostgap.gate.baseline import told
from hostgap.gate.model import Allow, Check, Culprit, GateResult
from hostgap.gate.repository import Repository
from hostgap.output.printable import printable
from hostgap.output.summary import place

STATUS = {
    "passed": "ok",
    "failed": "FAILED",
    "warning": "warning",
    "inconclusive": "undecided",
    "skipped": "skipped",
    "unmeasurable": "no verdict",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to show to whoever made the change.

    Attributes:
        path, line: in the repository; None where the trace does not say, or names another's code.
        text: whole sentences.
    """

    level: Literal["error", "warning"]
    check: Check
    culprit: Culprit | None
    path: str | None
    line: int | None
    text: str


def headline(result: GateResult) -> str:
    """The outcome in one line."""
    if result.outcome == "unmeasurable":
        reason = next(c.text for c in result.checks if c.status == "unmeasurable")
        return f"Gate: no verdict. {printable(reason)}"
    if result.canary is not None and not result.canary.caught:
        return "Gate failed: an .item() put into every step was not noticed"
    if result.outcome == "failed":
        names = dict.fromkeys(c.metric for c in result.checks if c.status == "failed")
        return f"Gate failed: {', '.join(names)}"
    if result.outcome == "inconclusive":
        failed = " (--strict: failed)" if result.strict else ""
        undecided = [c.metric for c in result.checks if c.status == "inconclusive"]
        names = dict.fromkeys(undecided or [c.metric for c in result.checks])  # all were skipped
        return f"Gate undecided{failed}: {', '.join(names)}"
    n = len([c for c in result.checks if c.status in ("passed", "warning")])
    warned = len([c for c in result.checks if c.status == "warning"])
    more = f", {warned} of them with a warning" if warned else ""
    return f"Gate passed: {n} check{'' if n == 1 else 's'}{more}"


def described(result: GateResult) -> str:
    """What was held against what."""
    parts = [printable(result.subject, 60), printable(told(result.key))]
    if result.steps:
        parts.append(f"{result.steps} steps")
    if result.baseline:
        parts.append(f"baseline {printable(result.baseline, 60)}")
    return " · ".join(parts)


def label(check: Check) -> str:
    """A check's name: the metric, and what it is held against where that is no budget."""
    return check.metric if check.against == "budget" else f"{check.metric} ({check.against})"


def where(culprit: Culprit) -> str:
    """A culprit's place as people write it."""
    site = Site(
        file=culprit.file,
        line=culprit.line,
        function=culprit.function,
        op=culprit.op,
        precision=culprit.precision,
    )
    return place(site) or "a place that the trace does not name"


def shown_culprits(check: Check) -> list[Culprit]:
    """The new ones where any is known to be new; else all."""
    new = [culprit for culprit in check.culprits if culprit.new]
    return new or check.culprits


def often(culprit: Culprit) -> str:
    """`1x a step`."""
    n = culprit.per_step
    return f"{n:,.0f}x a step" if n >= 100 or n == round(n) else f"{n:.3g}x a step"


def entry_text(entry: Allow) -> str:
    """An entry of the allow list in words."""
    parts = [entry.function, entry.file, entry.op]
    said = " ".join(part for part in parts if part)
    return f"{said} (owner {entry.owner}: {entry.reason})"


def canary_line(result: GateResult) -> str:
    """Whether the gate can fail, "" where it was not tried."""
    if result.canary is None:
        return ""
    if result.canary.caught:
        return f"canary: an .item() put into every step is caught by {', '.join(result.canary.by)}"
    return "canary: an .item() put into every step would pass: budget sync_calls_per_step"


def problems(result: GateResult, repository: Repository) -> list[Problem]:
    """Everything that did not pass, errors first; a failed check has one per place.

    Two checks of one metric (its budget and the baseline) share their places.
    """
    found: list[Problem] = []
    seen: set[str] = set()
    for check in sorted(result.checks, key=lambda c: _ORDER[c.status]):
        if check.status in ("passed", "skipped"):
            continue
        level: Literal["error", "warning"] = (
            "error" if check.status in ("failed", "unmeasurable") else "warning"
        )
        said = f"{label(check)}: {check.text}."
        culprits = [c for c in shown_culprits(check) if c.fingerprint not in seen]
        if not culprits and check.culprits:
            continue
        for culprit in culprits:
            seen.add(culprit.fingerprint)
            path = repository.relative(culprit.file) if culprit.file else None
            line = culprit.line if path is not None else None
            found.append(Problem(level, check, culprit, path, line, _text(said, culprit)))
        if not culprits:
            found.append(Problem(level, check, None, None, None, said))
    return found


_ORDER = {
    "unmeasurable": 0,
    "failed": 1,
    "warning": 2,
    "inconclusive": 3,
    "skipped": 4,
    "passed": 5,
}


def _text(said: str, culprit: Culprit) -> str:
    at = where(culprit)
    if culprit.precision == "function":
        at += " (the function's first line)"
    return f"{said} {culprit.title}, {often(culprit)}, {at}. {culprit.advice}"
