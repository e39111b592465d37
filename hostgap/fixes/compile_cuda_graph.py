"""compile+cuda-graph: torch.compile, and one CUDA graph around the whole body.

## What it does
Compiles without Inductor's CUDA graphs, then captures the whole body as cuda-graph does: one launch
a step, and neither guards nor bookkeeping of graphs on the host.

## When it applies
As compile and cuda-graph together.

## What it costs
Compile and capture time at start-up, the graph's memory.

## Can go wrong
What can go wrong with either. Guards are checked once, at capture: what they guard must not
change."""

from __future__ import annotations

from typing import Any, ClassVar

from hostgap.fixes.capture import capture_body, need_gpu
from hostgap.fixes.compile import FUSES, compile_body
from hostgap.fixes.fix import Fix, Stage
from hostgap.profiling.workload import Workload


class CompileCudaGraph(Fix):
    """torch.compile, and one CUDA graph around the whole body.

    Attributes:
        mode, options: of torch.compile.
    """

    name = "compile+cuda-graph"
    title = "torch.compile the step, and capture it as one CUDA graph"
    codes = (*FUSES, "HG301", "HG302")
    stage = Stage.EXECUTION
    execution = 3
    speeds_kernels = True
    captures = True
    rank = 30
    mode: ClassVar[str | None] = None
    options: ClassVar[dict[str, Any] | None] = None

    def apply(self, workload: Workload) -> Workload:
        """The body compiled, then captured.

        Raises:
            FixFailed: it cannot be compiled or captured.
        """
        need_gpu(workload, self.name)
        compiled = compile_body(workload, self.name, mode=self.mode, options=self.options)
        return capture_body(compiled, self.name)
