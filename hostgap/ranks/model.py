"""The result of an analysis of several traces: what `--format json` writes for a set.

As in `hostgap.diagnosis.model`, field names carry their unit, times are integer nanoseconds, shares
run from 0 to 1, and what cannot be given is null.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from hostgap.diagnosis.model import Batches, Diagnosis, Site, Tool

SCHEMA = "hostgap.diagnosis-set/1"


class _Base(msgspec.Struct, frozen=True, kw_only=True):
    """Frozen, keyword-only."""


class RankFigures(_Base, frozen=True):
    """What counts of one rank, over the window of its GPU with the most idle time.

    `host_late_ns` is the idle time that a late host caused. `rank_wait_ns` is not in it: the GPU is
    busy then, spinning in collectives from its own start to the last rank's. `exposed_wait_ns` is
    what is left of that beside other kernels, at least. `caused_wait_ns` is by how much the others
    would have been spared at the collectives that this rank was the `last` to start. All four are
    null where ranks could not be held against each other, but `host_late_ns`.

    The untraced figures are of ranks that `hostgap profile` ran together, without a profiler, a
    step: its length, what this rank waits in collectives and graph replays, and what that costs it.
    """

    window_ns: int
    step_ns: int | None
    active_ns: int
    idle_ns: int
    host_late_ns: int
    rank_wait_ns: int | None
    exposed_wait_ns: int | None
    caused_wait_ns: int | None
    last: int | None
    collectives: int
    untraced_step_ns: int | None = None
    untraced_wait_ns: int | None = None
    untraced_lost_ns: int | None = None


class RankDiagnosis(_Base, frozen=True):
    """One trace of the set.

    `role` is frontend for the CPU-only trace of a serving engine's front end, which is no rank.
    `rank` is null where neither the trace nor its name tells it. A trace that could not be read is
    `failed`, with the `error`, and has no diagnosis.
    """

    rank: int | None
    label: str
    file: str
    role: Literal["worker", "frontend"]
    status: Literal["ok", "partial", "unmeasurable", "failed", "not read"]
    error: str | None
    figures: RankFigures | None
    diagnosis: Diagnosis | None


class Spread(_Base, frozen=True):
    """One figure over the ranks: its least, middle and most, and whose they are.

    `outliers` are the ranks that lie further from the middle than 3.5 times the usual deviation
    and 5 % of it; none of fewer than four ranks.
    """

    figure: str
    unit: Literal["ns", "share", "count"]
    low: float
    median: float
    high: float
    low_label: str
    high_label: str
    outliers: list[str]


class Straggler(_Base, frozen=True):
    """The rank that the others wait for most.

    `share` is its part of all waits that some rank caused. Before the collectives it is last at, it
    takes `excess_ns` longer than the others in the middle: `idle_excess_ns` of that its GPU idles
    as its host is late, and `work_excess_ns` its GPU works or has its orders in hand. `cause` is
    what it does more of than the others, by `cause_excess_ns` a step, mostly at `site`: what its
    host does, or "copies" or "gpu-work" of its GPU, or "slower-host" where it takes longer for
    everything, by `pace` (a share, as recorded). `clear` says whether it causes most of the waits,
    often enough to be no chance, and at some cost.

    Where waits were measured without a profiler, `late_ns` is by how much its host falls behind the
    others' in a step, with a 95 % interval, and who it is, its `share` and `clear` are by that; all
    but the cause are then of the recording, which may show other waits.
    """

    rank: int | None
    label: str
    clear: bool
    share: float
    last: int
    collectives: int
    caused_wait_ns: int
    excess_ns: int
    idle_excess_ns: int
    work_excess_ns: int
    cause: str
    site: Site | None
    cause_excess_ns: int = 0
    pace: float = 0.0
    late_ns: int | None = None
    late_low_ns: int | None = None
    late_high_ns: int | None = None


class MergedFinding(_Base, frozen=True):
    """The same finding of several ranks: one rule at one place.

    Ranks work at the same time, so savings are not added: `predicted_saving_ns` is that of the rank
    that saves most, `worst`, and `median_saving_ns` that of the rank in the middle. `count` is over
    all ranks.
    """

    code: str
    name: str
    severity: Literal["error", "warning", "info"]
    title: str
    site: Site | None
    labels: list[str]
    worst: str
    count: int
    predicted_saving_ns: int | None
    predicted_saving_low_ns: int | None
    predicted_saving_share: float | None
    median_saving_ns: int | None
    advice: str
    fix: str | None


class CollectiveSummary(_Base, frozen=True):
    """Collectives of one kernel that some ranks run together, and what was waited in them.

    `wait_ns` is over all of those ranks; `spread_ns` is by how much the ends of one collective
    differ in the middle once the clocks are aligned.
    """

    kernel: str
    labels: list[str]
    count: int
    wait_ns: int
    spread_ns: int


class SetSummary(_Base, frozen=True):
    """All ranks together.

    `idle_share`, `host_late_share` and `rank_wait_share` are of the sum of the ranks' windows.
    `not_compared` says why collectives were not held against each other, null where they were.
    `wait_cost_ns` is what a step of the rank that waits most would be shorter by without its waits,
    measured without a profiler where that was done, else replayed, and `wait_cost_share` that of
    its step: null where a replay cannot say. The sum of the waits is more wherever that rank would
    idle instead. `untraced_wait_share` is the waits' part of the ranks' steps without a profiler.
    `batches` is over the decode steps of all traces. `notes` has a line per file left out.
    """

    traces: int
    ranks: int
    failed: int
    unmeasurable: int
    frontends: int
    window_ns: int
    idle_share: float | None
    host_late_share: float | None
    rank_wait_share: float | None
    exposed_wait_share: float | None
    compared: int
    collectives: list[CollectiveSummary]
    not_compared: str | None
    straggler: Straggler | None
    spread: list[Spread]
    findings: list[MergedFinding]
    batches: Batches | None
    notes: list[str]
    wait_cost_ns: int | None = None
    wait_cost_share: float | None = None
    untraced_wait_share: float | None = None


class DiagnosisSet(_Base, frozen=True):
    """Everything hostgap says of several traces. `ranks` are in order of their numbers."""

    schema: str
    tool: Tool
    ranks: list[RankDiagnosis]
    summary: SetSummary
