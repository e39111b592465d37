"""The kernels of the window, by name: how many, how long, how far apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hostgap.analysis.examine import Analysis
from hostgap.report.geometry import Geometry
from hostgap.trace.kernels import kernel_class
from hostgap.trace.model import GpuKind

MOST = 200  # names; the rest is one line


@dataclass(frozen=True, slots=True)
class Kernel:
    """Kernels of one name in the window, on all devices.

    `interval_ns` is the median time from the start of the op before it on its stream to its own
    start; None where none came before. `in_graphs` is the share of them that graphs launched.
    """

    name: str
    kind: str
    count: int
    total_ns: int
    median_ns: int
    interval_ns: int | None
    in_graphs: float
    geometry: Geometry | None


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels that took most, and the sum of all."""

    rows: list[Kernel]
    names: int
    count: int
    total_ns: int

    @property
    def rest_ns(self) -> int:
        """The time of those that are not in `rows`."""
        return self.total_ns - sum(kernel.total_ns for kernel in self.rows)


def kernels(analysis: Analysis, geometry: Mapping[str, Geometry]) -> Kernels:
    """The kernels that end in the window and begin before its end, most time first."""
    gpu, names = analysis.trace.gpu_ops, analysis.trace.names
    inside = np.zeros(len(gpu), np.bool_)
    interval = np.full(len(gpu), -1, np.int64)
    for device in analysis.devices.values():
        ops = device.rows
        inside[ops] = (gpu.end[ops] > device.low) & (gpu.start[ops] < device.high)
        for own in device.streams.values():
            interval[own[1:]] = np.diff(gpu.start[own])
    inside &= np.isin(gpu.kind, (GpuKind.KERNEL, GpuKind.GRAPH))
    rows = np.flatnonzero(inside)
    length = gpu.end - gpu.start
    found = []
    order = rows[np.argsort(gpu.name[rows], kind="stable")]
    codes, first = np.unique(gpu.name[order], return_index=True)
    for code, mine in zip(codes.tolist(), np.split(order, first[1:]), strict=len(codes) > 0):
        apart = interval[mine]
        apart = apart[apart >= 0]
        found.append(
            Kernel(
                name=names[code],
                kind=kernel_class(names[code]).value,
                count=len(mine),
                total_ns=int(length[mine].sum()),
                median_ns=int(np.median(length[mine])),
                interval_ns=int(np.median(apart)) if len(apart) else None,
                in_graphs=float((gpu.graph_node[mine] != 0).mean()),
                geometry=geometry.get(names[code]),
            )
        )
    found.sort(key=lambda kernel: (-kernel.total_ns, kernel.name))
    return Kernels(found[:MOST], len(found), len(rows), int(length[rows].sum()))
