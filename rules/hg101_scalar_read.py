"""HG101 scalar-read: a number is read back from the GPU, and the host waits for it.

## What it sees
`aten::item` around `aten::_local_scalar_dense`, a copy of a few bytes to the host, and a
cudaStreamSynchronize: `.item()`, `bool(t)`, `if t:`, `float(t)`, an f-string or `print` of a
tensor, a 0-d CUDA tensor used as an index or a slice's bound, `masked_fill` with one as its
value. Without framework ops: a copy of at most 16 bytes into pinned memory, and the synchronize
behind it.

## Why it costs
The host cannot launch anything while it waits, so the GPU runs dry and stays so until the next
launch arrives. Where the GPU has nothing queued behind it anyway, or where the host is late
regardless, the read costs next to nothing; the predicted saving says which.

## Example
    while True:
        token = model(token)
        if token.item() == eos:      # waits for the whole step
            break

## Use instead
    finished |= token == eos          # stays on the GPU
    if step % 16 == 0 and finished.item():
        break

Keep the value on the device; read it one step late, from a pinned buffer behind an event; or
mirror it on the host.

## Options
None.

## Sources
transformers#43089 (eos checks in generate), vLLM's async output processing; probe rows item,
bool_if, fstring, idx_0d_dev, slice_dev_bound, masked_fill_dev0d on an H200 with torch 2.11."""

from __future__ import annotations

from hostgap.diagnosis.rule import WaitRule
from hostgap.diagnosis.waits import Wait
from hostgap.trace.model import CopyKind

MOST_BYTES = 16


class ScalarRead(WaitRule):
    """A number is read back from the GPU."""

    code = "HG101"
    name = "scalar-read"
    title = "A number is read back from the GPU, and the host waits for it"
    advice = "Keep it on the device, read it a step later, or mirror it on the host."
    order = 40

    def claims(self, wait: Wait) -> bool:
        """The read of a scalar, by its op or, without ops, by its size."""
        if wait.ops:  # the copy itself may not have been recorded
            reads = wait.inside("item", "_local_scalar_dense", "is_nonzero")
            return reads and wait.copy in (CopyKind.D2H, CopyKind.NONE)
        return wait.copy is CopyKind.D2H and 0 <= wait.bytes <= MOST_BYTES
