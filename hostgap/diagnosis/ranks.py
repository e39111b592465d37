"""Collectives of several ranks, and how long they wait for one another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hostgap.trace.model import Int64

if TYPE_CHECKING:
    from hostgap.diagnosis.context import Context

RANK_SAMPLES = 8  # of a collective, before its own cost can be told


def rank_wait_ns(context: Context) -> int:
    """Time of the window in collectives beyond their own cost, an upper bound.

    A collective's own cost is taken to be the 5th percentile of those of the same name; with
    fewer than `RANK_SAMPLES` of a name nothing can be said of it.
    """
    gpu = context.trace.gpu_ops
    rows = np.flatnonzero(context.ops & context.collective & (gpu.device == context.code))
    length = (gpu.end - gpu.start)[rows]
    total = 0
    for name in np.unique(gpu.name[rows]).tolist():
        mine = length[gpu.name[rows] == name]
        if len(mine) >= RANK_SAMPLES:
            total += int(np.maximum(mine - np.percentile(mine, 5), 0).sum())
    return total


def ranks(context: Context) -> list[int]:
    """Codes of the devices of the trace that run collectives."""
    gpu = context.trace.gpu_ops
    found = np.unique(gpu.device[context.collective]).tolist()
    return [code for code in found if code in context.analysis.devices]


def collectives_of(context: Context, device: int, name: int) -> Int64:
    """Rows of gpu_ops of a device's collectives of one name, in order."""
    gpu = context.trace.gpu_ops
    mine = context.collective & (gpu.device == device) & (gpu.name == name)
    return np.flatnonzero(mine).astype(np.int64)


def arrivals(context: Context) -> dict[int, Int64]:
    """Collectives of the window that all ranks of the trace run equally often: name -> rows of
    gpu_ops, a line per rank of `ranks` and a column per collective; empty with one rank."""
    if len(ranks(context)) < 2:
        return {}
    gpu, found = context.trace.gpu_ops, {}
    for name in np.unique(gpu.name[context.collective]).tolist():
        rows = [collectives_of(context, code, name) for code in ranks(context)]
        if len({len(of_rank) for of_rank in rows}) == 1:
            table = np.stack(rows)
            found[name] = table[:, context.ops[table].all(axis=0)]
    return {name: table for name, table in found.items() if table.size}
