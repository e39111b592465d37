"""HG505 python-bound: the GPU waits for Python between framework ops.

## What it sees
At least a tenth of the window is idle time during which the launching thread runs Python: outside
framework ops, CUDA calls, waits and compilation. With stacks, the functions with the most of it
are named. Host work between two steps is HG502's.

## Why it costs
Python takes microseconds for each call of a module. Between two short kernels that is time in
which the GPU has nothing to do.

## Example
    for i in range(batch):                     # a Python loop over rows
        mask[i, : lengths[i]] = 1

## Use instead
    mask = torch.arange(width, device="cuda")[None, :] < lengths[:, None]

Vectorise loops over the batch; compute what does not change once; torch.compile or a CUDA graph
takes Python out of the step altogether.

## Options
- `min-idle` (0.1): share of the window that must be idle for this cause.

## Sources
The bundled trace of an eager decoder on an H200: 7 ms of a step of 36 ms, under the profiler,
which lengthens it: see HG901."""

from __future__ import annotations

from collections.abc import Iterator

from hostgap.analysis.causes import Cause
from hostgap.analysis.parts import Parts
from hostgap.diagnosis import rule as base
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import (
    IdlePlaces,
    between_steps,
    caused_by,
    idle_match,
    no_work,
    parts_in,
)
from hostgap.diagnosis.rule import Match, Need, Rule
from hostgap.trace.model import Bool
from hostgap.units import duration

COMPILED_ADVICE = (
    "Vectorise loops, hoist what does not change; or a CUDA graph: it is compiled already."
)


class Options(base.Options, frozen=True):
    """Thresholds of HG505."""

    min_idle: float = 0.1


class PythonBound(Rule):
    """The GPU waits for Python."""

    code = "HG505"
    name = "python-bound"
    title = "The GPU waits for Python between framework ops"
    advice = "Vectorise loops, hoist what does not change; torch.compile or a CUDA graph."
    needs = (Need.API_CALLS, Need.STEPS)
    fix = "cuda-graph"
    options = Options

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """The five costliest functions."""
        nothing_to_do, between = no_work(context), between_steps(context)

        def python(parts: Parts) -> Bool:
            mine = caused_by(parts, Cause.PYTHON) & ~nothing_to_do(parts)
            return mine & ~parts_in(parts, between)

        places = IdlePlaces(context, python)
        if places.total_ns < options.min_idle * context.window_ns:
            return
        for site, idle in places.costliest():
            each = idle.total / context.steps
            title = f"{self.title}: {duration(each)} a step here"
            advice = COMPILED_ADVICE if context.compiled else ""
            yield idle_match(context, site, idle, title, advice)
