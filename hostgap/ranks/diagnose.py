"""`diagnose_set`: from several traces to one result."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

import hostgap
from hostgap.analysis.examine import Options
from hostgap.diagnosis.judge import Judging
from hostgap.diagnosis.model import Tool
from hostgap.errors import TraceError
from hostgap.profiling.measurement import Waits
from hostgap.ranks.compare import Comparison, compare
from hostgap.ranks.engines import Engine, Local
from hostgap.ranks.inputs import Inputs, find_inputs
from hostgap.ranks.job import Job, Outcome, WaitCost
from hostgap.ranks.model import SCHEMA, DiagnosisSet, RankDiagnosis
from hostgap.ranks.names import resolved
from hostgap.ranks.summary import figures, summarize

_FRONTEND = "HG914"
LARGEST_REPLAYED = 256 << 20  # bytes of a trace that is read again to see what its waits cost
_NUMBER = re.compile(r"(\d+)")


def diagnose_set(
    inputs: Inputs | Iterable[str],
    options: Options | None = None,
    judging: Judging | None = None,
    *,
    engine: Engine | None = None,
    progress: Callable[[int, Outcome], None] | None = None,
) -> DiagnosisSet:
    """Diagnose several traces, and hold those of one job's ranks against each other.

    Args:
        inputs: paths, folders, patterns and URLs, or what `find_inputs` made of them.
        options: the window, steps and device to look at, of each trace.
        judging: which rules to run and by what thresholds.
        engine: where to run; a pool of processes on this machine by default.
        progress: called with the bytes of each trace and what became of it, when it is done.

    Raises:
        HostgapError: there is no trace, or none could be read; the engine does not work.
    """
    if not isinstance(inputs, Inputs):
        inputs = find_inputs(inputs)
    options, judging = options or Options(), judging or Judging()
    traces = inputs.traces
    jobs = [
        Job(index, one.name, one.size, options, judging)
        for index, one in enumerate(traces)
        if one.said.role != "frontend"  # it has no GPU work to look at
    ]
    outcomes: dict[int, Outcome] = {}
    others: list[int] = []
    engine = engine or Local()
    for outcome in engine.outcomes(jobs):
        one = traces[outcome.index]
        if progress is not None:
            progress(one.size, outcome)
        if outcome.other and one.listed and one.said.rank is None:
            others.append(outcome.index)  # what else lies in the folder
        else:
            outcomes[outcome.index] = outcome
    if others and outcomes:
        notes = (
            *inputs.notes,
            *(f"{traces[at].name}: left out: no trace" for at in sorted(others)),
        )
        inputs = replace(inputs, notes=notes)
    failed = [one for one in outcomes.values() if one.diagnosis is None]
    if len(failed) == len(outcomes):
        if others:
            raise TraceError(f"{traces[others[0]].name}: no trace, as all files found are")
        if not failed:
            raise TraceError(
                f"{traces[0].name}: a frontend's trace, without the GPU",
                "analyse the traces of the workers",
            )
        first = min(failed, key=lambda one: one.index)
        if first.internal:
            raise RuntimeError(first.error)
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise TraceError(f"{first.error}{more}", first.hint)
    return _set(inputs, outcomes, set(others), {job.index: job for job in jobs}, engine)


def _set(
    inputs: Inputs,
    outcomes: dict[int, Outcome],
    others: set[int],
    jobs: Mapping[int, Job],
    engine: Engine,
) -> DiagnosisSet:
    """Everything from the outcomes of the jobs, but for inputs that are no trace."""
    traces = inputs.traces
    roles = {index: _role(inputs, index, outcomes.get(index)) for index in range(len(traces))}
    workers = [index for index in outcomes if roles[index] == "worker"]
    workers.sort()
    numbers, why = resolved(
        [outcomes[index].rank for index in workers], [traces[index].said.rank for index in workers]
    )
    rank_of = dict(zip(workers, numbers, strict=True))
    labels = _labels(inputs, rank_of)
    arrivals = {
        index: found
        for index in workers
        if (found := outcomes[index].arrivals) is not None and outcomes[index].diagnosis is not None
    }
    if why is None and len(workers) < 2:
        why = "there is only one rank"
    elif why is None and len(arrivals) < 2:
        why = "fewer than two ranks run collectives"
    comparison = compare(arrivals, labels) if why is None else None
    if comparison is not None and not comparison.waiting:
        comparison, why = None, "no two ranks run the same collectives at the same times"
    untraced = _untraced(comparison, outcomes) if comparison is not None else {}
    ranks = {}
    for index, one in enumerate(traces):
        if index in others:
            continue
        outcome = outcomes.get(index)
        diagnosis = outcome.diagnosis if outcome is not None else None
        waiting = comparison.waiting.get(index) if comparison is not None else None
        ranks[index] = RankDiagnosis(
            rank=rank_of.get(index),
            label=labels[index],
            file=one.name,
            role=roles[index],
            status=_status(outcome),
            error=outcome.error if outcome is not None else None,
            figures=figures(diagnosis, arrivals.get(index), waiting, untraced.get(index))
            if diagnosis
            else None,
            diagnosis=diagnosis,
        )
    return DiagnosisSet(
        schema=SCHEMA,
        tool=Tool(name="hostgap", version=hostgap.__version__),
        ranks=sorted(ranks.values(), key=_order),
        summary=summarize(
            ranks,
            comparison,
            why,
            (*inputs.notes, *_notes(outcomes, labels), *_otherwise(outcomes, rank_of)),
            {at: one.work for at, one in outcomes.items() if one.work is not None},
            _cost(comparison, jobs, engine) if comparison is not None else None,
            untraced,
        ),
    )


def _notes(outcomes: Mapping[int, Outcome], labels: Mapping[int, str]) -> list[str]:
    return [f"{labels[at]}: {one.note}" for at, one in sorted(outcomes.items()) if one.note]


def _otherwise(outcomes: Mapping[int, Outcome], rank_of: Mapping[int, int | None]) -> Iterator[str]:
    """That ranks are those of the files' names, where the traces say others."""
    said = {at: outcomes[at].rank for at in rank_of if outcomes[at].rank is not None}
    if any(said[at] != rank_of[at] for at in said):
        ranks = ", ".join(str(rank) for _, rank in sorted(said.items())[:8])
        yield f"ranks are as the files' names say; the traces say of themselves: {ranks}"


