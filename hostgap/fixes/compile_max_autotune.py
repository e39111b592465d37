"""compile-max-autotune+cuda-graph: as compile+cuda-graph, with matrix products chosen by timing.

## What it does
Compiles with `mode="max-autotune-no-cudagraphs"`: for each matrix product Inductor times its own
templates against cuBLAS, and tunes kernels as compile-tuned+cuda-graph does.

## When it applies
As compile+cuda-graph, where matrix products take most of the GPU's time.

## What it costs
Minutes of compile time.

## Can go wrong
As compile+cuda-graph. On an H200 it was slower than tuning alone, at batch 1."""

from __future__ import annotations

from hostgap.fixes.compile_cuda_graph import CompileCudaGraph


class CompileMaxAutotune(CompileCudaGraph):
    """torch.compile with max-autotune, and one CUDA graph around the body."""

    name = "compile-max-autotune+cuda-graph"
    title = "torch.compile with matrix products chosen by timing, and one CUDA graph"
    execution = 4
    rank = 70
    mode = "max-autotune-no-cudagraphs"
