"""HG301 uncaptured-region: part of a steady step is launched outside any CUDA graph.

## What it sees
A stretch of launches with no graph launch between them: a whole eager step, or what stands
before, between or behind the graph launches of a step, put together over all steps and by place.
It says how much of the GPU's idle time falls into the stretch, and what in it blocks a capture: a
wait for the GPU, a copy from or to pageable memory, an allocation, an event query, a number of
launches that changes from step to step. Uploads in front of a stretch and downloads behind it are
not counted: they have to stay outside a graph.

## Why it costs
Each of these launches takes the host 5 to 15 us of Python, dispatch and driver. As one graph they
take one launch and 0.2 to 0.5 us of host time per node.

## Example
    for step in range(n):
        graph.replay()                              # the model: 1 launch
        logits = logits / temperature               # sampling: 40 launches
        probs = torch.softmax(logits, -1)
        probs[mask.nonzero()] = 0                   # blocks a capture: waits for the GPU
        ...

## Use instead
    with torch.cuda.graph(graph):                   # the model and the sampling
        logits = model(tokens)
        probs = torch.softmax(logits / temperature, -1)
        probs.masked_fill_(mask, 0)                 # a fixed shape: nothing to wait for
        tokens.copy_(torch.multinomial(probs, 1))

First take out what blocks the capture, then capture. In a serving engine graphs may only be
switched off: `enforce_eager=True` in vLLM, `--disable-cuda-graph` in SGLang.

## Options
- `min-launches` (10): launches a step below which a stretch is left alone.

## Sources
PyTorch's CUDA graph notes (what may not be captured); vLLM's full and piecewise graphs;
measured on an H200: 1,228 launches, 21 ms eager, 2.9 ms as one graph."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hostgap.analysis.causes import Cause
from hostgap.analysis.intervals import Intervals, covers, overlap, union
from hostgap.diagnosis import rule as base
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import HOST_LATE, caused_by
from hostgap.diagnosis.model import Site
from hostgap.diagnosis.regions import Launches, capture, waits_in
from hostgap.diagnosis.rule import Match, Need, Rule
from hostgap.trace.model import Int64, Role

LATE = (
    *HOST_LATE,
    Cause.SYNC,
    Cause.COPY_CALL,
    Cause.ALLOC,
    Cause.FREE,
    Cause.HOST_ALLOC,
)
NOT_CAPTURED = {
    Role.ALLOC: "allocates",
    Role.FREE: "frees",
    Role.HOST_ALLOC: "allocates",
    Role.QUERY: "queries an event",
    Role.MODULE_LOAD: "loads kernels",
}
MOST_BLOCKERS = 3  # named in the advice


class Options(base.Options, frozen=True):
    """Thresholds of HG301."""

    min_launches: int = 10


class UncapturedRegion(Rule):
    """Part of a step is outside any graph."""

    code = "HG301"
    name = "uncaptured-region"
    title = "Part of the step is launched outside any CUDA graph"
    advice = "Capture it in a CUDA graph."
    needs = (Need.API_CALLS, Need.STEPS)
    fix = "cuda-graph"
    options = Options

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """The stretches outside graphs, by their position in the step and their place."""
        all_of_them = context.launches
        eager = np.flatnonzero(all_of_them.eager)
        before, graphs = all_of_them.before[eager], all_of_them.graphs[eager]
        position = np.where(
            graphs == 0, 0, np.where(before == 0, 1, np.where(before == graphs, 3, 2))
        ).astype(np.int8)
        groups: dict[tuple[int, Site | None], list[Int64]] = {}
        # which of the stretches of a step: those with as many graphs before them are alike
        key = position.astype(np.int64) << 32 | np.where(position == 3, 0, before)
        order = np.argsort(key, kind="stable")
        stretches = np.split(eager[order], np.flatnonzero(np.diff(key[order])) + 1)
        del before, graphs, key, order  # matches take as much again
        for rows in stretches:
            if len(rows):
                where = int(position[np.searchsorted(eager, rows[0])])
                site = context.region_site(all_of_them.call[rows])
                groups.setdefault((where, site), []).append(rows)
        for (where, site), found in groups.items():
            rows = np.sort(np.concatenate(found))
            steps = len(np.unique(all_of_them.step[rows]))
            if len(rows) >= options.min_launches * steps:
                yield _match(context, all_of_them, rows, where, site)


def _match(
    context: Context, all_of_them: Launches, rows: Int64, where: int, site: Site | None
) -> Match:
    calls, step = all_of_them.call[rows], all_of_them.step[rows]
    before = all_of_them.before[rows]
    # launches are in order: those of one region stand together
    region = np.cumsum(np.diff(step, prepend=step[0]) | np.diff(before, prepend=before[0]) != 0)
    spans = _spans(context, calls, region)
    idle = _late_within(context, spans)
    each = np.unique(step, return_counts=True)[1]
    place = ("", " before the first graph", " between graphs", " behind the last graph")[where]
    some = "" if len(each) == context.steps else f", in {len(each)} of {context.steps} steps"
    title = (
        f"{each.mean():,.0f} launches a step outside any CUDA graph{place}{some}; the GPU idles "
        f"{100 * idle / max(1, context.window_ns):.0f} % of the time meanwhile"
    )
    blockers = _blockers(context, calls, spans)
    if each.min() != each.max():
        blockers.append(f"launches change from step to step ({each.min():,} to {each.max():,})")
    advice = ""
    if blockers:
        advice = f"Capture it in a CUDA graph; what blocks that: {'; '.join(blockers)}."
    edit = capture(context, calls, region)
    return Match(calls=calls, edit=edit, site=site, title=title, advice=advice)


def _late_within(context: Context, spans: Intervals) -> int:
    """Idle ns in merged host spans for which the host was late."""
    total = 0
    for parts in context.pieces:
        late = caused_by(parts, *LATE)
        pieces = Intervals(parts.start[late], parts.end[late])
        total += int(overlap(spans, pieces).sum())
    return total


def _spans(context: Context, calls: Int64, region: Int64) -> Intervals:
    """Host time (GPU clock) from the first launch of each region to its last."""
    count = int(region.max()) + 1
    start = np.full(count, np.iinfo(np.int64).max)
    end = np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(start, region, context.call_start[calls])
    np.maximum.at(end, region, context.call_end[calls])
    return union(start, end)


def _blockers(context: Context, launched: Int64, spans: Intervals) -> list[str]:
    """What must not be in a capture, the most frequent first."""
    counts: dict[str, int] = {}
    waits = waits_in(context, spans)
    kinds = context.waits.kind[np.isin(context.waits.call, waits)]
    for index, often in zip(*np.unique(kinds, return_counts=True), strict=True):
        kind = context.waits.kinds[index]
        op = next((name for name in kind.ops if "::" in name), kind.call)
        what = f"{op} waits for the GPU"
        counts[what] = counts.get(what, 0) + int(often)
    api = context.trace.api_calls
    calls = context.calls_of(*NOT_CAPTURED)
    # other threads may do what they like: the capture is this one's
    calls = calls[np.isin(api.thread[calls], api.thread[launched])]
    calls = calls[covers(spans, context.call_start[calls])]
    for role, does in NOT_CAPTURED.items():
        mine = calls[api.role[calls] == role]
        for code, often in zip(*np.unique(api.name[mine], return_counts=True), strict=True):
            counts[f"{context.trace.names[code]} {does}"] = int(often)
    most = sorted(counts.items(), key=lambda item: -item[1])[:MOST_BLOCKERS]
    return [f"{what} ({often / context.steps:,.3g} a step)" for what, often in most]
