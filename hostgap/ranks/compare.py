"""Ranks held against each other: who waits, for whom, and what holds that one up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hostgap.analysis.causes import Cause
from hostgap.diagnosis.model import Site
from hostgap.diagnosis.ranks import RANK_SAMPLES
from hostgap.output.summary import main_device
from hostgap.ranks.align import Team, teams
from hostgap.ranks.arrivals import Arrivals
from hostgap.ranks.job import WaitCost
from hostgap.ranks.model import CollectiveSummary, RankDiagnosis, Straggler
from hostgap.ranks.work import GPU_WORK, Excess, Work, excess
from hostgap.trace.model import Int64

CLEAR_SHARE = 0.6  # of the waits that one rank must cause to be the straggler
CLEAR_WAIT = 0.01  # share of the window that those waits must take
CLEAR_COST = 0.02  # share of the step that the waits must cost, or that it does more of something


@dataclass(slots=True)
class Waiting:
    """What one rank waits, and has others wait; ns over the collectives in its window.

    `rows` are those of gpu_ops of all its collectives, and `waits` what it waits in each.
    """

    wait_ns: int = 0
    exposed_ns: int = 0
    caused_ns: int = 0
    last: int = 0
    compared: int = 0
    rows: list[Int64] = field(default_factory=list)
    waits: list[Int64] = field(default_factory=list)


@dataclass(slots=True)
class _Late:
    """Collectives that one rank was the last to start, and its time before them beyond others'."""

    excess_ns: int = 0
    idle_ns: int = 0
    by_cause: Int64 | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """All ranks against all.

    Attributes:
        waiting: index of a rank -> what it waits; only ranks that share collectives with others.
        collectives: a line per kernel and team, what was waited most in first.
        late: index of a rank -> what it did before the collectives that it was last at.
    """

    waiting: dict[int, Waiting]
    collectives: list[CollectiveSummary]
    late: dict[int, _Late]


def compare(arrivals: Mapping[int, Arrivals], labels: Mapping[int, str]) -> Comparison:
    """Hold the collectives of ranks against each other.

    Args:
        arrivals: index of a rank -> its collectives.
        labels: index of a rank -> its name.
    """
    waiting: dict[int, Waiting] = {}
    late: dict[int, _Late] = {}
    lines = []
    for team in teams(arrivals):
        _add_team(team, arrivals, waiting, late)
        middle = np.median(team.end, axis=0)
        lines.append(
            CollectiveSummary(
                kernel=team.kernel,
                labels=[labels[rank] for rank in team.ranks],
                count=team.start.shape[1],
                wait_ns=int(team.waits.sum()),
                spread_ns=round(float(np.median(np.abs(team.end - middle)))),
            )
        )
    lines.sort(key=lambda line: (-line.wait_ns, line.kernel))
    return Comparison(waiting, lines, late)


def _add_team(
    team: Team,
    arrivals: Mapping[int, Arrivals],
    waiting: dict[int, Waiting],
    late: dict[int, _Late],
) -> None:
    waits = team.waits
    last = np.argmax(team.start, axis=0)
    ordered = np.sort(team.start, axis=0)
    delay = ordered[-1] - ordered[-2]  # that the others would have been spared
    delay[~team.together] = 0
    lines = list(enumerate(team.ranks))
    before = np.stack([arrivals[rank].before_ns[team.rows[at]] for at, rank in lines])
    idle = np.stack([arrivals[rank].idle_ns[team.rows[at]] for at, rank in lines])
    for at, rank in lines:
        mine, rows = arrivals[rank], team.rows[at]
        counted = mine.counted[rows]
        is_last = (last == at) & counted & (delay > 0)
        one = waiting.setdefault(rank, Waiting())
        one.rows.append(mine.row[rows])
        one.waits.append(waits[at])
        one.wait_ns += int(waits[at][counted].sum())
        beside = np.maximum(waits[at] - mine.covered_ns[rows], 0)
        one.exposed_ns += int(beside[counted].sum())
        one.caused_ns += int(delay[is_last].sum())
        one.last += int(np.count_nonzero(is_last))
        one.compared += int(np.count_nonzero(counted))
        if not is_last.any():
            continue
        others = np.arange(len(team.ranks)) != at
        more = before[at] - np.median(before[others], axis=0)
        more_idle = idle[at] - np.median(idle[others], axis=0)
        sums = late.setdefault(rank, _Late(by_cause=np.zeros(len(Cause), np.int64)))
        sums.excess_ns += round(float(more[is_last].sum()))
        sums.idle_ns += round(float(more_idle[is_last].sum()))
        known = is_last & (mine.cause[rows] >= 0)
        assert sums.by_cause is not None
        np.add.at(
            sums.by_cause,
            mine.cause[rows][known],
            np.rint(np.maximum(more_idle[known], 0)).astype(np.int64),
        )


