"""The loop around a step: what drives a target from step to step while something is measured.

A pass (`hostgap.profiling.passes`) is a generator: it yields how many steps must be able to follow
without starting over, whenever it wants one step run. So one pass serves both kinds of targets: a
step function is called once per yield, a script gives control back at each of its marks.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TypeVar

from hostgap.errors import HostgapError, TargetError, TargetExited
from hostgap.profiling import marks
from hostgap.profiling.target import TargetSpec, describe, where
from hostgap.profiling.workload import Workload

T = TypeVar("T")
Pass = Generator[int, None, T]


class Fresh(int):
    """What a pass yields where the steps that follow should be a workload's first ones.

    A step may change as it goes on: attention reads one token more each time. What is to be held
    against each other is measured over the same steps, wherever the workload can be begun anew.
    """


class Driver:
    """Calls a workload's step once for each yield of a pass, and starts it over where room ends."""

    def __init__(self, workload: Workload, name: str) -> None:
        self.workload, self.name = workload, name
        self.steps = 0
        self._left = 0  # steps until the workload must be reset

    def run(self, measured: Pass[T]) -> T:
        """Run a pass to its end and return its result.

        Raises:
            TargetError: the step raises, or has no room for what the pass needs.
        """
        workload = self.workload
        while True:
            try:
                try:
                    ahead = next(measured)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
                self._make_room(ahead)
                workload.step()
            except Exception as error:
                measured.close()
                if isinstance(error, HostgapError):
                    raise
                raise TargetError(
                    f"{self.name} raised in step {self.steps}: {describe(error)}", where(error)
                ) from error
            self.steps += 1
            self._left -= 1

    def _make_room(self, ahead: int) -> None:
        workload = self.workload
        full = workload.room is not None and self._left < ahead
        if full and workload.reset is None and self.steps > 0:
            raise TargetError(
                f"{self.name} has room for {workload.room} steps and no reset",
                "give the Workload a reset, or no room",
            )
        if workload.room is not None and ahead > workload.room:
            raise TargetError(
                f"{self.name} has room for {workload.room} steps; {ahead} are needed at a stretch",
                f"give the Workload room for {ahead}; a timed block takes fewer with --steps",
            )
        anew = isinstance(ahead, Fresh) and workload.reset is not None
        if not full and not anew:
            return
        if workload.reset is not None:
            if workload.flush is not None:
                workload.flush()
            workload.reset(0)
        self._left = workload.room or 0


class Finished(BaseException):
    """Ends a script once what was to be measured of it is measured."""


def run_script(spec: TargetSpec, measured: Pass[T]) -> T:
    """Run a script from its start; each of its marks advances the pass.

    What lies between two marks is a step. The script is ended when the pass is.

    Raises:
        TargetError: the script raises, or ends before the pass does.
        TargetExited: it ends itself with an error before that.
    """
    result: list[T] = []
    failed: list[Exception] = []  # the pass's own, which the script may catch
    exited: TargetExited | None = None
    count = 0

    def at_mark() -> None:
        nonlocal count
        if result or failed:
            raise Finished  # again: the script caught it
        count += 1
        try:
            next(measured)
        except StopIteration as end:
            result.append(end.value)
            raise Finished from None
        except Exception as error:
            failed.append(error)
            raise

    argv, sys.argv = sys.argv, [spec.target, *spec.args]
    sys.path.insert(0, str(Path(spec.target).resolve().parent))  # as python does for a script
    try:
        with marks.listening(at_mark, spec.step_marker):
            runpy.run_path(spec.target, run_name="__main__")
    except Finished:
        pass
    except SystemExit as end:  # what was measured by then says whether it was too early
        exited = _exited(spec.target, end, count)
    except Exception as error:
        if result:
            return result[0]  # what fails after the last mark is no part of it
        at = f"in step {count - 1}" if count else "before its first step"
        raise TargetError(f"{spec.target} raised {at}: {describe(error)}", where(error)) from error
    finally:
        sys.argv = argv
        sys.path.pop(0)
        measured.close()
    if result:
        return result[0]
    if failed:
        raise TargetError(
            f"{spec.target}: measuring failed after {count} steps: {describe(failed[0])}"
        ) from failed[0]
    if exited is not None:
        raise exited
    if count == 0:
        raise TargetError(
            f"{spec.target} ended without marking a step",
            "call hostgap.step() at the start of each, or name its ranges with --step-marker",
        )
    raise TargetError(
        f"{spec.target} ended after {count} steps, before all was measured",
        "let it run longer, or ask for less with --steps and --repeat",
    )


def _exited(name: str, end: SystemExit, count: int) -> TargetExited | None:
    """What a script says by ending itself after `count` steps; None where nothing is wrong."""
    at = f"after {count} steps" if count else "before its first step"
    if isinstance(end.code, int):
        return TargetExited(f"{name} exited with code {end.code:d} {at}") if end.code else None
    if end.code is None:
        return None
    return TargetExited(
        f"{name} exited {at}: {describe(end).removeprefix('SystemExit: ')}", where(end)
    )
