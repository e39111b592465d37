"""The comparison of two sides: what changed, what cannot be said, and what was never comparable."""

from __future__ import annotations

from typing import Literal

import msgspec

from hostgap import __version__
from hostgap.diagnosis.model import Diagnosis, Site, StepClass
from hostgap.errors import ConfigError
from hostgap.gate.baseline import told, whole_graphs
from hostgap.gate.metrics import METRICS, Metric, is_sync
from hostgap.gate.model import Key, Times, Tool
from hostgap.gate.places import same_place
from hostgap.gate.subject import Subject, choose_class, unlike
from hostgap.gate.times import FEWEST, decide

SCHEMA = "hostgap.comparison/1"
LIMIT = 0.05  # the change of a step's time that runs are asked about
Change = Literal["better", "worse", "same", "varies"]
# Counted on GPU rows, which graph-level traces do not have for what is inside graphs.
_INSIDE_GRAPHS = ("copies_per_step", "pageable_copies_per_step", "gpu_ops_in_graphs")


class _Base(msgspec.Struct, frozen=True, kw_only=True):
    """Frozen, keyword-only."""


class Side(_Base, frozen=True):
    """One of the two: where it comes from, over how many steps and processes."""

    name: str
    key: Key
    source: Literal["kineto", "nsys"] | None
    steps: int
    runs: int


class Row(_Base, frozen=True):
    """A metric on both sides; null where a side does not know it.

    `change` is "varies" for what is neither better nor worse: figures with the profiler on, which
    differ between runs of one code, and graph launches that take the place of more launches.
    """

    metric: str
    base: float | None
    new: float | None
    change: Change


class IdleRow(_Base, frozen=True):
    """Idle time a step by cause, ns, as recorded."""

    cause: str
    base_ns: float
    new_ns: float


class WaitRow(_Base, frozen=True):
    """Waits a step at one place, on either side; 0 where there are none."""

    call: str
    site: Site | None
    base: float
    new: float


class StepTimes(_Base, frozen=True):
    """What unprofiled processes say: slower, faster, neither by 5 %, or not enough to tell."""

    verdict: Literal["slower", "faster", "alike", "inconclusive"]
    times: Times


class Comparison(_Base, frozen=True):
    """Two sides. `step_time` is null without unprofiled runs on both, with the reason in notes."""

    schema: str
    tool: Tool
    base: Side
    new: Side
    rows: list[Row]
    idle: list[IdleRow]
    waits: list[WaitRow]
    step_time: StepTimes | None
    notes: list[str]


def compare(
    base: Subject, new: Subject, *, step_class: str | None = None, allow_mismatch: bool = False
) -> Comparison:
    """Put two sides side by side.

    Args:
        base, new: the sides.
        step_class: a regular expression for the class of steps; each side's main one otherwise.
        allow_mismatch: compare across GPUs, versions and workloads.

    Raises:
        ConfigError: such a comparison without `allow_mismatch`, no trace and no runs in common, or
            a trace that supports no verdict.
    """
    notes: list[str] = []
    old, old_step = _counted(base, step_class)
    now, now_step = _counted(new, step_class)
    old_key, now_key = base.key(old_step), new.key(now_step)
    _refuse(old_key, now_key, allow_mismatch, notes)
    rows: list[Row] = []
    idle: list[IdleRow] = []
    waits: list[WaitRow] = []
    if old is not None and now is not None:
        alike = old.trace.source == now.trace.source
        if not alike:
            notes.append("a torch.profiler and an Nsight trace: counts are compared, times are not")
        steps = old_step is not None and now_step is not None
        rows = _rows(old, old_step, now, now_step, times=alike, steps=steps)
        if not steps:
            notes.append("no figures per step: a trace has no steps (--step-marker)")
        idle = _idle(old, now) if alike and steps else []
        waits = _waits(old, now) if alike and steps else []
    step_time = _step_time(base, new, allow_mismatch, notes)
    if not rows and step_time is None:
        raise ConfigError(f"{base.name} and {new.name} have nothing in common to compare")
    return Comparison(
        schema=SCHEMA,
        tool=Tool(name="hostgap", version=__version__),
        base=_side(base, old_key, old_step),
        new=_side(new, now_key, now_step),
        rows=rows,
        idle=idle,
        waits=waits,
        step_time=step_time,
        notes=notes,
    )


def _counted(side: Subject, step_class: str | None) -> tuple[Diagnosis | None, StepClass | None]:
    diagnosis = side.diagnosis
    if diagnosis is None:
        return None, None
    return diagnosis, choose_class(diagnosis, step_class)


def _refuse(old: Key, now: Key, allow_mismatch: bool, notes: list[str]) -> None:
    names = {"gpu": "the GPU", "torch": "torch's version", "cuda": "CUDA's version"}
    for name, said in names.items():
        one, other = getattr(old, name), getattr(now, name)
        if not (one and other):
            which = "either side" if one == other else "one side"
            notes.append(f"{said} is not known for {which}: compared all the same")
        elif one != other:
            if not allow_mismatch:
                raise ConfigError(
                    f"{told(old)} against {told(now)}: counts and times differ for that alone",
                    "--allow-mismatch compares all the same",
                )
            notes.append(f"{said} differs: {one} against {other}")
    if old.step_class != now.step_class:
        notes.append(f"steps of {old.step_class!r} against {now.step_class!r} (--step-class)")


