"""HG203 split-projection: several matrix products of, likely, the same input.

## What it sees
Linear layers that could be one, in three forms: two to four of one module before its attention
(Q, K, V; also with a norm behind each), with stacks; a gate and an up projection, that is a
product, an activation, a product and the multiplication of both; and linear layers in a row with
nothing between. A trace holds no pointers, so that they read the same input is likely, not known:
a low-rank pair in a row looks the same.

## Why it costs
In decoding, each product reads its weights and does little else; three small ones take three
launches and leave the GPU half empty each. The predicted saving is that of the launches alone:
the joint product is taken to last as long as its parts together.

## Example
    q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
    y = self.down(F.silu(self.gate(x)) * self.up(x))

## Use instead
    q, k, v = self.qkv_proj(x).split(sizes, dim=-1)
    gate, up = self.gate_up(x).chunk(2, dim=-1)
    y = self.down(F.silu(gate) * up)

with the weights concatenated once, when they are loaded.

## Options
None.

## Sources
vLLM's QKVParallelLinear and MergedColumnParallelLinear; the reference decoder has 16 of each form
a step."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from hostgap.diagnosis.chains import KernelSequence
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.model import Site
from hostgap.diagnosis.rule import Match, Need, Rule

MOST = 4  # projections before one attention
_GATE = re.compile(r"GK?(P)M?GK?P")
_ACTIVATION = re.compile(r"silu|gelu|relu|sigmoid|tanh|clamp_min|launch_clamp", re.I)
_PRODUCT = re.compile(r"^mul_?$|MulFunctor")


class SplitProjection(Rule):
    """Several matrix products of, likely, the same input."""

    code = "HG203"
    name = "split-projection"
    title = "Several products, likely of the same input"
    advice = "Concatenate their weights: one product, then split."
    needs = (Need.API_CALLS, Need.OPS)

    def find(self, context: Context, options: object) -> Iterator[Match]:
        """A match per place and form."""
        sequence = context.sequence
        groups: dict[str, list[list[int]]] = {}
        taken: set[int] = set()
        for form, gemms in (*_of_attention(sequence), *_gates(sequence), *_rows(sequence)):
            if taken.isdisjoint(gemms):
                taken.update(gemms)
                groups.setdefault(form, []).append(gemms)
        for form, found in groups.items():
            by_call = {int(sequence.call[gemms[0]]): gemms for gemms in found}
            for site, calls in context.by_site(np.array(list(by_call), np.int64)):
                mine = [by_call[call] for call in calls.tolist()]
                yield _match(sequence, form, mine, site)


def _match(
    sequence: KernelSequence, form: str, groups: list[list[int]], site: Site | None
) -> Match:
    """Each group's products become one, as long as they are together."""
    parts = [[at for gemm in gemms for at in _parts(sequence.letters, gemm)] for gemms in groups]
    every = np.array([at for part in parts for at in part], np.intp)
    first = np.cumsum([len(part) for part in parts]) - [len(part) for part in parts]
    total = np.add.reduceat(sequence.length(every), first)
    length = dict(zip(every[first].tolist(), total.tolist(), strict=True))
    calls = sequence.call[[at for gemms in groups for at in gemms]].astype(np.int64)
    sizes = sorted({len(gemms) for gemms in groups})
    number = f"{sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else f"{sizes[0]}"
    return Match(
        calls=calls,
        edit=sequence.edit(np.delete(every, first), length),
        site=site,
        count=len(groups),
        title=f"{number} {form}, likely of the same input",
    )


def _parts(letters: str, gemm: int) -> list[int]:
    """A product and, behind it, the kernel that ends a split one."""
    return [gemm, gemm + 1] if letters[gemm + 1 : gemm + 2] == "K" else [gemm]


def _of_attention(sequence: KernelSequence) -> Iterator[tuple[str, list[int]]]:
    """The linear layers of a module before its attention."""
    module = sequence.module
    if sequence.stacks_of_calls:  # they do not tell one run of a function from the next
        return
    core = sequence.among("A")
    core[[a.gemms[0] for a in sequence.attentions]] = True
    first: dict[tuple[int, int], int] = {}
    for at in np.flatnonzero(core & (module >= 0)).tolist():
        first.setdefault((int(sequence.lane[at]), int(module[at])), at)
    before: dict[tuple[int, int], list[int]] = {}
    for at in np.flatnonzero(sequence.among("G") & (module >= 0)).tolist():
        key = (int(sequence.lane[at]), int(module[at]))
        if at < first.get(key, -1):
            before.setdefault(key, []).append(at)
    for gemms in before.values():
        if 2 <= len(gemms) <= MOST:
            yield "projections before one attention", gemms


def _gates(sequence: KernelSequence) -> Iterator[tuple[str, list[int]]]:
    """Product, activation, product, multiplication."""
    at = 0
    while match := _GATE.search(sequence.letters, at):
        low, high = match.span()
        fits = sequence.does(match.start(1), _ACTIVATION) and sequence.does(high - 1, _PRODUCT)
        if fits and sequence.together(low, high, in_module=True):
            yield "projections, gate and up", [low, low + match[0].rindex("G")]
            at = high
        else:
            at = low + 1


def _rows(sequence: KernelSequence) -> Iterator[tuple[str, list[int]]]:
    """Linear layers with nothing between them but their own memsets and ends."""
    for low, high in sequence.runs(sequence.among("GKM"), sequence.module, 2).tolist():
        gemms = [at for at in range(low, high) if sequence.letters[at] == "G"]
        if len(gemms) > 1:
            yield "linear layers in a row", gemms
