"""HG103 data-dependent-shape: a shape depends on values, so the host waits for them.

## What it sees
`aten::nonzero` (also one argument `where`, a boolean mask as index, `x[mask] = values`),
`masked_select`, `unique`, `repeat_interleave` without `output_size`, `bincount`, `one_hot`
without `num_classes`, and operations on sparse tensors that count their entries: each reads a
size back before it can allocate its result. It needs framework ops: without them the read looks
like that of a number (HG101).

## Why it costs
The host cannot allocate the result before it knows its size, and the size is known when
everything queued before it has run. What depends on it has a new shape each time too, which no
CUDA graph can hold.

## Example
    x[mask] = 0.5 * x[mask]               # two waits
    kept = logits[logits > threshold]     # as many entries as it happens to be

## Use instead
    x = torch.where(mask, 0.5 * x, x)     # three arguments: same shape, no wait
    kept = logits.masked_fill(logits <= threshold, -inf)

`torch.nonzero_static(x, size=n)`, `repeat_interleave(..., output_size=n)`,
`one_hot(x, num_classes=n)`, `scatter_add_` into a fixed number of bins for `bincount`.

## Options
None.

## Sources
PyTorch documentation of nonzero ("causes host-device synchronization"), nonzero_static and
repeat_interleave; probe rows nonzero, mask_get, mask_set_dev0d, mask_set_vec, masked_select,
where1, unique, unique_consec, repeat_interleave, bincount, one_hot on an H200 with torch 2.11."""

from __future__ import annotations

from hostgap.diagnosis.rule import WaitRule
from hostgap.diagnosis.waits import Wait
from hostgap.trace.model import CopyKind

OPS = (
    "nonzero",
    "nonzero_numpy",
    "argwhere",
    "masked_select",
    "_unique",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "unique_dim_consecutive",
    "repeat_interleave",
    "bincount",
    "one_hot",
    "to_sparse",
    "_to_sparse",
    "coalesce",
    "_coalesce",
)


class DataDependentShape(WaitRule):
    """A shape depends on values."""

    code = "HG103"
    name = "data-dependent-shape"
    title = "A shape depends on values, so the host waits for them"
    advice = (
        "Keep shapes fixed: torch.where(mask, a, b), nonzero_static, output_size=, num_classes=."
    )
    order = 30  # before HG101: several of these ops read their size with aten::item

    def claims(self, wait: Wait) -> bool:
        """A size read back, or a plain synchronize (older versions), inside one of the ops."""
        return wait.copy in (CopyKind.D2H, CopyKind.NONE) and wait.inside(*OPS)
