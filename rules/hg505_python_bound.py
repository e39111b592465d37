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
from hostgap.diagnosis import rule as base
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import (
    between_steps,
    caused_by,
    idle_by_place,
    idle_match,
    no_work,
    parts_in,
)
from hostgap.diagnosis.rule import Match, Need, Rule


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
    options = Options

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """The five costliest functions."""
        parts = context.parts
        python = caused_by(context, Cause.PYTHON) & ~no_work(context)
        python &= ~parts_in(context, between_steps(context))
        if parts.length[python].sum() < options.min_idle * context.window_ns:
            return
        for site, rows in idle_by_place(context, python):
            each = int(parts.length[rows].sum()) / context.steps / 1e3
            yield idle_match(context, site, rows, f"{self.title}: {each:,.0f} us a step")
