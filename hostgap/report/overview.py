"""The whole trace in some hundred bins: how much of each the GPU worked, and why not for the rest.

The bins are sums over all events, merged ones too, so that they are exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hostgap.analysis.causes import Cause
from hostgap.analysis.examine import DeviceAnalysis
from hostgap.analysis.timeline import kernels, lane
from hostgap.report.packing import Packer
from hostgap.trace.model import GpuOps, Int64

BINS = 800
MOST_DEVICES = 16
KERNELS, COPIES = -1, -2  # series that are no causes


def covered(start: Int64, end: Int64, edges: Int64) -> Int64:
    """How much of each of the cells between n + 1 edges the given intervals cover, ns.

    Args:
        start, end: sorted intervals that do not overlap.
    """
    total = np.concatenate(([0], np.cumsum(end - start)))
    at = np.searchsorted(start, edges, "right") - 1  # the last interval that has begun
    inside = np.minimum(edges, np.append(end, 0)[at]) - np.append(start, 0)[at]
    return np.diff(np.where(at >= 0, total[at] + inside, 0))


def overview(
    gpu: GpuOps, devices: list[DeviceAnalysis], low: int, high: int, packer: Packer
) -> dict[str, Any]:
    """Bins of equal length over `[low, high)`: ns per bin, series and device.

    Returns:
        `edges` is packed; `devices` holds a list of {series, column} each.
    """
    bins = min(BINS, max(1, high - low))
    edges = low + (high - low) * np.arange(bins + 1, dtype=np.int64) // bins
    shown = []
    for device in devices[:MOST_DEVICES]:
        parts = device.parts
        ran = covered(*kernels(gpu, device.rows), edges)
        busy = covered(*lane(gpu, device.rows).busy, edges)
        series = [{"series": KERNELS, "column": packer.add(ran)}]
        if (busy > ran).any():
            series.append({"series": COPIES, "column": packer.add(busy - ran)})
        for code in np.unique(parts.cause).tolist():
            mine = parts.take(parts.cause == code)
            column = covered(mine.start, mine.end, edges)
            series.append({"series": int(Cause(code)), "column": packer.add(column)})
        shown.append(series)
    return {"edges": packer.sorted(edges - low), "devices": shown}
