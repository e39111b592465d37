"""HG310 graph-bucket-miss: decode steps of some batch sizes run without the graph that others have.

## What it sees
Steps that a serving engine labels (vLLM `execute_context_0(0)_generation_14(14)`, SGLang
`step[DECODE bs=16]`): of the decode steps, some launch a graph and others launch their kernels
one by one. Prefill steps, whose shapes change anyhow, are left alone, and so are steps that are
only numbered.

## Why it costs
A decode step without its graph takes two to four times as long: hundreds of launches instead of
one.

## Example
    --cuda-graph-bs 1 2 4 8 16        # 17 requests run eagerly

## Use instead
    --cuda-graph-bs 1 2 4 8 16 24 32  # 17 requests run as 24

Add the sizes that occur (vLLM: `cudagraph_capture_sizes`, `max_num_seqs` no larger than the
largest of them), or pad to the next one.

## Options
- `min-launches` (20): kernel launches from which a step without a graph counts as eager.

## Sources
sglang#33900 (four times slower), vllm#52000."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from hostgap.analysis.step_classes import phase
from hostgap.diagnosis import rule as base
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.regions import capture
from hostgap.diagnosis.rule import Match, Need, Rule

DECODE = re.compile(r"decode", re.IGNORECASE)
OTHER_PHASE = re.compile(r"prefill|extend|mixed", re.IGNORECASE)
BATCH = re.compile(r"bs=(\d+)|generation_(\d+)")
MOST_SIZES = 6  # named in the title


class Options(base.Options, frozen=True):
    """Thresholds of HG310."""

    min_launches: int = 20


class GraphBucketMiss(Rule):
    """Decode steps of some batch sizes have no graph."""

    code = "HG310"
    name = "graph-bucket-miss"
    title = "Decode steps of some batch sizes run without a CUDA graph, others with one"
    advice = "Capture the batch sizes that occur, or pad to the next one that is captured."
    needs = (Need.API_CALLS, Need.STEPS)
    options = Options

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """One match for all decode steps that miss their graph."""
        labels = context.analysis.steps.marks.label
        phases = [phase(labels[step]) for step in range(len(labels))]
        decode = np.array(
            [bool(DECODE.search(name)) and not OTHER_PHASE.search(name) for name in phases],
            np.bool_,
        )
        made = context.launches
        mine = (made.step >= 0) & decode[np.maximum(made.step, 0)] if decode.any() else made.graph
        if not decode.any():
            return
        with_graph = np.unique(made.step[mine & made.graph])
        rows = np.flatnonzero(mine & (made.graphs == 0) & made.eager)
        steps, each = np.unique(made.step[rows], return_counts=True)
        steps = steps[each >= options.min_launches]
        if len(steps) == 0 or len(with_graph) == 0:
            return
        rows = rows[np.isin(made.step[rows], steps)]
        missing = _sizes([labels[step] for step in steps.tolist()])
        have = _sizes([labels[step] for step in with_graph.tolist()])
        title = f"{len(steps)} of {len(steps) + len(with_graph)} decode steps run without a graph"
        if missing and have:
            title += f": batch {missing}, while {have} have one"
        calls = made.call[rows]
        edit = capture(context, calls, made.step[rows])
        site = context.region_site(calls)
        yield Match(calls=calls, edit=edit, site=site, count=len(steps), title=title)


def _sizes(labels: list[str]) -> str:
    """The batch sizes that labels name, each once."""
    found = {int(m[1] or m[2]) for label in labels if (m := BATCH.search(label))}
    sizes = [str(size) for size in sorted(found)]
    return ", ".join(sizes[:MOST_SIZES]) + (", ..." if len(sizes) > MOST_SIZES else "")
