"""HG105 pinned-but-blocking: the memory is pinned, and the copy waits all the same.

## What it sees
A copy from pinned memory to the device, and a cudaStreamSynchronize behind it: `.to("cuda")` of a
pinned tensor without `non_blocking=True`. Also the other way: `pinned.copy_(x)`, where the host
waits in the copy. Without framework ops: such copies of any size to the device, and of more than
16 bytes from it.

## Why it costs
Pinning is what lets the copy run beside the host and beside kernels, and the wait takes that
away: the host stands until all work queued before the copy is done.

## Example
    for batch in loader:                      # pin_memory=True
        batch = batch.to("cuda")              # and yet it waits
        model(batch)

## Use instead
    for batch in loader:
        batch = batch.to("cuda", non_blocking=True)
        model(batch)                          # ordered behind the copy by the stream

Towards the host, record an event behind the copy and wait for it right before reading:

    pinned.copy_(x, non_blocking=True)
    copied.record()

## Options
None.

## Sources
PyTorch tutorial "A guide on good usage of non_blocking and pin_memory()"; probe rows pinned_to
(waits) and pinned_to_nb (does not) on an H200 with torch 2.11."""

from __future__ import annotations

from hostgap.diagnosis.rule import WaitRule
from hostgap.diagnosis.waits import Wait
from hostgap.trace.model import CopyKind, Memory


class PinnedButBlocking(WaitRule):
    """The memory is pinned, and the copy waits all the same."""

    code = "HG105"
    name = "pinned-but-blocking"
    title = "A copy of pinned memory, for which the host waits"
    advice = "Pass non_blocking=True; towards the host, wait for an event right before reading."
    order = 60

    def claims(self, wait: Wait) -> bool:
        """A waiting copy of pinned memory; from the device only one that a copy op makes."""
        if wait.host_memory is not Memory.PINNED:
            return False
        if wait.copy is CopyKind.D2H:
            return wait.inside("copy_") or not wait.in_op
        return wait.copy is CopyKind.H2D
