"""The steps of a target, marked for Nsight Systems, in this very process."""

from __future__ import annotations

from typing import Any

from hostgap.profiling.loop import Driver, Pass, run_script
from hostgap.profiling.target import TargetSpec, load_target


def run_marked(spec: TargetSpec, *, warmup: int, steps: int) -> None:
    """Run a target with an NVTX range `step#i` around each of `steps` steps.

    They lie between cudaProfilerStart and cudaProfilerStop, for
    `nsys profile --capture-range=cudaProfilerApi`. Nothing is measured here.

    Raises:
        ConfigError: no torch, no CUDA device.
        TargetError: the target cannot be imported or built, or raises.
    """
    from hostgap.profiling.environment import environment

    environment()
    if spec.kind == "script":
        run_script(spec, _marked(warmup, steps))
        return
    from hostgap.fixes.registry import apply_fixes

    workload = apply_fixes(load_target(spec).build(), ())
    Driver(workload, spec.target).run(_marked(warmup, steps))


def _marked(warmup: int, steps: int) -> Pass[None]:
    import torch

    cuda: Any = torch.cuda  # these functions have no type hints
    yield from range(warmup + steps, steps, -1)
    cuda.synchronize()
    cuda.profiler.start()
    for index in range(steps):
        cuda.nvtx.range_push(f"step#{index}")
        yield steps - index
        cuda.nvtx.range_pop()
    cuda.synchronize()
    cuda.profiler.stop()
