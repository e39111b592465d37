"""HG102 tensor-download: a tensor is copied to the host, and the host waits for it.

## What it sees
A copy from the device to the host inside `aten::to`, `aten::_to_copy` or `aten::copy_`, and the
cudaStreamSynchronize that torch makes behind it: `.cpu()`, `.to("cpu")`, `.tolist()`, `.numpy()`,
`print` of a tensor, sizes taken from one. Blocking copies (cudaMemcpy) count too. Without
framework ops: any such copy of more than 16 bytes into pageable memory.

## Why it costs
The host waits until everything queued before the copy has run, and for the copy itself, which
goes through a staging buffer because the memory is pageable. It launches nothing meanwhile, so
the GPU has nothing to do when the copy is done.

## Example
    logits = model(tokens)
    scores.append(logits[:, -1].cpu())     # waits in every step

## Use instead
    host = torch.empty(shape, pin_memory=True)           # once
    host.copy_(logits[:, -1], non_blocking=True)
    copied.record()
    ...                                                  # launch the next step
    copied.synchronize()                                 # by now it is long done
    scores.append(host.clone())

Collect on the device and copy once at the end; or, where the host could have known the value (a
length, a mask, a constant), build it there in the first place.

## Options
None.

## Sources
PyTorch tutorial "A guide on good usage of non_blocking and pin_memory()"; probe rows cpu, tolist,
repr, split_dev_sizes on an H200 with torch 2.11."""

from __future__ import annotations

from hostgap.diagnosis.rule import WaitRule
from hostgap.diagnosis.waits import Wait
from hostgap.trace.model import CopyKind


class TensorDownload(WaitRule):
    """A tensor is copied to the host."""

    code = "HG102"
    name = "tensor-download"
    title = "A tensor is copied to the host, and the host waits for it"
    advice = "Copy into a pinned buffer behind an event, once for all; or know it on the host."
    fix = "async-output"
    order = 70

    def claims(self, wait: Wait) -> bool:
        """Any download that waits and is no scalar, no shape, no copy into pinned memory."""
        return wait.copy is CopyKind.D2H
