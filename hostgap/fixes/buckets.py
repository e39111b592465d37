"""Graphs for several batch sizes: captured at start-up, chosen by routing, filled up by padding.

A CUDA graph has one shape. A server's batch changes from step to step, so a graph is captured for
each of a few sizes and a batch of n runs through the smallest that holds it. The graphs share one
memory pool, which is safe because no two of them run at the same time, and the largest is captured
first, so that the others find its memory free. A changing length of the KV cache needs no graph of
its own: positions and lengths are tensors on the device that the same graph reads anew each time.
Nothing is ever captured within a step.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from hostgap.errors import ConfigError
from hostgap.fixes.capture import capture_body
from hostgap.fixes.streams import on_gpu
from hostgap.profiling.workload import Workload

NAME = "buckets"


@dataclass(frozen=True, slots=True)
class Bucket:
    """One batch size: its workload, and the inputs that it was captured with, [size, ...] each."""

    size: int
    workload: Workload
    inputs: tuple[Tensor, ...]


class Buckets:
    """A body for every batch size up to the largest bucket.

    Args:
        make: batch size -> a workload whose body takes and gives tensors with the batch first.
            Its `feed` says of which shapes; without one the body has no inputs.
        sizes: of the buckets.
        padding: what rows that nobody asked for hold.

    Raises:
        FixFailed: one of the graphs cannot be captured.
    """

    def __init__(
        self, make: Callable[[int], Workload], sizes: Sequence[int], padding: int = 0
    ) -> None:
        if not sizes or min(sizes) < 1:
            raise ConfigError("buckets need sizes of at least 1")
        self.sizes = sorted(set(sizes))
        self.padding = padding
        self.buckets: dict[int, Bucket] = {}
        pool = None
        for size in reversed(self.sizes):
            workload = make(size)
            inputs = workload.uploaded()
            if on_gpu(workload):
                pool = pool if pool is not None else torch.cuda.graph_pool_handle()
                inputs = tuple(tensor.clone() for tensor in inputs)
                workload = capture_body(workload, f"{NAME} of {size}", pool)
            self.buckets[size] = Bucket(size, workload, inputs)

    @property
    def costs(self) -> dict[int, dict[str, float]]:
        """Bucket -> what it cost at start-up: `capture_ms`, `graph_mib`."""
        return {size: self.buckets[size].workload.costs for size in self.sizes}

    def route(self, rows: int) -> Bucket:
        """The smallest bucket that holds so many rows.

        Raises:
            ConfigError: none does.
        """
        at = bisect.bisect_left(self.sizes, rows)
        if rows < 1 or at == len(self.sizes):
            raise ConfigError(
                f"no bucket for a batch of {rows}", f"the largest holds {self.sizes[-1]}"
            )
        return self.buckets[self.sizes[at]]

    def __call__(self, *inputs: Tensor) -> Any:
        """Run a batch: inputs [n, ...] -> outputs [n, ...], which the next call overwrites.

        Raises:
            ConfigError: no bucket is large enough, or there are no inputs to tell the batch by.
        """
        if not inputs:
            raise ConfigError("a batch without inputs has no size", "use route(n).workload.body()")
        rows = inputs[0].shape[0]
        bucket = self.route(rows)
        for mine, given in zip(bucket.inputs, inputs, strict=True):
            mine[:rows].copy_(given)
            if rows < bucket.size:
                mine[rows:].fill_(self.padding)
        output = bucket.workload.body(*bucket.inputs)
        return pytree.tree_map_only(Tensor, lambda out: _rows(out, bucket.size, rows), output)


def _rows(output: Tensor, size: int, rows: int) -> Tensor:
    """The rows that were asked for, of an output that has the batch first."""
    return output[:rows] if output.dim() and output.shape[0] == size else output