def _untraced(comparison: Comparison, outcomes: Mapping[int, Outcome]) -> dict[int, Waits]:
    """Index of a rank -> what it waits without a profiler; of all that are compared, or none."""
    found = {
        index: waits
        for index in comparison.waiting
        if (waits := outcomes[index].untraced) is not None
    }
    return found if len(found) == len(comparison.waiting) else {}


def _cost(comparison: Comparison, jobs: Mapping[int, Job], engine: Engine) -> WaitCost | None:
    """What the waits cost the rank that waits most, whose trace is read again for that.

    One is enough: ranks that wait for one another have steps of one length.
    """
    waiting = comparison.waiting
    most = max(waiting, key=lambda index: (waiting[index].exposed_ns, -index))
    one = waiting[most]
    if one.exposed_ns == 0 or jobs[most].size > LARGEST_REPLAYED:
        return None
    waits = np.concatenate(one.rows), np.concatenate(one.waits)
    return next(iter(engine.outcomes([replace(jobs[most], waits=waits)]))).cost


def _role(inputs: Inputs, index: int, outcome: Outcome | None) -> Literal["worker", "frontend"]:
    if inputs.traces[index].said.role == "frontend":
        return "frontend"
    diagnosis = outcome.diagnosis if outcome is not None else None
    reasons = diagnosis.trace.integrity.reasons if diagnosis is not None else []
    return "frontend" if any(reason.code == _FRONTEND for reason in reasons) else "worker"


def _status(
    outcome: Outcome | None,
) -> Literal["ok", "partial", "unmeasurable", "failed", "not read"]:
    if outcome is None:
        return "not read"
    if outcome.diagnosis is None:
        return "failed"
    if outcome.diagnosis.verdict == "unmeasurable":
        return "unmeasurable"
    return outcome.diagnosis.trace.integrity.verdict


def _labels(inputs: Inputs, rank_of: dict[int, int | None]) -> dict[int, str]:
    """A name for each trace, no two alike: what its file's name says, its rank, or the file."""
    labels = {}
    for index, one in enumerate(inputs.traces):
        rank = rank_of.get(index)
        file = one.name.replace("\\", "/").rstrip("/").rpartition("/")[2]
        label = one.said.label
        if rank is not None and (label == file or one.said.rank not in (None, rank)):
            label = f"rank {rank}"  # a name that says another is wrong
        labels[index] = label[:200]
    for index, one in enumerate(inputs.traces):
        if sum(label == labels[index] for label in labels.values()) > 1:
            file = one.name.replace("\\", "/").rstrip("/").rpartition("/")[2]
            labels[index] = f"{labels[index]} ({file[:150]})" if labels[index] != file else one.name
    return labels


def _order(one: RankDiagnosis) -> tuple[object, ...]:
    """Ranks by number, then the others by label, numbers in it as numbers; front ends last."""
    natural = tuple(
        (0, int(p), "") if p.isdecimal() else (1, 0, p) for p in _NUMBER.split(one.label)
    )
    return (one.role != "worker", one.rank is None, one.rank or 0, natural, one.file)
