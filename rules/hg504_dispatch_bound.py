"""HG504 dispatch-bound: the GPU waits for the framework's own work per op.

## What it sees
At least a tenth of the window is idle time during which the launching thread is inside framework
ops and outside CUDA calls: dispatch, autograd's bookkeeping, shape and type checks, allocation
from the cache. The places with the most of it are named.

## Why it costs
Every op takes the host a few microseconds before its kernel is launched, whatever the kernel
does. Kernels shorter than that leave the GPU idle between them.

## Example
    def forward(self, x):
        x = x * self.weight               # five ops of 2 us on the GPU, 10 us each on the host
        x = x + self.bias
        return torch.sigmoid(x) * x.mean(-1, keepdim=True)

## Use instead
    @torch.compile
    def forward(self, x): ...

Fewer, larger ops; torch.compile; a CUDA graph around the step; a larger batch; inference_mode
where no gradient is needed.

## Options
- `min-idle` (0.1): share of the window that must be idle for this cause.

## Sources
The bundled trace of an eager decoder on an H200: 15 ms of a step of 36 ms, under the profiler."""

from __future__ import annotations

from collections.abc import Iterator

from hostgap.analysis.causes import Cause
from hostgap.diagnosis import rule as base
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import IdlePlaces, caused_by, idle_match
from hostgap.diagnosis.rule import Match, Need, Rule
from hostgap.units import duration

COMPILED_ADVICE = "A CUDA graph, or a larger batch: it is compiled already."


class Options(base.Options, frozen=True):
    """Thresholds of HG504."""

    min_idle: float = 0.1


class DispatchBound(Rule):
    """The GPU waits for framework ops."""

    code = "HG504"
    name = "dispatch-bound"
    title = "The GPU waits for work inside framework ops"
    advice = "Fewer and larger ops: torch.compile, a CUDA graph, a larger batch."
    needs = (Need.API_CALLS, Need.OPS, Need.STEPS)
    fix = "cuda-graph"
    options = Options

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """The five costliest places."""
        if context.idle(Cause.DISPATCH) < options.min_idle * context.window_ns:
            return
        places = IdlePlaces(context, lambda parts: caused_by(parts, Cause.DISPATCH))
        for site, idle in places.costliest():
            each = idle.total / context.steps
            title = f"{self.title}: {duration(each)} a step here"
            advice = COMPILED_ADVICE if context.compiled else ""
            yield idle_match(context, site, idle, title, advice)
