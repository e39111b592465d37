"""gc-freeze: no garbage collection within a step.

## What it does
When a step begins, everything that exists is set aside (`gc.freeze`) and the collector switched
off; when it ends, the step's own garbage is collected, which is quick, and the collector comes
back. Every 10,000 steps everything is collected, between two steps.

## When it applies
Collections fall into steps (HG501).

## What it costs
Some microseconds a step.

## Can go wrong
Garbage in cycles that is made between steps lives longer. Outside the steps the process is as it
was, so that other workloads in it are unchanged."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hostgap.fixes.fix import Fix, Stage
from hostgap.profiling.workload import Workload, tensors

COLLECT_EVERY = 10_000  # steps


class GcFreeze(Fix):
    """No garbage collection within a step."""

    name = "gc-freeze"
    title = "Keep the garbage collector out of the steps"
    codes = ("HG501",)
    stage = Stage.HOST
    rank = 45

    def apply(self, workload: Workload) -> Workload:
        """The step between `_Quiet.enter` and `leave`."""
        quiet = _Quiet()
        before, body, last = workload.before, workload.body, _last_part(workload)

        def enter() -> None:
            quiet.enter()
            if before is not None:
                before()

        def guarded(*inputs: Any) -> Any:
            try:
                return body(*inputs)
            except BaseException:
                quiet.leave()
                raise

        def finish(output: Any) -> None:
            try:
                last(output)
            finally:
                quiet.leave()

        return replace(workload, before=enter, body=guarded, download=finish)


def _last_part(workload: Workload) -> Callable[[Any], None]:
    """What a step ends with: its download, the plain delivery, or nothing."""
    if workload.download is not None:
        return workload.download
    deliver = workload.deliver

    def plain(output: Any) -> None:
        if deliver is not None:
            deliver(*(tensor.cpu() for tensor in tensors(output)))

    return plain


class _Quiet:
    """The collector off and everything old set aside, from `enter` to `leave`."""

    def __init__(self) -> None:
        self._steps = 0
        self._was_on = False

    def enter(self) -> None:
        self._was_on = gc.isenabled()
        gc.disable()
        gc.freeze()

    def leave(self) -> None:
        gc.collect(0)
        gc.unfreeze()
        if self._was_on:
            gc.enable()
        self._steps += 1
        if self._steps % COLLECT_EVERY == 0:
            gc.collect()
