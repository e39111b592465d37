"""HG506 preempted: the launching thread was taken off the CPU.

## What it sees
Idle time of the GPU while the launching thread was not scheduled although it waited for nothing:
from the scheduling events of an Nsight export.

## Why it costs
Another thread got the core: too many workers for the cores, a noisy neighbour, a CPU quota. Each
time takes from a few microseconds to a scheduler's slice of several milliseconds.

## Example
    torch.set_num_threads(64)             # in a container that has eight cores

## Use instead
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {2, 3})       # cores that nobody else uses

Fewer threads than cores in all processes of the machine together, cores of the launching
process's own, on the GPU's NUMA node.

## Options
None.

## Sources
Nsight Systems' thread scheduling events; vllm#49013 (5.4 times from starved cores, see HG508)."""

from __future__ import annotations

from collections.abc import Iterator

from hostgap.analysis.causes import Cause
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import caused_by, idle_match, idle_of
from hostgap.diagnosis.rule import Match, Need, Rule


class Preempted(Rule):
    """The launching thread lost its core."""

    code = "HG506"
    name = "preempted"
    title = "The launching thread was taken off the CPU while the GPU waited for it"
    advice = "Give it a core of its own: fewer threads than cores, affinity, no shared quota."
    needs = (Need.API_CALLS, Need.SCHEDULING)

    def find(self, context: Context, options: object) -> Iterator[Match]:
        """One match: where a thread is interrupted is chance."""
        idle = idle_of(context, lambda parts: caused_by(parts, Cause.PREEMPTED))
        if idle.total:
            yield idle_match(context, None, idle)
