"""The rank that the others wait for, and what holds it up.

Who that is says what was measured without a profiler, where ranks were run by hostgap: a recording
slows one host more than another, and shows stragglers that are none. It then only says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hostgap.analysis.causes import Cause
from hostgap.diagnosis.model import Site
from hostgap.diagnosis.ranks import RANK_SAMPLES
from hostgap.output.summary import main_device
from hostgap.profiling.measurement import Waits
from hostgap.ranks.compare import Comparison, Late
from hostgap.ranks.excess import GPU_WORK, SLOWER_HOST, Excess, excess, gpu_excess
from hostgap.ranks.job import WaitCost
from hostgap.ranks.model import RankDiagnosis, Straggler
from hostgap.ranks.work import Work

CLEAR_SHARE = 0.6  # of the waits that one rank must cause to be the straggler
CLEAR_WAIT = 0.01  # share of the window that those waits must take
CLEAR_COST = 0.02  # share of the step that the waits must cost, or that it does more of something
# Of a host that is slower at everything. Processes that do the same on one machine differ by some
# percent by chance: recorded ones by up to 27, and one of two by 31 without a recorder, half a
# minute before they were even. So what nothing explains is never clear.
CLEAR_SLOWER = 0.1  # share of the step
CLEAR_PACE = 0.3  # as recorded, where nobody knows how it is without a recorder
UNEXPLAINED = Cause.UNATTRIBUTABLE.label


def straggler(
    comparison: Comparison,
    ranks: Mapping[int, RankDiagnosis],
    windows: Sequence[int],
    works: Mapping[int, Work],
    cost: WaitCost | None,
    untraced: Mapping[int, Waits] | None = None,
) -> Straggler | None:
    """The rank that causes most of the waits; None where none is waited for.

    Args:
        comparison: of the ranks.
        ranks: index of a rank -> its diagnosis.
        windows: of the ranks, ns.
        works: index of a rank -> what it does in its window.
        cost: of the waits, to the rank that waits most; None where that is not known.
        untraced: index of a rank -> what it waits without a profiler; of all of them, or none.
    """
    if untraced:
        return _untraced(comparison, ranks, windows, works, cost, untraced)
    caused = {index: one.caused_ns for index, one in comparison.waiting.items()}
    total = sum(caused.values())
    worst = max(caused, key=lambda index: (caused[index], -index))
    often = (
        caused[worst] >= CLEAR_SHARE * total
        and comparison.waiting[worst].last >= RANK_SAMPLES
        and caused[worst] >= CLEAR_WAIT * float(np.median(windows))
    )
    if total == 0:
        return None
    late, who = comparison.late[worst], ranks[worst]
    others = _others(worst, comparison, works)
    more = excess(works[worst], others) if worst in works and others else None
    if more is None:
        cause = _idle_cause(late, late.excess_ns - late.idle_ns)
        more = Excess(cause, _site(who, cause), 0.0)
    clear = often and _matters(more, cost, who)
    if more.what == SLOWER_HOST:
        clear = clear and more.pace >= CLEAR_PACE
    return _straggler(worst, comparison, who, more, clear, caused[worst] / total)


def _untraced(
    comparison: Comparison,
    ranks: Mapping[int, RankDiagnosis],
    windows: Sequence[int],
    works: Mapping[int, Work],
    cost: WaitCost | None,
    waits: Mapping[int, Waits],
) -> Straggler:
    """The rank whose host is late without a profiler, or else whose GPU works longer."""
    total = sum(one.caused.median_ns for one in waits.values())
    worst = max(waits, key=lambda at: (waits[at].late.median_ns, waits[at].caused.median_ns, -at))
    one = waits[worst]
    share = one.caused.median_ns / total if total > 0 else 0.0
    is_late = (
        share >= CLEAR_SHARE
        and one.late.low_ns > 0
        and one.late.median_ns >= CLEAR_COST * one.step_ns
    )
    slow = None if is_late else _slow_gpu(comparison, windows, works, cost, waits)
    if slow is not None:
        index, more = slow
        share = waits[index].caused.median_ns / total if total > 0 else 0.0
        return _straggler(index, comparison, ranks[index], more, True, share, waits[index])
    others = _others(worst, comparison, works)
    found = None
    if worst in works and others:
        found = excess(works[worst], others, max(one.late.median_ns, 0.0))
    more = found or Excess(UNEXPLAINED, None, 0.0)
    figures = ranks[worst].figures
    recorded_ns = figures.step_ns if figures is not None and figures.step_ns else 0
    # a recording lengthens host times, and by how much they differ from chance
    placed = more.what != SLOWER_HOST and more.ns >= CLEAR_COST * recorded_ns
    needs = CLEAR_COST if placed else CLEAR_SLOWER
    clear = is_late and found is not None and one.late.median_ns >= needs * one.step_ns
    return _straggler(worst, comparison, ranks[worst], more, clear, share, one)


def _slow_gpu(
    comparison: Comparison,
    windows: Sequence[int],
    works: Mapping[int, Work],
    cost: WaitCost | None,
    waits: Mapping[int, Waits],
) -> tuple[int, Excess] | None:
    """The rank whose kernels run longest, if the others wait for it; and how much longer.

    Where ranks meet within a graph, a slower GPU is not late when it comes there. A recording can
    be trusted in how long kernels run, and which rank starts a collective last in a graph.
    """
    longer = {
        index: gpu_excess(works[index], others)
        for index in comparison.waiting
        if index in works and (others := _others(index, comparison, works))
    }
    if not longer:
        return None
    slow = max(longer, key=lambda index: (longer[index], -index))
    one = comparison.waiting[slow]
    waited_for = (
        longer[slow] >= CLEAR_COST * waits[slow].step_ns
        and one.last >= RANK_SAMPLES
        and one.caused_ns >= CLEAR_WAIT * float(np.median(windows))
        and (cost is None or cost.ns >= CLEAR_COST * cost.step_ns)
    )
    return (slow, Excess(GPU_WORK, None, longer[slow])) if waited_for else None


def _straggler(
    index: int,
    comparison: Comparison,
    who: RankDiagnosis,
    more: Excess,
    clear: bool,
    share: float,
    waits: Waits | None = None,
) -> Straggler:
    late, one = comparison.late.get(index, Late()), comparison.waiting[index]
    return Straggler(
        rank=who.rank,
        label=who.label,
        clear=clear,
        share=share,
        last=one.last,
        collectives=one.compared,
        caused_wait_ns=one.caused_ns,
        excess_ns=late.excess_ns,
        idle_excess_ns=late.idle_ns,
        work_excess_ns=late.excess_ns - late.idle_ns,
        cause=more.what,
        cause_excess_ns=round(more.ns),
        site=more.site,
        pace=more.pace,
        late_ns=round(waits.late.median_ns) if waits is not None else None,
        late_low_ns=round(waits.late.low_ns) if waits is not None else None,
        late_high_ns=round(waits.late.high_ns) if waits is not None else None,
    )


def _others(index: int, comparison: Comparison, works: Mapping[int, Work]) -> list[Work]:
    return [works[other] for other in comparison.waiting if other != index and other in works]


def untraced_cost(waits: Mapping[int, Waits], late: Straggler | None) -> WaitCost:
    """What waits cost the rank that loses most by them, without a profiler: by the late host, or as
    much longer as the straggler's GPU works."""
    most = max(waits.values(), key=lambda one: one.lost.median_ns)
    lost = round(most.lost.median_ns)
    if late is not None and late.clear and late.cause == GPU_WORK:
        lost = max(lost, late.cause_excess_ns)
    return WaitCost(lost, round(most.step_ns))


def _matters(more: Excess, cost: WaitCost | None, who: RankDiagnosis) -> bool:
    """Whether a straggler's lateness costs its job more than chance would; yes if nobody knows.

    Ranks with equally slow hosts may wait for one another all the time, and lose nothing by it.
    """
    shares = [cost.ns / cost.step_ns] if cost is not None and cost.step_ns else []
    step_ns = who.figures.step_ns if who.figures is not None else None
    if more.ns > 0 and step_ns:
        shares.append(more.ns / step_ns)
    return not shares or max(shares) >= CLEAR_COST


def _idle_cause(late: Late, work_ns: int) -> str:
    """What holds a rank up by its idle time alone, where nothing is known of what its host does."""
    if late.idle_ns >= work_ns and late.by_cause.any():
        return Cause(int(late.by_cause.argmax())).label
    return GPU_WORK


def _site(who: RankDiagnosis, cause: str) -> Site | None:
    """Where a rank's GPU idles most for a cause."""
    device = main_device(who.diagnosis) if who.diagnosis is not None else None
    places = [idle for idle in device.idle_sites if cause in idle.by_cause] if device else []
    best = max(places, key=lambda idle: idle.by_cause[cause], default=None)
    return best.site if best is not None else None
