"""HG311 drafter-uncaptured: the draft phase of speculative decoding runs without a CUDA graph.

## What it sees
Frames or annotations of a draft phase (vLLM's `spec_decode/*.py: propose`, SGLang's
`speculative/*.py: draft`, an annotation that names a draft) under which kernels are launched one
by one, and the waits for the GPU among them.

## Why it costs
A drafter is small: its kernels take 2 to 5 us each, less than their launches. It runs several
times per step, and every one of its launches is in the way of the verification behind it.

## Example
    for _ in range(num_draft_tokens):
        logits = drafter(token)       # eager: 40 launches each time
        token = logits.argmax(-1)
        if token.item() == eos:       # and a wait
            break

## Use instead
    with torch.cuda.graph(graph):     # all draft tokens, no early end
        for i in range(num_draft_tokens):
            tokens[i] = drafter(token).argmax(-1)
            token = tokens[i]

## Options
- `min-launches` (5): launches a draft phase must make.

## Sources
vllm#20078 (4 to 5 % of the throughput)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from hostgap.analysis.intervals import union
from hostgap.diagnosis import rule as base
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import event_site, named, outermost
from hostgap.diagnosis.model import Site
from hostgap.diagnosis.regions import capture, waits_in
from hostgap.diagnosis.rule import Match, Need, Rule
from hostgap.trace.model import Int64

DRAFT = re.compile(
    r"(?:spec_decode|speculative)/\w+\.py\(\d+\): propose\w*$"
    # a function or an annotation that names a draft, and does not check one
    r"|^(?:.*: )?(?!\w*(?:verify|accept|reject|check))\w*draft\w*$",
    re.IGNORECASE,
)


class Options(base.Options, frozen=True):
    """Thresholds of HG311."""

    min_launches: int = 5


class DrafterUncaptured(Rule):
    """The drafter of speculative decoding is launched kernel by kernel."""

    code = "HG311"
    name = "drafter-uncaptured"
    title = "The draft phase of speculative decoding runs without a CUDA graph"
    advice = "Capture the drafter's steps in a graph, and end them on the GPU."
    needs = (Need.API_CALLS, Need.STEPS)
    options = Options

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """The draft phases that launch kernels outside graphs, by place."""
        api, made = context.trace.api_calls, context.launches
        eager = made.call[made.eager]
        found: dict[Site | None, list[Int64]] = {}
        phases: dict[Site | None, list[tuple[int, int]]] = {}
        for code, events in outermost(context, named(context, DRAFT)):
            nested = context.host[code].nested
            start, end = nested.start[events], nested.end[events]
            mine = eager[api.thread[eager] == code]
            begun = context.call_start[mine]
            low, high = np.searchsorted(begun, start), np.searchsorted(begun, end)
            for at in np.flatnonzero(high - low >= options.min_launches).tolist():
                site = event_site(context, code, int(events[at]))
                found.setdefault(site, []).append(mine[low[at] : high[at]])
                phases.setdefault(site, []).append((int(start[at]), int(end[at])))
        for site, runs in found.items():
            calls = np.concatenate(runs)
            region = np.repeat(np.arange(len(runs)), [len(run) for run in runs])
            spans = union(*np.array(phases[site], np.int64).T)
            waits = waits_in(context, spans)
            title = f"The draft phase makes {len(calls) / len(runs):,.0f} launches outside graphs"
            if len(waits):
                title += f" and waits for the GPU {len(waits) / len(runs):,.3g} times"
            edit = capture(context, calls, region)
            yield Match(calls=calls, edit=edit, site=site, count=len(runs), title=title)
