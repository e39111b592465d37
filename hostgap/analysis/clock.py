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

from hostgap.trace.model import CopyKind, Int64, Memory, Role, Trace
from hostgap.trace.vocabulary import BLOCKING_COPIES


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
    thread for that download.
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
    process = np.array([hash(t.process) for t in trace.threads], np.int64)
    whole = np.array(
        [n.endswith(("DeviceSynchronize", "CtxSynchronize", "ThreadSynchronize")) for n in names]
    )
    device_syncs = np.flatnonzero((api.role == Role.SYNC) & whole[api.name])
    for owner in np.unique(process[api.thread[device_syncs]]):
        mine = launched[process[api.thread[gpu.call[launched]]] == owner]
        order = np.argsort(api.start[gpu.call[mine]], kind="stable")
        starts = api.start[gpu.call[mine]][order]
        reach = np.maximum.accumulate(gpu.end[mine][order])
        syncs = device_syncs[process[api.thread[device_syncs]] == owner]
        # on one device only: with several it is not known which one the call waited for
        if len(np.unique(gpu.device[mine])) > 1:
            continue
        before = np.searchsorted(starts, api.start[syncs], "left")
        add(syncs[before > 0], reach[before[before > 0] - 1])

    blocking = np.array([BLOCKING_COPIES.fullmatch(name) is not None for name in names])
    copies = launched[gpu.copy_kind[launched] != CopyKind.NONE]
    direct = copies[blocking[api.name[gpu.call[copies]]]]
    # a host-to-device copy returns once the data are staged
    direct = direct[gpu.copy_kind[direct] == CopyKind.D2H]
    add(gpu.call[direct], gpu.end[direct])

    sync_after = download_syncs(trace)
    downloads = copies[sync_after[gpu.call[copies]] >= 0]
    add(sync_after[gpu.call[downloads]], gpu.end[downloads])
    return np.concatenate(times), np.concatenate(bounds)


def download_syncs(trace: Trace) -> Int64:
    """For every API call: the stream synchronize that waits for its download, -1 without one.

    `.item()`, `.cpu()` and `.tolist()` are a device-to-host cudaMemcpyAsync and then a
    cudaStreamSynchronize, with nothing launched in between on that thread.

    Returns:
        One entry per row of `api_calls`.
    """
    api, gpu = trace.api_calls, trace.gpu_ops
    waits = np.full(len(api), -1, np.int64)
    down = np.zeros(len(api), np.bool_)
    copies = (gpu.call >= 0) & (gpu.copy_kind == CopyKind.D2H)
    down[gpu.call[copies & (gpu.dst_mem != Memory.DEVICE)]] = True
    names = trace.names
    stream_sync = np.array([n.endswith("StreamSynchronize") for n in names], np.bool_)
    matters = np.isin(api.role, (Role.LAUNCH, Role.GRAPH_LAUNCH, Role.COPY, Role.SYNC))
    rows = np.flatnonzero(matters)
    rows = rows[np.argsort(api.thread[rows], kind="stable")]
    first, second = rows[:-1], rows[1:]
    pair = (
        down[first]
        & stream_sync[api.name[second]]
        & (api.role[second] == Role.SYNC)
        & (api.thread[first] == api.thread[second])
    )
    waits[first[pair]] = second[pair]
    return waits


def _fit_line(upper_at: Int64, upper: Int64, lower_at: Int64, lower: Int64) -> Clock:
    """The line with the widest room between both kinds of bounds, if there is any room.

    The room under slope b, `min(upper - b t) - max(lower - b t)`, is concave in b: its maximum is
    found by ternary search. Drifts beyond 1 % are no clocks.
    """
    origin = int(min(upper_at.min(), lower_at.min()))
    high_t, low_t = (upper_at - origin).astype(float), (lower_at - origin).astype(float)
    high, low = upper.astype(float), lower.astype(float)

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
