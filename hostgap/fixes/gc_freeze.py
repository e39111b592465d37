"""gc-freeze: no garbage collection within a step.

## What it does
The collector is off while a step runs, and comes back when it ends, whatever ends it. Every 100
steps what is young is collected, between two steps. In a server of your own, `gc.freeze()` after
start-up does the same for what is old.

## When it applies
Collections fall into steps (HG501).

## What it costs
Garbage in cycles lives up to 100 steps longer.

## Can go wrong
A step whose garbage holds GPU memory in cycles needs more of it. Outside the steps the process is
as it was, so that other workloads in it are unchanged."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hostgap.fixes.fix import Fix, Stage
from hostgap.profiling.workload import Workload

COLLECT_EVERY = 100  # steps


class GcFreeze(Fix):
    """No garbage collection within a step."""

    name = "gc-freeze"
    title = "Keep the garbage collector out of the steps"
    codes = ("HG501",)
    stage = Stage.HOST
    rank = 45

    def apply(self, workload: Workload) -> Workload:
        """The step with the collector off, from its beginning to its end, or to its error."""
        quiet = _Quiet()
        before, upload, after = workload.before, workload.uploaded, workload.after

        def begin() -> None:
            quiet.enter()
            if before is not None:
                before()

        def finish(output: Any) -> None:
            workload.hand_over(output)
            quiet.leave()

        return replace(
            workload,
            before=quiet.guarded(begin),
            upload=quiet.guarded(upload),
            body=quiet.guarded(workload.body),
            after=None if after is None else quiet.guarded(after),
            download=quiet.guarded(finish),
        )


class _Quiet:
    """The collector off from `enter` to `leave`, which an error within a step brings about too."""

    def __init__(self) -> None:
        self._steps = 0
        self._was_on = True

    def enter(self) -> None:
        self._was_on = gc.isenabled()
        gc.disable()

    def leave(self) -> None:
        if self._was_on:
            gc.enable()
        self._steps += 1
        if self._steps % COLLECT_EVERY == 0:
            gc.collect(1)  # what is young: cycles that the steps left

    def guarded(self, part: Callable[..., Any]) -> Callable[..., Any]:
        """A part of a step, after an error of which the collector is as it was."""

        def run(*args: Any) -> Any:
            try:
                return part(*args)
            except BaseException:
                self.leave()
                raise

        return run
