"""compile-tuned+cuda-graph: as compile+cuda-graph, with Inductor's kernels tuned on the GPU.

## What it does
Compiles with `coordinate_descent_tuning`: each generated kernel is timed with other block sizes and
warps, step by step, until none is faster. Matrix products of few rows become generated kernels too.

## When it applies
As compile+cuda-graph, which it takes the place of. On an H200 a decode step of 0.73 ms took
0.61 ms.

## What it costs
Several times the compile time of compile+cuda-graph.

## Can go wrong
As compile+cuda-graph. What is fastest alone need not be so among the others: it is measured like
any other fix."""

from __future__ import annotations

from hostgap.fixes.compile_cuda_graph import CompileCudaGraph


class CompileTuned(CompileCudaGraph):
    """torch.compile with coordinate descent tuning, and one CUDA graph around the body."""

    name = "compile-tuned+cuda-graph"
    title = "torch.compile with kernels tuned on this GPU, and one CUDA graph"
    execution = 4
    rank = 31
    options = {"coordinate_descent_tuning": True}  # noqa: RUF012  torch.compile takes a dict
