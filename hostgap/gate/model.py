"""The result of a gate, as typed and versioned data: what every output of `hostgap gate` shows."""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "hostgap.gate/1"

Level = Literal["error", "warning"]
Status = Literal["passed", "failed", "warning", "inconclusive", "skipped", "unmeasurable"]
Outcome = Literal["passed", "failed", "inconclusive", "unmeasurable"]


class _Base(msgspec.Struct, frozen=True, kw_only=True):
    """Frozen, keyword-only."""


class Key(_Base, frozen=True):
    """What counts are exact for. Null where it is not known; `step_class` is "" without labels."""

    gpu: str | None
    torch: str | None
    cuda: str | None
    step_class: str


class Allow(_Base, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """A wait that is meant: where it is, who answers for it, and why.

    `function`, `file` (its end) and `op` (a part of the chain of framework ops) say where; lines do
    not, for they move. `per_step` waits a step are allowed there.
    """

    owner: str
    reason: str
    function: str | None = None
    file: str | None = None
    op: str | None = None
    per_step: float = 1


class Culprit(_Base, frozen=True):
    """A place that a failed check is about.

    `line` is the function's first with precision "function". `new` is null where nothing says
    whether it was there before. `fingerprint` does not change when lines move.
    """

    code: str
    title: str
    file: str | None
    line: int | None
    function: str | None
    op: str | None
    precision: Literal["call", "function", "none"]
    per_step: float
    new: bool | None
    advice: str
    fingerprint: str


class Times(_Base, frozen=True):
    """Unprofiled steps of several processes a side: medians of each, ns, and what they say.

    `ratio` is new by base with its two-sided 95 % interval (null of fewer than four
    a side: there is none), `spread` the standard deviation between the processes of a side by their
    mean, `p` the chance of such a difference between equals, `runs_needed` how many a side would
    decide (null: more than are tried).
    """

    base_ns: list[float]
    new_ns: list[float]
    ratio: float | None
    low: float | None
    high: float | None
    spread: float | None
    p: float | None
    runs_needed: int | None


class Check(_Base, frozen=True):
    """One thing that was held against a limit.

    `against` is what gave the limit. `text` is the outcome as a sentence.
    """

    metric: str
    against: Literal["budget", "baseline", "base runs"]
    level: Level
    status: Status
    value: float | None
    limit: float | None
    base: float | None
    text: str
    allowed: float = 0
    culprits: list[Culprit] = []
    times: Times | None = None


class Canary(_Base, frozen=True):
    """The same trace with one `.item()` a step put in: which checks noticed."""

    caught: bool
    by: list[str]


class Tool(_Base, frozen=True):
    """Who made this."""

    name: str
    version: str


class GateResult(_Base, frozen=True):
    """Everything a gate says.

    `stale` are entries of the allow list that match nothing any more, `notes` what else is to be
    known: versions that nobody names, what was compared all the same, what could be tightened.
    """

    schema: str
    tool: Tool
    subject: str
    source: str | None
    steps: int
    key: Key
    baseline: str | None
    outcome: Outcome
    strict: bool
    checks: list[Check]
    stale: list[Allow]
    notes: list[str]
    canary: Canary | None = None

    @property
    def exit_code(self) -> int:
        """0, 1 or 3, as docs/exit-codes.md says; 3 goes before 1."""
        if self.outcome == "unmeasurable":
            return 3
        caught = self.canary is None or self.canary.caught
        if self.outcome == "failed" or not caught:
            return 1
        return 1 if self.strict and self.outcome == "inconclusive" else 0


def outcome_of(checks: list[Check]) -> Outcome:
    """The worst of the checks: unmeasurable, failed, inconclusive, passed.

    Where each was skipped nothing was decided: that is inconclusive too.
    """
    if checks and all(check.status == "skipped" for check in checks):
        return "inconclusive"
    seen = {check.status for check in checks}
    for outcome in ("unmeasurable", "failed", "inconclusive"):
        if outcome in seen:
            return outcome
    return "passed"
