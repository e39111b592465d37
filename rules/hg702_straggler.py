"""HG702 straggler: one rank comes late to most collectives, and the others wait for it.

## What it sees
In a trace of several GPUs that run the same collectives: one rank starts its own last, again and
again, and causes at least 60 % of what the others wait. Where its own GPU idles most is named
with it.

## Why it costs
Every other rank spins in its collective until this one has come; see HG701. What slows one rank's
host slows the whole job.

## Example
    torchrun --nproc-per-node 8 train.py      # rank 3 shares its cores with the data loaders

## Use instead
    taskset per rank, the loaders on other cores

Whatever its host does more than the others': input, logging, checkpoints, garbage collection, a
core that is shared, a batch that is larger.

## Options
- `min-share` (0.6): share of the waits that one rank must cause.

## Sources
HolisticTraceAnalysis' straggler detection; Megatron-LM's straggler detector."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hostgap.analysis.causes import Cause
from hostgap.analysis.edit import Edit
from hostgap.diagnosis import rule as base
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import IdlePlaces, caused_by
from hostgap.diagnosis.ranks import RANK_SAMPLES, arrivals, ranks
from hostgap.diagnosis.rule import Match, Need, Rule
from hostgap.units import duration

# The GPU's own gaps: its orders were in hand.
_GPU = (Cause.GRAPH_INTERNAL, Cause.QUEUE_GAP, Cause.LAUNCH_LATENCY, Cause.DEPENDENCY)


class Options(base.Options, frozen=True):
    """Thresholds of HG702."""

    min_share: float = 0.6


class Straggler(Rule):
    """The others wait for one rank."""

    code = "HG702"
    name = "straggler"
    title = "One rank comes late, and the others wait for it"
    advice = "See what its host does more than the others': input, logging, cores it shares."
    needs = (Need.API_CALLS, Need.RANKS)
    options = Options

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """The rank that causes most of the waits, if one does."""
        if not arrivals(context):
            return
        codes = ranks(context)
        table = np.concatenate(list(arrivals(context).values()), axis=1)
        start = context.trace.gpu_ops.start[table]
        last = np.argmax(start, axis=0)
        ordered = np.sort(start, axis=0)
        delay = ordered[-1] - ordered[-2]  # that the others would have been spared
        caused = np.bincount(last, delay, len(codes))
        worst = int(caused.argmax())
        often = int((last == worst).sum())
        if caused.sum() == 0 or often < RANK_SAMPLES:
            return
        if caused[worst] < options.min_share * caused.sum():
            return
        code = codes[worst]
        gpu, pieces = context.trace.gpu_ops, context.analysis.devices[code].pieces
        idle = IdlePlaces(context, lambda parts: ~caused_by(parts, *_GPU), pieces=pieces)
        site, mostly = next(idle.costliest(1), (None, None))
        if code == context.code:
            edit = Edit() if mostly is None else Edit(cut=mostly.spans)
        else:
            ops = table[codes.index(context.code)] if context.code in codes else table[worst]
            length = (gpu.end - gpu.start)[ops]
            less = np.clip(np.where(last == worst, delay, 0), 0, length)
            shorter = zip(ops.tolist(), (length - less).tolist(), less.tolist(), strict=True)
            edit = Edit(length={op: ns for op, ns, wait in shorter if wait})
        device = context.trace.devices[code]
        cause = pieces.by_cause()
        main = max(cause, key=lambda c: cause[c]).label if cause else "nothing"
        yield Match(
            edit=edit,
            site=site,
            count=often,
            title=f"The others wait for GPU {device}: last at {often} of {len(last)} collectives, "
            f"{duration(caused[worst])} in all; its own GPU idles most for {main}",
        )
