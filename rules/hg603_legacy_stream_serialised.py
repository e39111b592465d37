"""HG603 legacy-stream-serialised: a second stream's work never runs beside the default stream.

## What it sees
Copies, kernels or graphs on a stream of their own, given to the GPU while the legacy default
stream was busy, none of which ever runs beside it: each begins only when it is idle. In the
window nothing else explains that: no cudaStreamWaitEvent and no event wait was recorded.

## Why it costs
The legacy default stream waits for every other blocking stream, and they for it. A stream made by
cudaStreamCreate is such a stream: what it was made for, running beside the kernels, never
happens. The predicted saving takes copies out of the way, as far as the window has kernels; of
kernels it promises nothing, as no trace says whether the GPU has room for two at once.

## Example
    cudaStreamCreate(&copies);                         // blocking
    cudaMemcpyAsync(dst, src, n, cudaMemcpyHostToDevice, copies);
    kernel<<<grid, block>>>(x);                        // default stream: waits for the copy

## Use instead
    cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking);

or build with `--default-stream per-thread`. Streams of torch.cuda.Stream do not block.

## Options
- `least` (3): fewest such launches and copies.

## Sources
CUDA runtime API, stream synchronization behaviour of the legacy default stream."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from hostgap.analysis.intervals import Intervals, overlap, union
from hostgap.diagnosis import rule as base
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.copies import hidden
from hostgap.diagnosis.rule import Match, Rule
from hostgap.trace.model import GpuKind

LEGACY = (7, 0)  # CUPTI numbers the legacy default stream 7, ROCm 0
SERIAL_SHARE = 0.8  # of a stream's launches and copies that had to wait
_ORDER = re.compile(r"StreamWaitEvent|StreamWaitValue|LaunchHostFunc|StreamAddCallback")


class Options(base.Options, frozen=True):
    """Thresholds of HG603."""

    least: int = 3


class LegacyStreamSerialised(Rule):
    """A second stream's work never runs beside the default stream."""

    code = "HG603"
    name = "legacy-stream-serialised"
    title = "Work on a stream of its own never runs beside the legacy default stream"
    advice = "Create the stream with cudaStreamNonBlocking, or use per-thread default streams."
    options = Options

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """A match per place."""
        trace, gpu, api = context.trace, context.trace.gpu_ops, context.trace.api_calls
        launched = context.launched
        codes = [code for code, stream in enumerate(trace.streams) if stream in LEGACY]
        if len(trace.streams) < 2 or not codes:
            return
        ordered = np.array([_ORDER.search(name) is not None for name in trace.names], np.bool_)
        if ordered[api.name[context.calls]].any():
            return
        mine = gpu.device == context.code
        default = mine & np.isin(gpu.stream, codes)
        busy = union(gpu.start[default], gpu.end[default])
        first = np.diff(launched.call, prepend=-1) != 0  # of a graph, its first node
        rows = launched.op[first & ~default[launched.op]]
        found = []
        for stream in np.unique(gpu.stream[rows]).tolist():
            own = rows[gpu.stream[rows] == stream]
            other = mine & (gpu.stream == stream)
            beside = overlap(Intervals(gpu.start[other], gpu.end[other]), busy)
            held = _held(context, own, busy)
            if len(own) and not beside.any() and held.mean() >= SERIAL_SHARE:
                found.append(own[held])
        work = np.concatenate(found) if found else rows[:0]
        if len(work) < options.least:
            return
        for site, calls in context.by_site(np.unique(gpu.call[work])):
            here = work[np.isin(gpu.call[work], calls)]
            copies = here[gpu.kind[here] == GpuKind.COPY]
            # whether the GPU has room for two kernels at once, no trace says
            edit = hidden(context, copies, gpu.end[copies] - gpu.start[copies])
            yield Match(calls=calls, edit=edit, site=site)


def _held(context: Context, rows: np.ndarray, busy: Intervals) -> np.ndarray:
    """Which ops were asked for while the default stream was busy, and had to wait for it."""
    gpu = context.trace.gpu_ops
    asked = context.call_end[gpu.call[rows]]
    waiting = overlap(Intervals(np.minimum(asked, gpu.start[rows]), gpu.start[rows]), busy)
    return waiting > 0
