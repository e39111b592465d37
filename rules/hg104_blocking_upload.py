"""HG104 blocking-upload: data is copied to the GPU from pageable memory, and the host waits.

## What it sees
A copy from pageable memory to the device, and the cudaStreamSynchronize that torch makes behind
it: `torch.tensor(values, device="cuda")`, `.to("cuda")` and `.cuda()`, an index that is a list
or a CPU tensor, `x[0] = 5`. Blocking copies (cudaMemcpy) to the device count too. Where the
trace does not say what memory it was (AMD), it is taken to be pageable.

## Why it costs
The copy is queued behind all work of its stream, and the host waits until it is through, although
the data was complete before. As with every wait the GPU then has nothing queued.

## Example
    positions = torch.tensor(range(n), device="cuda")     # a list: built on the host, uploaded
    x[0] = 5                                              # uploads one number
    batch = batch.to("cuda")                              # pageable: waits

## Use instead
    positions = torch.arange(n, device="cuda")            # built where it is needed
    x[0:1].fill_(5)
    batch = batch.pin_memory().to("cuda", non_blocking=True)

Build it on the device (`arange`, `full`, `zeros`, arithmetic) where that is possible: it needs
no copy at all. Else pin the memory, best once, in a buffer that stays or with `pin_memory=True`
of the data loader, and pass `non_blocking=True`; a pinned buffer must not be changed before its
copy is done.

## Options
None.

## Sources
PyTorch tutorial "A guide on good usage of non_blocking and pin_memory()"; probe rows
tensor_list_dev, tensor_scalar_dev, pageable_to, idx_list, idx_cpu_t, set_elem_scalar,
set_idx_scalar on an H200 with torch 2.11."""

from __future__ import annotations

from hostgap.diagnosis.rule import WaitRule
from hostgap.diagnosis.waits import Wait
from hostgap.trace.model import CopyKind


class BlockingUpload(WaitRule):
    """Data is copied to the GPU from pageable memory."""

    code = "HG104"
    name = "blocking-upload"
    title = "Data is copied to the GPU from pageable memory, and the host waits for it"
    advice = "Build it on the device (arange, full, zeros); else pin it and pass non_blocking=True."
    fix = "async-input"
    order = 70

    def claims(self, wait: Wait) -> bool:
        """Any upload that waits, other than from pinned memory (HG105)."""
        return wait.copy is CopyKind.H2D
