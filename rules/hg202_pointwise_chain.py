"""HG202 pointwise-chain: a row of short kernels that fewer could do.

## What it sees
Three or more short elementwise, reduction or softmax kernels in a row on one stream, launched by
one run of one function, with no matrix product between: a norm, a rotary embedding, a mask, a
loss written out. Copies on the device between them belong to the chain. Chains with the same
kernels at the same place are one finding, whose count is how often the chain runs; with more than
ten, those of one place are one finding, and what is left is the last. Left out are kernels inside
CUDA graphs, where fewer launches save little, kernels that Inductor made, and attention written
out (HG204).

## Why it costs
Each kernel reads what the one before wrote, and takes the host a launch of 5 to 15 us for 1 or 2
us of work. The predicted saving keeps one kernel of ten and one more for every reduction after
the first, each as long as the longest it replaces, and no host time but that of the other
launches and the framework ops around them.

## Example
    def norm(x, weight, eps):                     # 8 kernels
        x32 = x.float()
        y = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
        return weight * y.to(x.dtype)

## Use instead
    norm = torch.compile(norm)                    # 1 kernel

or the operator that exists for it: `F.rms_norm`, `F.layer_norm`, a fused rotary embedding,
`foreach=True` or `fused=True` of an optimizer.

## Options
- `min-kernels` (3): fewest kernels that make a chain.
- `longest-us` (50.0): a longer kernel ends the chain.

## Sources
The reference decoder on an H200: 856 of its 1,228 kernels a step stand in such chains, and
torch.compile leaves 372 kernels. SGLang and vLLM ship fused norms and rotary embeddings for the
same reason."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.edit import Edit
from hostgap.diagnosis import rule as base
from hostgap.diagnosis.chains import KernelSequence
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.model import Site
from hostgap.diagnosis.rule import Match, Rule

MOST_FUSED = 10  # ops that one fused kernel replaces at most
MOST_FOUND = 10  # chains told one by one; with more, one finding a place


class Options(base.Options, frozen=True):
    """Thresholds of HG202."""

    min_kernels: int = 3
    longest_us: float = 50.0


class PointwiseChain(Rule):
    """Short kernels in a row that fewer could do."""

    code = "HG202"
    name = "pointwise-chain"
    title = "Short kernels in a row that could be fused"
    advice = "torch.compile the function, or use the fused operator for it."
    fix = "compile+cuda-graph"
    options = Options

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """A match per place and chain; with many, per place."""
        sequence = context.sequence
        short = sequence.length() <= options.longest_us * 1_000
        member = sequence.among("PRSC") & short & ~sequence.in_attention
        runs = sequence.runs(member, sequence.region, options.min_kernels)
        runs = _kernels_at_ends(runs, ~sequence.among("C"), options.min_kernels)
        places: list[tuple[Site | None, list[NDArray[np.intp]]]]
        places = [(site, [rows]) for site, rows in sequence.grouped(runs)]
        if len(places) > MOST_FOUND:
            by_site: dict[Site | None, list[NDArray[np.intp]]] = {}
            for site, chains in places:
                by_site.setdefault(site, []).extend(chains)
            places = list(by_site.items())
        if len(places) > MOST_FOUND:
            rest = [rows for _, chains in places[MOST_FOUND - 1 :] for rows in chains]
            places = [*places[: MOST_FOUND - 1], (places[MOST_FOUND - 1][0], rest)]
        for site, chains in places:
            yield _match(sequence, site, chains)


def _kernels_at_ends(
    runs: NDArray[np.intp], is_kernel: NDArray[np.bool_], least: int
) -> NDArray[np.intp]:
    """Runs cut to their first and last kernel, of those that have so many."""
    if len(runs) == 0:
        return runs
    before = np.concatenate(([0], np.cumsum(is_kernel)))
    kernels = np.flatnonzero(is_kernel)
    first, behind = before[runs[:, 0]], before[runs[:, 1]]
    keep = behind - first >= least
    first, behind = first[keep], behind[keep]
    return np.stack((kernels[first], kernels[behind - 1] + 1), axis=1)


def _match(sequence: KernelSequence, site: Site | None, chains: list[NDArray[np.intp]]) -> Match:
    """One place's chains; each of `chains` holds the runs of one."""
    edit = Edit()
    positions = []
    for runs in chains:
        table = runs[:, :1] + np.arange(runs[0, 1] - runs[0, 0])
        edit = edit.plus(_fused(sequence, table))
        positions.append(table.ravel())
    calls = sequence.call[np.sort(np.concatenate(positions))].astype(np.int64)
    low, high = chains[0][0].tolist()
    told = sequence.told(low, high)
    title = f"{high - low} short kernels in a row that could be fused"
    if len(chains) > 1:
        title = (
            f"{len(chains)} chains of short kernels that could be fused; the first has {high - low}"
        )
    title += f": {told}" if told else ""
    count = sum(len(runs) for runs in chains)
    return Match(calls=calls, edit=edit, site=site, count=count, title=title)


def _fused(sequence: KernelSequence, table: NDArray[np.intp]) -> Edit:
    """The world in which chains of the same kernels, a row each, are fused."""
    letters = [sequence.letters[at] for at in table[0].tolist()]
    heads: list[int] = []
    reduced = False
    for i, letter in enumerate(letters):
        again = letter in "RS" and reduced
        reduced = reduced or letter in "RS"
        if not heads or again or i - heads[-1] >= MOST_FUSED:
            heads.append(i)
    longest = np.maximum.reduceat(sequence.length(table), heads, axis=1)
    kept = table[:, heads]
    length = dict(zip(kept.ravel().tolist(), longest.ravel().tolist(), strict=True))
    return sequence.edit(np.delete(table, heads, axis=1).ravel(), length)
