"""HG110 constant-upload: the same small upload in every step, likely of the same values.

## What it sees
Copies of few bytes from pageable memory to the device which one site makes in every step, in the
same number and sizes. From a trace alone it says "likely", and only informs: a trace holds no
contents, and positions or block tables keep their size while they change. The wait itself, and
what it costs, is HG104's (or HG105's, HG109's).

## Why it costs
Every such upload is an op, a launch and mostly a wait, for values that were on the device
already.

## Example
    def step(x):
        scale = torch.tensor([0.5, 1.0, 2.0], device="cuda")     # uploaded in every step
        return x * scale

## Use instead
    scale = torch.tensor([0.5, 1.0, 2.0], device="cuda")         # once
    def step(x):
        return x * scale

or `register_buffer` in a module; `torch.full`, `torch.arange` for what is a pattern; or a Python
number where a tensor is not needed.

## Options
- `max-bytes` (4096): the largest upload that is taken to be a constant.

## Sources
Probe rows tensor_list_dev, tensor_scalar_dev, set_elem_scalar, idx_list on an H200 with
torch 2.11."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hostgap.diagnosis import rule as base
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.rule import Match, Need, Rule
from hostgap.trace.model import CopyKind, Int64, Memory

FEWEST_STEPS = 3  # in which the same must be seen


class Options(base.Options, frozen=True):
    """Thresholds of HG110."""

    max_bytes: int = 4096


class ConstantUpload(Rule):
    """The same small upload in every step."""

    code = "HG110"
    name = "constant-upload"
    title = "The same upload in every step: likely a constant"
    advice = "If its values stay the same, upload it once; or build it on the device."
    needs = (Need.API_CALLS, Need.STEPS)
    options = Options
    informs = True

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """Sites whose uploads are the same in number and sizes in every step."""
        gpu, launched = context.trace.gpu_ops, context.launched
        op = launched.op
        small = (gpu.copy_kind[op] == CopyKind.H2D) & (gpu.src_mem[op] == Memory.PAGEABLE)
        small &= (gpu.bytes[op] > 0) & (gpu.bytes[op] <= options.max_bytes) & ~launched.graph
        calls, step = launched.call[small], launched.step[small]
        sizes = gpu.bytes[op[small]]
        if context.steps < FEWEST_STEPS:
            return
        for site, mine in context.by_site(calls):
            at = np.searchsorted(calls, mine)
            each = _alike(step[at], sizes[at], context.steps)
            if len(each):
                what = f"{len(each)} uploads" if len(each) > 1 else "An upload"
                title = f"{what} of {int(each.sum()):,} bytes in every step: likely a constant"
                yield Match(calls=mine, site=site, title=title)


def _alike(step: Int64, sizes: Int64, steps: int) -> Int64:
    """The sizes of a step's uploads where all steps have the same, else none."""
    each, rest = divmod(len(step), steps)
    if rest or each == 0:
        return sizes[:0]
    order = np.lexsort((sizes, step))
    by_step, table = step[order].reshape(steps, each), sizes[order].reshape(steps, each)
    same = (table == table[0]).all() and (by_step == by_step[:, :1]).all()
    return table[0] if same and len(np.unique(by_step[:, 0])) == steps else sizes[:0]