def straggler(
    comparison: Comparison,
    ranks: Mapping[int, RankDiagnosis],
    windows: Sequence[int],
    works: Mapping[int, Work],
    cost: WaitCost | None,
) -> Straggler | None:
    """The rank that causes most of the waits; None where none is waited for.

    Args:
        comparison: of the ranks.
        ranks: index of a rank -> its diagnosis.
        windows: of the ranks, ns.
        works: index of a rank -> what it does in its window.
        cost: of the waits, to the rank that waits most; None where that is not known.
    """
    caused = {index: one.caused_ns for index, one in comparison.waiting.items()}
    total = sum(caused.values())
    if total == 0:
        return None
    worst = max(caused, key=lambda index: (caused[index], -index))
    one, late, who = comparison.waiting[worst], comparison.late[worst], ranks[worst]
    share = caused[worst] / total
    work = late.excess_ns - late.idle_ns
    others = [works[index] for index in comparison.waiting if index != worst and index in works]
    more = excess(works[worst], others) if worst in works and others else None
    if more is None:
        cause = _idle_cause(late, work)
        more = Excess(cause, _site(who, cause), 0.0)
    clear = (
        share >= CLEAR_SHARE
        and one.last >= RANK_SAMPLES
        and caused[worst] >= CLEAR_WAIT * float(np.median(windows))
        and _matters(more, cost, who)
    )
    return Straggler(
        rank=who.rank,
        label=who.label,
        clear=clear,
        share=share,
        last=one.last,
        collectives=one.compared,
        caused_wait_ns=caused[worst],
        excess_ns=late.excess_ns,
        idle_excess_ns=late.idle_ns,
        work_excess_ns=work,
        cause=more.what,
        cause_excess_ns=round(more.ns),
        site=more.site,
    )


def _matters(more: Excess, cost: WaitCost | None, who: RankDiagnosis) -> bool:
    """Whether a straggler's lateness costs its job more than chance would; yes if nobody knows.

    Ranks with equally slow hosts may wait for one another all the time, and lose nothing by it.
    """
    shares = [cost.ns / cost.step_ns] if cost is not None and cost.step_ns else []
    step_ns = who.figures.step_ns if who.figures is not None else None
    if more.ns > 0 and step_ns:
        shares.append(more.ns / step_ns)
    return not shares or max(shares) >= CLEAR_COST


def _idle_cause(late: _Late, work_ns: int) -> str:
    """What holds a rank up by its idle time alone, where nothing is known of what its host does."""
    assert late.by_cause is not None
    if late.idle_ns >= work_ns and late.by_cause.any():
        return Cause(int(late.by_cause.argmax())).label
    return GPU_WORK


def _site(who: RankDiagnosis, cause: str) -> Site | None:
    """Where a rank's GPU idles most for a cause."""
    device = main_device(who.diagnosis) if who.diagnosis is not None else None
    places = [idle for idle in device.idle_sites if cause in idle.by_cause] if device else []
    best = max(places, key=lambda idle: idle.by_cause[cause], default=None)
    return best.site if best is not None else None
