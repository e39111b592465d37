"""HG906 warm-up-in-window: the first steps of the window are not like the rest.

## What it sees
The first counted steps take more than one and a half times as long as the later ones, and what
they take longer is idle time of the GPU; or only they compile, capture graphs or load modules.

## Why it costs
It costs nothing in the long run, but it makes the average step look worse than it is, and names
causes that will not come again.

## Example
    schedule(wait=0, warmup=0, active=10)     # the first steps compile and load kernels

## Use instead
    schedule(wait=5, warmup=3, active=10)

or leave them out: `--steps` with the range that the finding names.

## Options
- `factor` (1.5): how many times as long as the later ones the first must take.

## Sources
torch.profiler's schedule."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hostgap.analysis.causes import Cause
from hostgap.analysis.intervals import Intervals, overlap
from hostgap.diagnosis import rule as base
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import caused_by, idle_of
from hostgap.diagnosis.rule import Match, Need, Rule
from hostgap.trace.model import Int64, Role

FEWEST = 4  # steps among which some can be the first


class Options(base.Options, frozen=True):
    """Thresholds of HG906."""

    factor: float = 1.5


class WarmUpInWindow(Rule):
    """The window holds warm-up."""

    code = "HG906"
    name = "warm-up-in-window"
    title = "The first steps are warm-up"
    advice = "Leave them out with --steps, or record later."
    needs = (Need.API_CALLS, Need.STEPS)
    options = Options
    informs = True

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """One match for all of the first steps."""
        chosen, n = context.analysis.chosen, len(context.analysis.chosen)
        if n < FEWEST or context.analysis.options.window != "steps":
            return
        length = np.diff(context.analysis.steps.boundaries)[chosen.start : chosen.stop]
        idle, once, rows = _idle(context), _once(context), _once_calls(context)
        later = slice(n // 2, None)
        usual, usual_idle = np.median(length[later]), np.median(idle[later])
        # longer, and for want of work: a prefill is longer because it has more of it
        longer = length > options.factor * usual
        longer &= 2 * (idle - usual_idle) >= length - usual
        prepares = (once > 0) & (once[later].sum() == 0)
        first = n if (longer | prepares).all() else int(np.argmin(longer | prepares))
        if not 0 < first <= n // 2:
            return
        steps = f"first {first} steps are" if first > 1 else "first step is"
        said = f"up to {length[:first].max() / max(1, usual):.1f} times as long as later ones"
        if prepares[:first].any():
            said += ", and compile, capture or load"
        step = context.analysis.steps.call_step[rows]
        yield Match(
            calls=rows[step < chosen.start + first],
            count=first,
            title=f"The {steps} warm-up, {said}: use --steps {chosen.start + first}:",
        )


def _idle(context: Context) -> Int64:
    """Idle time of the device in each chosen step."""
    return _by_step(context, context.device.gaps)


def _by_step(context: Context, idle: Intervals) -> Int64:
    chosen = context.analysis.chosen
    edges = context.analysis.steps.boundaries[chosen.start : chosen.stop + 1]
    return overlap(Intervals(edges[:-1], edges[1:]), idle)


def _once_calls(context: Context) -> Int64:
    return context.calls_of(Role.CAPTURE, Role.INSTANTIATE, Role.MODULE_LOAD)


def _once(context: Context) -> Int64:
    """How much each chosen step compiles (ns of idle) and captures or loads (calls)."""
    chosen = context.analysis.chosen
    step = context.analysis.steps.call_step[_once_calls(context)] - chosen.start
    step = step[(step >= 0) & (step < len(chosen))]
    calls = np.bincount(step, minlength=len(chosen)).astype(np.int64)
    idle = idle_of(context, lambda parts: caused_by(parts, Cause.COMPILE))
    return calls + _by_step(context, idle.spans)
