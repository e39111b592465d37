"""kernels+cuda-graph: the built-in decoder's step as few hand-written kernels, in one CUDA graph.

## What it does
Five Triton kernels a layer (`hostgap.decoder.fused`) stream the weights at nearly the memory's
speed, and each starts under the tail of the one before (programmatic dependent launch), so that
the gaps between a graph's nodes go too. torch.compile fuses what is left around them, and one CUDA
graph holds all of it.

## When it applies
The built-in decoder at batch 1 to 8, in bfloat16, on a GPU of compute capability 9.0 or more. For a
model of your own it shows what is left above stock settings.

## What it costs
Compiling the kernels at start-up (`compile_ms`), scratch memory, the graph's memory.

## Can go wrong
Sums are taken in another order than the library's, and the residual is kept in float32: logits
differ within the tolerance."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hostgap.decoder.fused import FusedStep
from hostgap.decoder.loop import DecodeLoop
from hostgap.decoder.sampling import choose
from hostgap.errors import ConfigError, FixFailed
from hostgap.fixes.compile_cuda_graph import CompileCudaGraph
from hostgap.profiling.workload import Workload


class DecodeKernels(CompileCudaGraph):
    """The built-in decoder's step as few hand-written kernels, in one CUDA graph."""

    name = "kernels+cuda-graph"
    title = "Decode by hand-written kernels, in one CUDA graph"
    execution = 6
    rank = 35
    of_decoder = True

    def apply(self, workload: Workload) -> Workload:
        """The decoder's step by its own kernels, captured.

        Raises:
            FixFailed: another target, or a model, batch or GPU that the kernels do not know.
        """
        loop = decode_loop(workload.body)
        if loop is None:
            raise FixFailed(f"{self.name}: not the built-in decoder")
        try:
            use_kernels(loop)
        except ConfigError as error:
            raise FixFailed(f"{self.name}: {error.message}") from error
        return super().apply(workload)


def decode_loop(body: Any) -> DecodeLoop | None:
    """The decoder's loop inside a body, under what other fixes put around it."""
    while body is not None and not isinstance(body, DecodeLoop):
        body = getattr(body, "body", None)
    return body


def use_kernels(loop: DecodeLoop) -> None:
    """Have a loop decode by `FusedStep` from here on; its prefill stays the model's.

    Raises:
        ConfigError: they do not know this model, batch or GPU.
    """
    fused = FusedStep(loop.model, loop.caches)
    greedy = loop.sampling is None

    def decide(tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        logits = fused(tokens, positions)
        chosen = fused.choose(tokens) if greedy else choose(logits, positions, loop.sampling)
        return logits, chosen

    # Triton launches that dynamo would trace lose their programmatic dependence.
    opaque: Any = torch.compiler.disable
    loop.decide = opaque(decide)  # type: ignore[method-assign]
