"""Host clock and GPU clock: how far apart, and which way.

Kineto and CUPTI convert GPU timestamps to the host's clock, and miss by microseconds, sometimes by
milliseconds. The offset `o` (GPU time as recorded minus true host time) is bounded from both sides:

- an op cannot start before the call that launched it: `o <= op.start - call.start`;
- a wait cannot end before what it waited for: `o >= op.end - sync.end`.

Where 0 satisfies both, clocks are left alone. Where another constant does, or a line, host times
are moved onto the GPU's clock (so that GPU figures do not change). Where nothing does, host causes
cannot be told.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.syncs import download_syncs
from hostgap.trace.columns import distinct_codes
from hostgap.trace.model import CopyKind, Int64, Role, Trace
from hostgap.trace.vocabulary import BLOCKING_COPIES

Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Clock:
    """How host times map to the GPU's clock: `host + offset + slope * (host - origin)`.

    Attributes:
        offset_ns: constant part.
        slope: drift, ns per ns; 0 when the offset is constant.
        origin_ns: host time at which the offset is `offset_ns`.
        reconciled: False when no offset satisfies all bounds; then nothing is moved.
        lowest_ns, highest_ns: the tightest bounds on a constant offset, None without evidence.
    """

    offset_ns: int = 0
    slope: float = 0.0
    origin_ns: int = 0
    reconciled: bool = True
    lowest_ns: int | None = None
    highest_ns: int | None = None

    @property
    def corrected(self) -> bool:
        """Whether host times are moved at all."""
        return self.offset_ns != 0 or self.slope != 0.0

    def to_gpu(self, time: Int64) -> Int64:
        """Host times, ns, on the GPU's clock."""
        if not self.corrected:
            return time
        moved = time + self.offset_ns
        if self.slope:
            # the product is a small correction: a float holds it exactly enough
            moved += np.rint(self.slope * (time - self.origin_ns)).astype(np.int64)
        return moved


def fit_clock(trace: Trace) -> Clock:
    """Bound the offset between the clocks of a trace, and correct it where it must be."""
    upper_at, upper = _launch_bounds(trace)
    lower_at, lower = _wait_bounds(trace)
    highest = int(upper.min()) if len(upper) else None
    lowest = int(lower.max()) if len(lower) else None
    if (highest is None or highest >= 0) and (lowest is None or lowest <= 0):
        return Clock(lowest_ns=lowest, highest_ns=highest)
    if highest is None or lowest is None or lowest <= highest:
        offset = highest if highest is not None and highest < 0 else lowest
        assert offset is not None
        return Clock(offset, lowest_ns=lowest, highest_ns=highest)
    return _fit_line(upper_at, upper, lower_at, lower)


def _launch_bounds(trace: Trace) -> tuple[Int64, Int64]:
    """Where (host time) and how high the offset can be: op.start - call.start."""
    gpu, api = trace.gpu_ops, trace.api_calls
    launched = gpu.call >= 0
    call_start = api.start[gpu.call[launched]]
    return call_start, gpu.start[launched] - call_start


def _wait_bounds(trace: Trace) -> tuple[Int64, Int64]:
    """Where and how low it can be: end of an op less end of the wait for it.

    Used are waits whose target is certain: a device synchronize waits for all ops its process had
    launched; a blocking copy for that copy; a stream synchronize that follows a download on its
    thread for that download, where there is only one stream to wait for.
    """
    gpu, api = trace.gpu_ops, trace.api_calls
    times: list[Int64] = []
    bounds: list[Int64] = []

    def add(calls: np.ndarray, ends: Int64) -> None:
        times.append(api.end[calls])
        bounds.append(ends - api.end[calls])

    launched = np.flatnonzero(gpu.call >= 0)
    if len(launched) == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    names = trace.names
    pids = {process: i for i, process in enumerate({t.process for t in trace.threads})}
    process = np.array([pids[t.process] for t in trace.threads], np.int64)
    whole = np.array(
        [n.endswith(("DeviceSynchronize", "CtxSynchronize", "ThreadSynchronize")) for n in names]
    )
    device_syncs = np.flatnonzero((api.role == Role.SYNC) & whole[api.name])
    for owner in np.unique(process[api.thread[device_syncs]]):
        mine = launched[process[api.thread[gpu.call[launched]]] == owner]
        # a launch still under way on another thread when the wait begins is not waited for
        returned = api.end[gpu.call[mine]]
        order = np.argsort(returned, kind="stable")
        returned = returned[order]
        reach = np.maximum.accumulate(gpu.end[mine][order])
        syncs = device_syncs[process[api.thread[device_syncs]] == owner]
        # on one device only: with several it is not known which one the call waited for
        if len(distinct_codes(gpu.device[mine])) > 1:
            continue
        before = np.searchsorted(returned, api.start[syncs], "right")
        add(syncs[before > 0], reach[before[before > 0] - 1])

    blocking = np.array([BLOCKING_COPIES.fullmatch(name) is not None for name in names])
    copies = launched[gpu.copy_kind[launched] != CopyKind.NONE]
    direct = copies[blocking[api.name[gpu.call[copies]]]]
    # a host-to-device copy returns once the data are staged
    direct = direct[gpu.copy_kind[direct] == CopyKind.D2H]
    add(gpu.call[direct], gpu.end[direct])

    # only certain where there is one stream: the synchronize may be for another
    sync_after = download_syncs(trace)
    downloads = copies[sync_after[gpu.call[copies]] >= 0]
    if len(distinct_codes(gpu.stream)) == 1:
        add(sync_after[gpu.call[downloads]], gpu.end[downloads])
    return np.concatenate(times), np.concatenate(bounds)


def _fit_line(upper_at: Int64, upper: Int64, lower_at: Int64, lower: Int64) -> Clock:
    """The line with the widest room between both kinds of bounds, if there is any room.

    The room under slope b, `min(upper - b t) - max(lower - b t)`, is concave in b: its maximum is
    found by ternary search. Drifts beyond 1 % are no clocks.
    """
    origin = int(min(upper_at.min(), lower_at.min()))
    high_t, high = _tightest(upper_at - origin, upper, lower=False)
    low_t, low = _tightest(lower_at - origin, lower, lower=True)

    def room(slope: float) -> float:
        return float((high - slope * high_t).min() - (low - slope * low_t).max())

    left, right = -0.01, 0.01
    for _ in range(100):
        third = (right - left) / 3
        if room(left + third) < room(right - third):
            left += third
        else:
            right -= third
    slope = (left + right) / 2
    lowest, highest = int(lower.max()), int(upper.min())
    if room(slope) < 0:
        return Clock(reconciled=False, lowest_ns=lowest, highest_ns=highest)
    offset = ((high - slope * high_t).min() + (low - slope * low_t).max()) / 2
    return Clock(round(offset), slope, origin, lowest_ns=lowest, highest_ns=highest)


def _tightest(at: Int64, bound: Int64, *, lower: bool) -> tuple[Float64, Float64]:
    """The tightest bound in each of a thousand spans of time: a line hardly differs within one."""
    span = np.minimum(at * 1000 // max(1, int(at.max())), 999)
    order = np.lexsort((-bound if lower else bound, span))
    first = order[np.concatenate(([True], np.diff(span[order]) > 0))]
    return at[first].astype(np.float64), bound[first].astype(np.float64)
