"""What one rank does more of than others, once their hosts' paces are the same.

Hosts do the same work but for what holds the straggler up, each at its own pace: a recorder slows
one host more than another, by up to a quarter in recordings of ranks that do the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hostgap.analysis.causes import Cause
from hostgap.diagnosis.model import Site
from hostgap.ranks.work import WAITING, Work

COPIES = "copies"
GPU_WORK = "gpu-work"
SLOWER_HOST = "slower-host"  # at everything
PLACED = 0.5  # of the most that it does more of in all, for what it does at one place to be it
PACED = 4  # places that all ranks have, from which on a pace can be told from work at one of them
PACED_SHARE = 0.005  # of a host's time that each of those takes, at least
ALIKE = 1.3  # by how much a place in the middle half may differ from the pace of all
_UNPACED = (*WAITING, Cause.PROFILER, Cause.GC, Cause.UNTRACED, Cause.UNATTRIBUTABLE)


@dataclass(frozen=True, slots=True)
class Excess:
    """What one rank does more of than others: its name, where, and ns a step.

    `pace` is what share longer its host takes for the same than theirs, as recorded.
    """

    what: str
    site: Site | None
    ns: float
    pace: float = 0.0


def excess(mine: Work, others: Sequence[Work], late_ns: float | None = None) -> Excess | None:
    """What a rank does more of in a step than the others in the middle, and most.

    Args:
        mine: of the rank.
        others: at least one.
        late_ns: by how much its host falls behind theirs in a step without a profiler, where that
            is known. What does not explain half of it is not the cause.

    Returns:
        None where it does nothing more than they do, or nothing that explains it.
    """
    paces = [_pace(mine, other) for other in others]
    pace = float(np.median(paces)) - 1
    totals = [Excess(GPU_WORK, None, gpu_excess(mine, others), pace)]
    places: list[Excess] = []
    even = [1.0] * len(others)
    copied = _by_place(mine.copies, [one.copies for one in others], mine, others, even)
    if copied:
        total = sum(mine.copies.values()) / mine.steps - _middle(
            [sum(one.copies.values()) for one in others], others, even
        )
        totals.append(Excess(COPIES, max(copied, key=lambda each: copied[each]), total, pace))
    for cause in sorted({cause for cause, _ in mine.host} - {Cause.PROFILER}):
        own, theirs = _of_cause(mine, cause, others), [_of_cause(one, cause) for one in others]
        scales = even if cause in WAITING else paces
        by_place = _by_place(own, theirs, mine, others, scales)
        site = max(by_place, key=lambda each: by_place[each])
        if site is not None:
            places.append(Excess(cause.label, site, by_place[site], pace))
        if cause not in WAITING:
            total = sum(own.values()) / mine.steps - _middle(
                [sum(one.values()) for one in theirs], others, scales
            )
            totals.append(Excess(cause.label, site, total, pace))
    best = max(totals, key=lambda each: each.ns)
    if best.what != GPU_WORK and places:
        # A host that is slower altogether is so everywhere. What is done at one place explains more
        # than the noise of all others; a copy of pageable memory holds its host at one as well.
        placed = max(places, key=lambda each: each.ns)
        best = placed if placed.ns >= PLACED * best.ns else best
    slower = Excess(SLOWER_HOST, None, _slower_ns(mine, paces), pace)
    if best.ns < PLACED * (slower.ns if late_ns is None else late_ns):
        best = slower
    return best if best.ns > PLACED * (late_ns or 0.0) else None


def gpu_excess(mine: Work, others: Sequence[Work]) -> float:
    """How much longer a rank's kernels run in a step than the others' in the middle, ns."""
    even = [1.0] * len(others)
    return mine.kernel_ns / mine.steps - _middle([one.kernel_ns for one in others], others, even)


def _pace(mine: Work, other: Work) -> float:
    """How much longer a host takes than another for what both do: the ratio at the place in the
    middle. Work that only one of them has is at few places, and does not move it.

    1 where the ratios have no middle to speak of: those hosts do not do the same.
    """
    ratios = [
        (ns / mine.steps) / (other.host[place] / other.steps)
        for place, ns in mine.host.items()
        if place[0] not in _UNPACED and place[1] is not None
        if ns >= PACED_SHARE * _paced(mine) and other.host.get(place, 0) > 0
    ]
    if len(ratios) < PACED:
        return 1.0
    low, pace, high = (float(ratio) for ratio in np.percentile(ratios, (25, 50, 75)))
    return pace if high <= ALIKE * pace and pace <= ALIKE * low else 1.0


def _paced(work: Work) -> int:
    return sum(ns for (cause, _), ns in work.host.items() if cause not in _UNPACED)


def _slower_ns(mine: Work, paces: Sequence[float]) -> float:
    """What a host's pace alone makes its step longer, as recorded, ns."""
    return _paced(mine) / mine.steps * (1 - 1 / float(np.median(paces)))


def _of_cause(
    work: Work, cause: Cause, others: Sequence[Work] | None = None
) -> dict[Site | None, int]:
    """Place -> time of a cause. Of waits at places of which others have any, what lies beside no
    kernel: the rest may be a wait for the GPU.

    Args:
        work: of a rank.
        cause: which.
        others: of the ranks that it is held against; None for one of those.
    """
    found = {}
    for (of, site), ns in work.host.items():
        if of is cause:
            shared = others is None or any((cause, site) in other.host for other in others)
            found[site] = ns - (work.beside.get((of, site), 0) if shared else 0)
    return found


def _middle(totals: Sequence[int], others: Sequence[Work], paces: Sequence[float]) -> float:
    """The others' time in a step in the middle, each at the pace of who is held against them."""
    each = zip(totals, others, paces, strict=True)
    return float(np.median([ns / other.steps * pace for ns, other, pace in each]))


def _by_place(
    own: Mapping[Site | None, int],
    theirs: Sequence[Mapping[Site | None, int]],
    mine: Work,
    others: Sequence[Work],
    paces: Sequence[float],
) -> dict[Site | None, float]:
    """Place -> ns a step that it takes longer there than the others in the middle."""
    return {
        site: ns / mine.steps - _middle([one.get(site, 0) for one in theirs], others, paces)
        for site, ns in own.items()
    }
