"""compile-reduce-overhead: torch.compile with Inductor's own CUDA graphs.

## What it does
`torch.compile(body, mode="reduce-overhead")`: as compile, and Inductor captures what it compiled.

## When it applies
As compile. State must stand in buffers of modules: Inductor leaves out the graph where other
tensors are written in place.

## What it costs
Compile and capture time at start-up, the graphs' memory, and some host work per replay that a graph
captured around the whole body does not have.

## Can go wrong
As compile; besides, graphs skipped silently (HG309), and outputs that the next step overwrites."""

from __future__ import annotations

from hostgap.fixes.capture import need_gpu
from hostgap.fixes.compile import FUSES, compile_body
from hostgap.fixes.fix import Fix, Stage
from hostgap.profiling.workload import Workload


class CompileReduceOverhead(Fix):
    """torch.compile with Inductor's own CUDA graphs."""

    name = "compile-reduce-overhead"
    title = "torch.compile the step, with Inductor's CUDA graphs"
    codes = (*FUSES, "HG301", "HG302")
    stage = Stage.EXECUTION
    execution = 3
    speeds_kernels = True
    captures = True
    rank = 40

    def apply(self, workload: Workload) -> Workload:
        """The body compiled and captured by Inductor.

        Raises:
            FixFailed: it cannot be compiled.
        """
        need_gpu(workload, self.name)
        return compile_body(workload, self.name, mode="reduce-overhead")
