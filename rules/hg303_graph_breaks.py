"""HG303 graph-breaks: a compiled function is broken into several graphs, each entered anew.

## What it sees
Inside one `Torch-Compiled Region` another one: behind a graph break, Dynamo goes on in a function
of its own, whose frame is named after the place of the break, such as `model.py(31):
torch_dynamo_resume_in_forward_at_31`. Several compiled functions that merely follow one another
(one per layer, say) are not broken.

## Why it costs
At each break the host returns to Python, checks guards, looks up the next graph and sets it up:
tens of us each time. Nothing is fused or captured across it. What breaks the graph is often a
wait as well: `.item()`, `print`, a branch on a tensor.

## Example
    @torch.compile
    def step(x):
        x = layer(x)
        if x.isnan().any():           # a branch on a value: break, and a wait
            raise ValueError
        return head(x)

## Use instead
    @torch.compile(fullgraph=True)    # says where and why it breaks, instead of breaking
    def step(x):
        return head(layer(x))

`TORCH_LOGS=graph_breaks` names each break and its reason. `torch.where` for branches,
`capture_scalar_outputs` for `.item()`, logging outside the compiled function.

## Options
None.

## Sources
PyTorch's notes on graph breaks; annotations of torch 2.11 (CUDA) and 2.13 (CPU)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from hostgap.analysis.edit import Edit
from hostgap.analysis.host import OP
from hostgap.analysis.intervals import union
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import at_or_under, event_names, event_site, named, outermost
from hostgap.diagnosis.model import Site
from hostgap.diagnosis.rule import Match, Need, Rule
from hostgap.trace.model import Int32, Int64

REGION = re.compile(r"^Torch-Compiled Region")
LOOKUP = re.compile(r"^TorchDynamo Cache Lookup$")
ENTERED = re.compile(r"^## Call CompiledFxGraph\b")
RESUME = re.compile(r"^(.*)\(\d+\): torch_dynamo_resume_in_(.+)_at_(\d+)$")


class GraphBreaks(Rule):
    """A compiled function that is broken into several graphs."""

    code = "HG303"
    name = "graph-breaks"
    title = "A compiled function breaks into several graphs"
    advice = "Compile with fullgraph=True, which names what breaks the graph, and take it out."
    needs = (Need.OPS, Need.STEPS)
    fix = "compile+cuda-graph"

    def find(self, context: Context, options: object) -> Iterator[Match]:
        """The breaks, by where Dynamo resumes; without stacks by the region that does."""
        region, entered = named(context, REGION), named(context, ENTERED)
        lookup = named(context, LOOKUP)
        breaks: dict[Site | None, list[tuple[int, int]]] = {}
        titles: dict[Site | None, str] = {}
        for code, outer in outermost(context, region):
            thread, names = context.host[code], event_names(context, code)
            start, end, parent = thread.nested.start, thread.nested.end, thread.nested.parent
            is_op = thread.table == OP
            is_region = region[names]
            inside = at_or_under(thread.nested, is_region)
            nested = np.flatnonzero(is_op & is_region & (parent >= 0))
            nested = nested[inside[parent[nested]] & context.in_steps(start[nested])]
            looked = start[is_op & lookup[names]]
            calls = start[is_op & entered[names]]
            for event in nested.tolist():
                # from the lookup of the next graph, inside the outermost region, to its entry
                at = int(np.searchsorted(looked, start[event])) - 1
                around = int(start[outer[np.searchsorted(start[outer], start[event], "right") - 1]])
                begin = int(looked[at]) if at >= 0 and looked[at] > around else int(start[event])
                at = int(np.searchsorted(calls, start[event]))
                entry = int(calls[at]) if at < len(calls) else int(end[event])
                site, title = _resumed(context, code, event, names)
                breaks.setdefault(site, []).append((begin, min(entry, int(end[event]))))
                titles[site] = title
        for site, spans in breaks.items():
            begins, ends = np.array(spans, np.int64).T
            yield Match(
                calls=_first_calls(context, ends),
                edit=Edit(cut=union(begins, ends)),
                site=site,
                count=len(spans),
                title=titles[site],
            )


def _resumed(context: Context, code: int, event: int, names: Int32) -> tuple[Site | None, str]:
    """The place of the break behind which a region goes on, and a title that names it."""
    child = event + 1  # events are in order of start: inside the region, its frame comes first
    if child < len(names) and context.host[code].nested.parent[child] == event:
        match = RESUME.match(context.trace.names[names[child]])
        if match:
            file, function, line = match.groups()
            site = Site(file=file, line=int(line), function=function, op=None, precision="call")
            return site, f"A compiled function breaks into several graphs in {function}"
    return event_site(context, code, event), ""


def _first_calls(context: Context, times: Int64) -> Int64:
    """The first API call of the window behind each of n host times."""
    mine = np.flatnonzero(context.calls)
    at = np.searchsorted(context.call_start[mine], times)
    return np.unique(mine[at[at < len(mine)]]).astype(np.int64)
