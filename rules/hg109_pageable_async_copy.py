"""HG109 pageable-async-copy: a copy asked to be asynchronous, of memory that is not pinned.

## What it sees
A cudaMemcpyAsync between the device and pageable memory with no synchronize behind it:
`x.to("cuda", non_blocking=True)` of a tensor that is not pinned, or a copy back into one. torch
does not warn. A pinned tensor that is not contiguous counts too: torch copies it into pageable
memory first.

## Why it costs
The driver copies pageable memory through a staging buffer of its own. Towards the host the call
returns only when the copy is done, so it waits for all work queued before it; to the device it
returns once the data is staged: at once up to 64 KiB, piece by piece and in step with the stream
above. Such a copy runs beside no kernel. A small upload therefore costs hardly anything, and the
saving predicted for it is 0.

## Example
    batch = batch.to("cuda", non_blocking=True)        # not pinned
    host.copy_(logits, non_blocking=True)              # waits, without saying so

## Use instead
    batch = batch.pin_memory().to("cuda", non_blocking=True)
    host = torch.empty_like(logits, device="cpu", pin_memory=True)     # once

`pin_memory=True` of the data loader pins in its own thread. Wait for an event before reading what
was copied to the host.

## Options
None.

## Sources
CUDA runtime API, "API synchronization behavior"; probe rows pageable_to_nb, tensor_then_to_nb,
pinned_noncontig_nb (no synchronize, no warning) on an H200 with torch 2.11."""

from __future__ import annotations

import numpy as np

from hostgap.analysis.edit import Edit
from hostgap.analysis.whatif import STAGED_BYTES
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.rule import WaitRule
from hostgap.diagnosis.waits import Wait
from hostgap.trace.model import CopyKind, Int64, Memory
from hostgap.trace.vocabulary import BLOCKING_COPIES


class PageableAsyncCopy(WaitRule):
    """A copy asked to be asynchronous, of memory that is not pinned."""

    code = "HG109"
    name = "pageable-async-copy"
    title = "A copy asked to be asynchronous, of memory that is not pinned"
    advice = "Pin the buffer: non_blocking=True does nothing for pageable memory."
    order = 50  # before the rules on copies that wait, which claim whatever copy is left

    def claims(self, wait: Wait) -> bool:
        """The copy call itself is the wait: no synchronize stands for it."""
        return (
            wait.host_memory is Memory.PAGEABLE
            and "Memcpy" in wait.call
            and BLOCKING_COPIES.fullmatch(wait.call) is None
        )

    def without(self, context: Context, calls: Int64) -> Edit:
        """Calls that hold the host return at once; a small upload does so already."""
        gpu = context.trace.gpu_ops
        ops = context.gpu_ops_of(calls)
        small = (gpu.copy_kind[ops] == CopyKind.H2D) & (gpu.bytes[ops] >= 0)
        small &= gpu.bytes[ops] <= STAGED_BYTES
        return Edit(unblock=np.unique(gpu.call[ops[~small]]).astype(np.int64))
