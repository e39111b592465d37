"""HG204 unfused-attention: attention written out as products and a softmax.

## What it sees
A matrix product, the kernels that scale and mask, a softmax, casts or dropout, and a second
product, within one run of a module. Where the trace has framework ops, products of linear layers
do not count (a router or a classifier). A softmax that is itself written out (max, exp, sum,
divide) is not recognised, nor are kernels inside CUDA graphs.

## Why it costs
The scores go to memory and come back for each kernel, and each is a launch. A fused kernel reads
queries, keys and values once. The predicted saving keeps one kernel as long as the two products
together, and whatever builds the mask: of the kernels before the softmax only the scale, the
mask's add and a cast are taken away.

## Example
    scores = query @ key.transpose(-2, -1) / math.sqrt(head_dim) + mask
    out = torch.softmax(scores, dim=-1, dtype=torch.float32).to(value.dtype) @ value

## Use instead
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)

Where the products stand inside `scaled_dot_product_attention` already, it fell back to its math
backend: a dtype or head size that no fused backend takes, a mask where only flash attention was
allowed, or backends that were switched off. With `torch.nn.attention.sdpa_kernel` allowing one
fused backend alone, torch warns why it cannot take it.

## Options
None.

## Sources
FlashAttention; PyTorch's scaled_dot_product_attention; the reference decoder on an H200."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hostgap.diagnosis.chains import Attention, KernelSequence
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.model import Site
from hostgap.diagnosis.rule import Match, Rule

SDPA = "aten::scaled_dot_product_attention"


class UnfusedAttention(Rule):
    """Attention written out as products and a softmax."""

    code = "HG204"
    name = "unfused-attention"
    title = "Attention is written out as products and a softmax"
    advice = "Call F.scaled_dot_product_attention, with enable_gqa in place of repeated keys."

    def find(self, context: Context, options: object) -> Iterator[Match]:
        """A match per place."""
        sequence = context.sequence
        first = np.array([a.gemms[0] for a in sequence.attentions], np.int64)
        if len(first) == 0:
            return
        inside = sequence.inside(first, SDPA)
        by_call = dict(zip(sequence.call[first].tolist(), range(len(first)), strict=True))
        for site, calls in context.by_site(sequence.call[first].astype(np.int64)):
            rows = [by_call[call] for call in calls.tolist()]
            fallback = bool(inside[rows].all())
            yield _match(sequence, [sequence.attentions[i] for i in rows], site, fallback=fallback)


def _match(
    sequence: KernelSequence, attentions: list[Attention], site: Site | None, *, fallback: bool
) -> Match:
    gemms = np.array([attention.gemms for attention in attentions])
    joint = sequence.length(gemms[:, 0]) + sequence.length(gemms[:, 1])
    kept = dict(zip(gemms[:, 0].tolist(), joint.tolist(), strict=True))
    drop, calls = [], []
    for attention in attentions:
        first, second = attention.gemms
        gone = [*attention.inner.tolist(), second]
        drop += gone
        calls += [first, *gone]
    kernels = len(attentions[0].inner) + 2
    title = f"Attention is written out: {kernels} kernels where one would do"
    advice = ""
    if fallback:
        title = "scaled_dot_product_attention falls back to its math backend"
        advice = "Give it a dtype, head size and mask that a fused backend takes."
    return Match(
        calls=sequence.call[calls].astype(np.int64),
        edit=sequence.edit(np.array(drop, np.intp), kept),
        site=site,
        count=len(attentions),
        title=title,
        advice=advice,
    )
