"""HG701 rank-wait: a collective waits for a rank that comes late.

## What it sees
A collective's kernel spins until the last rank has started its own. Where the trace holds several
GPUs that run the same collectives, the wait is the time from the own start to the last one's.
With one rank it is an estimate: at most what a collective takes beyond the 5th percentile of its
name, at least what it takes beyond its fastest step, at the same position in the step.

## Why it costs
The GPU looks busy and does nothing. All ranks run at the pace of the slowest one.

## Example
    if rank == 0:
        metrics.write(loss.item())            # seven others wait in the next all-reduce

## Use instead
    if step % 100 == 0 and rank == 0:
        metrics.write(loss.item())

Find the rank that comes late (HG702 in a trace of several, else the rank whose collectives are
the shortest) and what its host does; balance the work between ranks.

## Options
None.

## Sources
HolisticTraceAnalysis; a public Megatron trace: a rank 98 % busy, and 21 % without its
all-reduces."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from hostgap.analysis.edit import Edit
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.ranks import RANK_SAMPLES, arrivals, collectives_of, ranks
from hostgap.diagnosis.rule import Match, Need, Rule
from hostgap.trace.model import Int64

FEWEST = 3  # steps of which one is the fastest
# What a demangled name has around the function's: return type, namespaces, parameters.
_FORM = re.compile(r"^void |\(anonymous namespace\)::|(?:<|\((?!anonymous)).*$")


class RankWait(Rule):
    """Collectives take longer than they need, as a rank comes late."""

    code = "HG701"
    name = "rank-wait"
    title = "A collective waits for a late rank"
    advice = "Find the rank that comes late, and what holds its host up; balance the ranks."
    needs = (Need.API_CALLS, Need.RANKS)

    def find(self, context: Context, options: object) -> Iterator[Match]:
        """The waits of the window's collectives, by kernel."""
        gpu = context.trace.gpu_ops
        length = gpu.end - gpu.start
        for name in np.unique(gpu.name[context.collective & context.ops]).tolist():
            mine = collectives_of(context, context.code, name)
            mine = mine[context.ops[mine]]
            if name in arrivals(context):
                # of each rank and collective: from its own start to the last rank's
                table = arrivals(context)[name]
                waits = np.clip(gpu.start[table].max(axis=0) - gpu.start[table], 0, length[table])
                rank = int(waits.sum(axis=1).argmax())
                said = f"GPU {context.trace.devices[ranks(context)[rank]]} waits"
                said += " {:,.0f} us a step for it"
                shown, most = table[rank], waits[rank]
                own = ranks(context).index(context.code) if context.code in ranks(context) else rank
                mine, least = table[own], waits[own]  # it is this device that is replayed
            elif len(mine) >= RANK_SAMPLES:
                said = "{:,.0f} us a step beyond its own cost, at most"
                shown, each = mine, length[mine]
                most = np.maximum(each - np.percentile(each, 5).astype(np.int64), 0)
                least = _over_fastest_step(context, mine, each)
            else:
                continue
            if most.any():
                left = zip(mine.tolist(), (length[mine] - least).tolist(), strict=True)
                kernel = _FORM.sub("", context.trace.names[name]) or context.trace.names[name]
                yield Match(
                    calls=np.unique(gpu.call[shown][gpu.call[shown] >= 0]).astype(np.int64),
                    edit=Edit(length=dict(left)),
                    count=len(shown),
                    title=f"{self.title}: {kernel}, "
                    + said.format(int(most.sum()) / context.steps / 1e3),
                )


def _over_fastest_step(context: Context, rows: Int64, length: Int64) -> Int64:
    """What each takes beyond its like in the step in which that took least; 0 if steps differ.

    One name stands for collectives of all sizes: only those at one position of a step are alike.
    """
    step = context.analysis.steps.op_step[rows]
    order = np.argsort(step, kind="stable")
    steps, each = np.unique(step, return_counts=True)
    over = np.zeros(len(rows), np.int64)
    if len(steps) >= FEWEST and (each == each[0]).all():
        by_step = length[order].reshape(len(steps), -1)
        over[order] = (by_step - by_step.min(axis=0)).ravel()
    return over
