"""HG602 pageable-bandwidth: copies from or to pageable memory far below the link's speed.

## What it sees
Copies of 1 MiB or more between the device and pageable memory whose bytes per second are under
half of what the link does. What it does is the best of the trace's own copies of pinned memory in
that direction, and at least what the GPU's PCIe generation reaches: 50 GB/s for Hopper and
Blackwell (PCIe 5), 24 for Ampere and Ada (PCIe 4), 12 for others.

## Why it costs
The driver copies pageable memory to a pinned buffer of its own, piece by piece, and the host
thread does that work itself. The predicted saving gives the copy the link's speed; that the host
also no longer waits for it is HG102's and HG104's.

## Example
    batch = torch.from_numpy(array).to("cuda")

## Use instead
    staging = torch.empty(shape, pin_memory=True)      # once
    staging.copy_(torch.from_numpy(array))
    batch = staging.to("cuda", non_blocking=True)

or `DataLoader(pin_memory=True)`. Pinning itself is slow (HG402): pin once and reuse.

## Options
- `min-bytes` (1048576): smallest copy that is looked at.
- `link-gb-per-s` (0.0): the link's speed where the trace shows no faster copy; 0 takes it from the
  GPU's name.

## Sources
CUDA best practices guide, pinned memory; public traces show 3.6 GB/s (RTX 2080 Ti), 4.8 (A100)
and 5.4 (V100) from pageable memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from hostgap.analysis.edit import Edit
from hostgap.diagnosis import rule as base
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.rule import Match, Rule
from hostgap.trace.model import CopyKind, Memory

# PCIe x16 as copies of pinned memory reach it, by the GPU's generation.
_LINKS = (
    (re.compile(r"\b(?:H20|H100|H200|H800|GH200|B100|B200|B300|GB200|GB300|MI3\d\d)"), 50.0),
    (re.compile(r"\b(?:A100|A800|A10|A30|A40|L4|L40S?|RTX [34]0\d0|RTX A\d+|MI2\d\d)"), 24.0),
)
SLOWEST_LINK = 12.0
MOST_GB_PER_S = 1_000.0  # faster than any link: a size or a time that is wrong


class Options(base.Options, frozen=True):
    """Thresholds of HG602."""

    min_bytes: int = 1_048_576
    link_gb_per_s: float = 0.0


class PageableBandwidth(Rule):
    """Copies from or to pageable memory far below the link's speed."""

    code = "HG602"
    name = "pageable-bandwidth"
    title = "Copies of pageable memory are far slower than the link"
    advice = "Copy from and to pinned memory: pin one buffer, once, and reuse it."
    fix = "async-input"
    options = Options

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """A match per place and direction."""
        gpu, launched = context.trace.gpu_ops, context.launched
        size, length = gpu.bytes, np.maximum(gpu.end - gpu.start, 1)
        speed = size / length  # bytes a ns are GB a second
        for direction, word in ((CopyKind.H2D, "up"), (CopyKind.D2H, "down")):
            host = gpu.src_mem if direction == CopyKind.H2D else gpu.dst_mem
            large = (gpu.copy_kind == direction) & (size >= options.min_bytes)
            pinned = speed[large & (host == Memory.PINNED) & (speed < MOST_GB_PER_S)]
            usual = options.link_gb_per_s or _link_of(context)
            link = max(usual, float(pinned.max(initial=0)))
            slow = large & (host == Memory.PAGEABLE) & (speed < link / 2)
            rows = launched.op[slow[launched.op]]
            for site, calls in context.by_site(np.unique(gpu.call[rows])):
                mine = rows[np.isin(gpu.call[rows], calls)]
                short = (size[mine] / link).astype(np.int64)
                rate = size[mine].sum() / length[mine].sum()
                yield Match(
                    calls=calls,
                    edit=Edit(length=dict(zip(mine.tolist(), short.tolist(), strict=True))),
                    site=site,
                    count=len(mine),
                    title=f"Copies {word} at {rate:.1f} GB/s from pageable memory, {link:.0f} "
                    "GB/s from pinned",
                )


def _link_of(context: Context) -> float:
    """GB/s of the link of the GPU's generation."""
    name = context.trace.devices[context.code].name
    return next((speed for pattern, speed in _LINKS if pattern.search(name)), SLOWEST_LINK)
