"""HG205 unfused-epilogue: a bias add and an activation, each a kernel behind its product.

## What it sees
A matrix product or convolution, then an add, then an activation (GELU, ReLU, SiLU, sigmoid,
tanh), both in one function and nothing else with them. Longer rows are HG202. An activation alone
behind a product is not reported: torch.compile would leave it a kernel too.

## Why it costs
Two launches and two passes over the product's result, where the product can add the bias while it
writes and one kernel can do the rest. The predicted saving takes away the shorter of the two
kernels and one launch.

## Example
    h = F.gelu(x @ self.weight + self.bias)

## Use instead
    h = F.gelu(F.linear(x, self.weight_t, self.bias))   # the bias in the product's epilogue

or torch.compile the function; with `mode="max-autotune"` the activation joins the product too.

## Options
None.

## Sources
cuBLASLt's epilogues (bias, GELU, ReLU); `aten::addmm` takes the bias along."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from hostgap.diagnosis.context import Context
from hostgap.diagnosis.rule import Match, Rule

_ADD = re.compile(r"^add_?$|CUDAFunctor\w*_add|AddFunctor")
_ACTIVATION = re.compile(r"gelu|relu|silu|sigmoid|tanh|hardswish|mish|clamp_min|launch_clamp", re.I)


class UnfusedEpilogue(Rule):
    """A bias add and an activation, each a kernel behind its product."""

    code = "HG205"
    name = "unfused-epilogue"
    title = "An add and an activation behind a matrix product are kernels of their own"
    advice = "Give the bias to the product (F.linear, addmm), or torch.compile the function."
    fix = "compile+cuda-graph"

    def find(self, context: Context, options: object) -> Iterator[Match]:
        """A match per place."""
        sequence = context.sequence
        runs = sequence.runs(sequence.among("PRSC"), sequence.region, 2)
        low = runs[(runs[:, 1] - runs[:, 0] == 2) & (runs[:, 0] > 0), 0]
        pointwise, product = sequence.among("P"), sequence.among("GBK")
        low = low[pointwise[low] & pointwise[low + 1] & product[low - 1]]
        found = {
            int(sequence.call[at]): at
            for at in low.tolist()
            if sequence.does(at, _ADD)
            and sequence.does(at + 1, _ACTIVATION)
            and sequence.together(at - 1, at + 2)
        }
        for site, calls in context.by_site(np.array(list(found), np.int64)):
            add = np.array([found[call] for call in calls.tolist()], np.intp)
            longest = np.maximum(sequence.length(add), sequence.length(add + 1))
            length = dict(zip(add.tolist(), longest.tolist(), strict=True))
            yield Match(
                calls=np.sort(sequence.call[np.concatenate((add, add + 1))]),
                edit=sequence.edit(add + 1, length),
                site=site,
                count=len(add),
            )
