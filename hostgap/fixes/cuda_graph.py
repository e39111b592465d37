"""cuda-graph: the whole body as one CUDA graph.

## What it does
Runs three steps on a stream of its own, captures the body, and replays it from then on: one launch
a step. Inputs go into static tensors first; the output is the same tensors each time.

## When it applies
The step is held up by launching (HG201, HG301, HG302, HG504, HG505).

## What it costs
Capture time and memory at start-up (`capture_ms`, `graph_mib`). The warm-up really runs steps:
`reset` is called afterwards, and without it the workload stands three steps further.

## Can go wrong
A body that reads from the GPU, copies from pageable memory, draws from a generator of its own, or
leaves work on another stream cannot be captured; the message says which, and where. What the body
does in Python happens once: a changed Python number stays as it was captured, which the proof of
equality catches."""

from __future__ import annotations

from hostgap.fixes.capture import capture_body
from hostgap.fixes.fix import Fix, Stage
from hostgap.profiling.workload import Workload


class CudaGraph(Fix):
    """The whole body as one CUDA graph."""

    name = "cuda-graph"
    title = "Capture the step as one CUDA graph and replay it"
    codes = ("HG201", "HG301", "HG302", "HG202", "HG206", "HG207", "HG504", "HG505")
    stage = Stage.EXECUTION
    execution = 2
    captures = True
    pure = True
    rank = 10

    def apply(self, workload: Workload) -> Workload:
        """The body captured and replayed.

        Raises:
            FixFailed: it cannot be captured.
        """
        return capture_body(workload, self.name)