def _side(side: Subject, key: Key, step: StepClass | None) -> Side:
    return Side(
        name=side.name,
        key=key,
        source=side.diagnosis.trace.source if side.diagnosis else None,
        steps=len(step.steps) if step else 0,
        runs=len(side.runs),
    )


def _rows(
    old: Diagnosis,
    old_step: StepClass | None,
    now: Diagnosis,
    now_step: StepClass | None,
    *,
    times: bool,
    steps: bool,
) -> list[Row]:
    unseen = whole_graphs(old) != whole_graphs(now)
    rows = []
    for metric in METRICS.values():
        if metric.kind == "step time" or (metric.kind == "traced time" and not times):
            continue
        if not times and metric.kind == "share" and metric.name != "gpu_ops_in_graphs":
            continue
        if not steps and metric.name.endswith("_per_step"):
            continue
        if unseen and metric.name in _INSIDE_GRAPHS:
            continue
        before = metric.value(old, old_step or old.steps.classes[0]) if old.steps.classes else None
        after = metric.value(now, now_step or now.steps.classes[0]) if now.steps.classes else None
        rows.append(
            Row(metric=metric.name, base=before, new=after, change=_change(metric, before, after))
        )
    return [_captured(row, rows) for row in rows]


def _captured(row: Row, rows: list[Row]) -> Row:
    """Graph launches that take the place of more launches are not worse."""
    launches = next((other for other in rows if other.metric == "launches_per_step"), None)
    if row.metric != "graph_launches_per_step" or row.change != "worse" or launches is None:
        return row
    if (launches.base or 0.0) - (launches.new or 0.0) > (row.new or 0.0) - (row.base or 0.0):
        return msgspec.structs.replace(row, change="varies")
    return row


def _change(metric: Metric, before: float | None, after: float | None) -> Change:
    if before is None or after is None or abs(before - after) < 1e-6:
        return "same"
    if metric.kind != "count" and metric.name != "gpu_ops_in_graphs":
        return "varies"
    return "worse" if (after > before) == (metric.worse == "higher") else "better"


def _idle(old: Diagnosis, now: Diagnosis) -> list[IdleRow]:
    sides = []
    for diagnosis in (old, now):
        n = max(1, diagnosis.steps.count) * max(1, len(diagnosis.devices))
        by_cause: dict[str, float] = {}
        for device in diagnosis.devices:
            for cause, ns in device.idle_by_cause.items():
                by_cause[cause] = by_cause.get(cause, 0.0) + ns / n
        sides.append(by_cause)
    before, after = sides
    rows = [
        IdleRow(cause=cause, base_ns=before.get(cause, 0.0), new_ns=after.get(cause, 0.0))
        for cause in dict.fromkeys([*before, *after])
    ]
    return sorted(rows, key=lambda row: -abs(row.new_ns - row.base_ns))


def _waits(old: Diagnosis, now: Diagnosis) -> list[WaitRow]:
    """Places whose waits are not the same on both sides, the new ones first."""
    rows: list[WaitRow] = []
    for diagnosis, column in ((old, "base"), (now, "new")):
        n = max(1, diagnosis.steps.count)
        for sync in diagnosis.syncs:
            if not (sync.count and is_sync(sync)):
                continue
            more = sync.count / n
            for i, row in enumerate(rows):
                if row.call == sync.call and same_place(row.site, sync.site):
                    value = getattr(row, column) + more
                    rows[i] = msgspec.structs.replace(row, **{column: value})
                    break
            else:
                values = {"base": 0.0, "new": 0.0} | {column: more}
                rows.append(WaitRow(call=sync.call, site=sync.site, **values))
    changed = [row for row in rows if abs(row.new - row.base) > 1e-6]
    return sorted(changed, key=lambda row: row.base - row.new)


def _step_time(
    base: Subject, new: Subject, allow_mismatch: bool, notes: list[str]
) -> StepTimes | None:
    if not base.runs and not new.runs:
        return None
    if not base.runs or not new.runs:
        side = base if not base.runs else new
        notes.append(f"{side.name} has no unprofiled runs: the step's time is not compared")
        return None
    differences = unlike(base.runs[0], new.runs[0])
    if differences and not allow_mismatch:
        raise ConfigError(
            f"{base.name} and {new.name} differ in {', '.join(differences)}",
            "--allow-mismatch compares all the same",
        )
    slower = decide(base.times_ns, new.times_ns, LIMIT)
    faster = decide(new.times_ns, base.times_ns, LIMIT)
    verdict: Literal["slower", "faster", "alike", "inconclusive"] = "inconclusive"
    if slower.outcome == "failed":
        verdict = "slower"
    elif faster.outcome == "failed":
        verdict = "faster"
    elif slower.outcome == faster.outcome == "passed":
        verdict = "alike"
    if min(len(base.runs), len(new.runs)) < FEWEST:
        notes.append(f"fewer than {FEWEST} processes a side: the step's time is only indicative")
    needed = [n for n in (slower.runs_needed, faster.runs_needed) if n is not None]
    times = Times(
        base_ns=base.times_ns,
        new_ns=new.times_ns,
        ratio=slower.ratio,
        low=slower.low,
        high=slower.high,
        spread=slower.spread,
        p=slower.p,
        runs_needed=max(needed) if needed and verdict == "inconclusive" else None,
    )
    return StepTimes(verdict=verdict, times=times)
