"""compile: the body through torch.compile.

## What it does
`torch.compile(body, dynamic=False)`: Inductor fuses pointwise work into few kernels. Three steps
are run at once, so that no step of a measurement compiles.

## When it applies
Chains of pointwise kernels and unfused epilogues (HG202, HG205, HG207), many launches (HG201). It
also makes the GPU's own work shorter, which a replayed trace cannot predict: it is tried wherever
such chains were seen.

## What it costs
Compile time at start-up (`compile_ms`), guards before each call.

## Can go wrong
Graph breaks (`graph_breaks`, counted), recompilation for other shapes, other rounding: a fused
kernel rounds to bf16 less often, so logits differ within the tolerance and a token may differ where
the two best are as good as equal."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from hostgap.errors import FixFailed
from hostgap.fixes.fix import Fix, Stage
from hostgap.fixes.warm import restart, warm_up
from hostgap.profiling.target import describe
from hostgap.profiling.workload import Workload

FUSES = ("HG201", "HG202", "HG205", "HG206", "HG207", "HG303", "HG504", "HG505")
WARM_UP_STEPS = 3


class Compile(Fix):
    """The body through torch.compile.

    Attributes:
        backend: of torch.compile.
    """

    name = "compile"
    title = "torch.compile the step"
    codes = FUSES
    stage = Stage.EXECUTION
    execution = 1
    speeds_kernels = True
    rank = 60
    backend: str = "inductor"

    def apply(self, workload: Workload) -> Workload:
        """The body compiled.

        Raises:
            FixFailed: it cannot be compiled.
        """
        return compile_body(workload, self.name, backend=self.backend)


def compile_body(
    workload: Workload,
    name: str,
    *,
    backend: str = "inductor",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Workload:
    """The workload with its body compiled, and warmed up.

    Args:
        workload: used up.
        name: of the fix, for the error.
        backend, mode, options: of torch.compile; either a mode or options.

    Raises:
        FixFailed: the compiler fails.
    """
    from torch._dynamo.utils import counters

    breaks = sum(counters["graph_break"].values())
    begun = time.perf_counter()
    try:
        compiled = torch.compile(
            _own_code(workload.body), dynamic=False, backend=backend, mode=mode, options=options
        )
        made = replace(workload, body=_marking(compiled))
        warm_up(made, WARM_UP_STEPS)
    except (RuntimeError, ImportError, OSError) as error:  # a missing compiler is one of these
        restart(workload)
        raise FixFailed(f"{name}: cannot be compiled ({describe(error)[:300]})") from error
    costs = workload.costs
    costs["compile_ms"] = costs.get("compile_ms", 0.0) + (time.perf_counter() - begun) * 1e3
    costs["graph_breaks"] = float(sum(counters["graph_break"].values()) - breaks)
    return made


def _own_code(body: Callable[..., Any]) -> Callable[..., Any]:
    """The body behind a function whose code object is its own.

    Dynamo keeps what it compiled, and counts recompilations, by code object: without this the
    variants of one step would use up each other's limit.
    """

    def step(*inputs: Any) -> Any:
        return body(*inputs)

    step.__code__ = step.__code__.replace(co_name="step")
    return step


def _marking(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Says where a step begins: from there Inductor's graphs may overwrite the last output."""

    def body(*inputs: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return compiled(*inputs)

    return body
