"""The collectives of one rank, as few columns: what its worker sends to be held against others'."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.causes import Cause
from hostgap.analysis.examine import Analysis
from hostgap.analysis.intervals import Intervals, overlap, union
from hostgap.analysis.metrics import in_window
from hostgap.analysis.timeline import collectives
from hostgap.trace.model import Bool, Int8, Int32, Int64

MOST = 50_000  # collectives that are compared, the first ones: 3 MB a rank

# The GPU's own gaps, and those of which nothing is known: in none of them the host was late.
NOT_HOST = (
    Cause.GRAPH_INTERNAL,
    Cause.QUEUE_GAP,
    Cause.LAUNCH_LATENCY,
    Cause.DEPENDENCY,
    Cause.NO_WORK,
    Cause.UNATTRIBUTABLE,
)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """n collectives of a rank, in order of start, on its own GPU's clock.

    Attributes:
        keys: what can be told of a collective: its kernel and the ranks of its process group.
        device: code of the device that runs them.
        row: rows of gpu_ops.
        key: n codes in `keys`.
        start, end: of the kernel, ns.
        counted: whether it lies in the window.
        covered_ns: time within it in which other kernels of the device ran.
        before_ns: time since the end of the collective before, 0 for the first.
        idle_ns: of that, the GPU was idle because the host was late.
        cause: what most of that was (code of Cause), -1 for none.
        left_out: collectives beyond the first `MOST`.
    """

    keys: tuple[tuple[str, str], ...]
    device: int
    row: Int64
    key: Int32
    start: Int64
    end: Int64
    counted: Bool
    covered_ns: Int64
    before_ns: Int64
    idle_ns: Int64
    cause: Int8
    left_out: int

    def __len__(self) -> int:
        return len(self.start)


def arrivals_of(analysis: Analysis) -> Arrivals | None:
    """The collectives of the device that runs most of them; None where there are none."""
    trace = analysis.trace
    gpu = trace.gpu_ops
    mask = collectives(trace) & np.isin(gpu.device, list(analysis.devices))
    if not mask.any():
        return None
    device = int(np.bincount(gpu.device[mask]).argmax())
    mask &= gpu.device == device
    every = np.flatnonzero(mask)
    rows = every[:MOST]
    start, end = gpu.start[rows], gpu.end[rows]
    others = np.flatnonzero((gpu.device == device) & ~mask)
    working = union(gpu.start[others], gpu.end[others])
    reach = np.maximum.accumulate(end)
    since = np.minimum(np.concatenate((start[:1], reach[:-1])), start)
    idle, cause = _idle(analysis, device, since, start)
    pairs = [
        (trace.names[name], trace.groups.get(correlation, ""))
        for name, correlation in zip(
            gpu.name[rows].tolist(), gpu.correlation[rows].tolist(), strict=True
        )
    ]
    keys = {pair: code for code, pair in enumerate(dict.fromkeys(pairs))}
    return Arrivals(
        keys=tuple(keys),
        device=device,
        row=rows.astype(np.int64),
        key=np.array([keys[pair] for pair in pairs], np.int32),
        start=start,
        end=end,
        counted=in_window(analysis)[0][rows],
        covered_ns=overlap(Intervals(start, end), working),
        before_ns=start - since,
        idle_ns=idle,
        cause=cause,
        left_out=len(every) - len(rows),
    )


def _idle(
    analysis: Analysis, device: int, low: Int64, high: Int64
) -> tuple[Int64, NDArray[np.int8]]:
    """Idle ns of a late host within each of n intervals in order, and the main cause of each."""
    n = len(low)
    by = np.zeros((n, len(Cause)), np.int64)
    for parts in analysis.devices[device].pieces:
        late = np.flatnonzero(~np.isin(parts.cause, NOT_HOST))
        # a piece lies before one collective: idle time is cut where a collective starts
        at = np.searchsorted(high, parts.end[late], "left")
        late, at = late[at < n], at[at < n]
        length = np.maximum(parts.end[late] - np.maximum(parts.start[late], low[at]), 0)
        np.add.at(by, (at, parts.cause[late]), length)
    total = by.sum(axis=1)
    return total, np.where(total > 0, by.argmax(axis=1), -1).astype(np.int8)
