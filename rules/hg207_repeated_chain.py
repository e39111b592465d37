"""HG207 repeated-chain: kernels that always follow one another.

## What it sees
Chains of three or more kernels that recur within a step and whose first kernel is never followed
by anything else: proximity score 1, the number of times the chain runs over the number of times
its first kernel does. The chains with the most launches to save are listed; a chain that lies in
a longer one is not. Kernels inside CUDA graphs and collectives are left out.

## Why it costs
It need not: this rule informs. What always runs in the same order can be fused or captured as
one, and the list says where to begin, also where HG202 to HG205 do not know the kernels. Findings
of those and of this one overlap.

## Example
    for layer in layers:          # the same 76 kernels, 16 times
        x = layer(x)

## Use instead
    layer = torch.compile(layer)

or capture the region in a CUDA graph.

## Options
- `min-kernels` (3): shortest chain that is listed.
- `most` (3): how many chains are listed.

## Sources
SKIP: proximity scores of kernel chains, as candidates for fusion (Vellaisamy et al. 2025)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hostgap.diagnosis import rule as base
from hostgap.diagnosis.chains import KernelSequence, changes
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.rule import Match, Rule
from hostgap.trace.columns import distinct_codes
from hostgap.trace.model import Bool, Int32

LONGEST = 128  # kernels of a chain


class Options(base.Options, frozen=True):
    """Thresholds of HG207."""

    min_kernels: int = 3
    most: int = 3


class RepeatedChain(Rule):
    """Kernels that always follow one another."""

    code = "HG207"
    name = "repeated-chain"
    title = "Kernels that always follow one another"
    advice = "Compile or capture the function that launches them."
    fix = "compile+cuda-graph"
    options = Options
    informs = True

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """The chains with the most launches to save, each kernel in one of them at most."""
        sequence = context.sequence
        collective = context.collective[sequence.op]
        # what no chain may hold, and where none may cross, gets a number of its own
        name = sequence.name.copy()
        name[sequence.graph | collective] = -1
        last = np.ones(len(name), np.bool_)
        last[:-1] = changes(sequence.lane, sequence.step)[1:]
        room = _room(last, name < 0)
        found = []
        for code in distinct_codes(name[name >= 0]).tolist():
            at = np.flatnonzero(name == code)
            if len(at) >= 2 * context.steps:
                found.append((at, _size(name, room, at)))
        found.sort(key=lambda chain: -(chain[1] - 1) * len(chain[0]))
        used = np.zeros(len(name), np.bool_)
        listed = 0
        for at, size in found:
            if listed == options.most or size < options.min_kernels:
                return
            chain = at[:, None] + np.arange(size)  # a row per run
            if used[chain].any():
                continue
            used[chain] = True
            listed += 1
            yield _match(context, sequence, chain)


def _room(last: Bool, barred: Bool) -> Int32:
    """Per op: how many ops, itself with them, follow up to the end of its step and lane."""
    index = np.arange(len(last), dtype=np.int32)
    stop = np.where(last, index + 1, np.int32(len(last)))
    stop[barred] = index[barred]
    stop = np.minimum.accumulate(stop[::-1])[::-1]
    return np.asarray(stop - index)


def _size(name: Int32, room: Int32, at: NDArray[np.intp]) -> int:
    """How long the chain is that begins with the kernel at these places; it ends before that
    kernel comes again."""
    longest = min(LONGEST, int(room[at].min()), int(np.diff(at).min(initial=LONGEST)))
    size = 1
    while size < longest and (name[at + size] == name[at[0] + size]).all():
        size += 1
    return size


def _match(context: Context, sequence: KernelSequence, chain: NDArray[np.intp]) -> Match:
    runs, size = chain.shape
    calls = sequence.call[chain.ravel()]
    told = sequence.told(int(chain[0, 0]), int(chain[0, -1]) + 1)
    title = f"{size} kernels that always follow one another" + (f": {told}" if told else "")
    site = context.region_site(sequence.call[chain[0]])
    return Match(calls=np.unique(calls), site=site, count=runs, title=title)
