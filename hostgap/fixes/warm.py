"""Warming up: running real steps before a step is compiled or captured."""

from __future__ import annotations

from hostgap.profiling.workload import Workload


def restart(workload: Workload) -> None:
    """Begin the first case anew, if the workload can."""
    if workload.flush is not None:
        workload.flush()
    if workload.reset is not None:
        workload.reset(0)


def warm_up(workload: Workload, steps: int) -> None:
    """Run whole steps: they change the state and deliver, as any step does.

    A workload with `reset` starts over afterwards. One without has made `steps` steps by then,
    which is added to its costs as `warmup_steps`: its next step is that much later than the first.
    """
    restart(workload)
    for _ in range(steps):
        workload.step()
    restart(workload)
    if workload.reset is None:
        workload.costs["warmup_steps"] = workload.costs.get("warmup_steps", 0.0) + steps
