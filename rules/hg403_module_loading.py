"""HG403 module-loading: kernels are loaded onto the GPU inside a step.

## What it sees
cuModuleLoad*, cuLibraryLoad*, cuLink* and the driver's own notes of loading (`Lazy Function
Loading`, `Runtime Triggered Module Loading`) in steady steps.

## Why it costs
Since CUDA 11.7 a kernel is loaded when it is first launched. The launching thread stands still
meanwhile, and loading may wait for the GPU. In a server this hits the first request of each new
shape, for which a library picks a kernel it has not used yet.

## Example
    model = load()
    serve(model)                      # the first long prompt loads forty kernels

## Use instead
    model = load()
    for length in (1, 16, 128, 1024, 8192):
        model(torch.zeros(1, length, dtype=torch.long, device="cuda"))
    serve(model)

Run each shape once at start-up, or set `CUDA_MODULE_LOADING=EAGER` (slower start, more memory).

## Options
None.

## Sources
CUDA's notes on lazy loading; CUPTI's overhead records."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from hostgap.analysis.edit import Edit
from hostgap.analysis.intervals import Intervals, union
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import named
from hostgap.diagnosis.model import Site
from hostgap.diagnosis.rule import Match, Need, Rule
from hostgap.trace.model import HostKind, Int64, Role

LOADS = re.compile(r"(?:cu|hip|cuda)(?:Module|Library)Load|cuLink")
NOTED = re.compile(r"Lazy Function Loading|Module Loading")


class ModuleLoading(Rule):
    """Kernels are loaded inside a step."""

    code = "HG403"
    name = "module-loading"
    title = "Kernels are loaded onto the GPU inside a step"
    advice = "Run every shape once at start-up, or set CUDA_MODULE_LOADING=EAGER."
    needs = (Need.API_CALLS, Need.STEPS)

    def find(self, context: Context, options: object) -> Iterator[Match]:
        """The loads, by the call that they happen in."""
        loads = context.calls_of(Role.MODULE_LOAD)
        loads = loads[named(context, LOADS)[context.trace.api_calls.name[loads]]]
        noted = _noted(context)
        spans = union(
            np.concatenate((context.call_start[loads], noted.start)),
            np.concatenate((context.call_end[loads], noted.end)),
        )
        if len(spans.start) == 0:
            return
        calls = _calls_around(context, spans)
        at: dict[Site | None, list[int]] = {}
        spans_of: dict[int, list[int]] = {}
        for index, call in enumerate(calls.tolist()):
            spans_of.setdefault(call, []).append(index)
        for site, rows in context.by_site(np.unique(calls[calls >= 0])):
            for call in rows.tolist():
                at.setdefault(site, []).extend(spans_of[call])
        if (calls < 0).any():
            at.setdefault(None, []).extend(np.flatnonzero(calls < 0).tolist())
        for site, which in at.items():
            mine = Intervals(spans.start[which], spans.end[which])
            rows = np.unique(calls[which])
            title = f"{self.title}: {mine.total / len(which) / 1e3:,.0f} us each time"
            yield Match(
                calls=rows[rows >= 0],
                edit=Edit(cut=union(*mine)),
                site=site,
                count=len(which),
                title=title,
            )


def _noted(context: Context) -> Intervals:
    """What the driver notes of loading in the window. Such a row stands on any thread."""
    ops, clock = context.trace.host_ops, context.analysis.clock
    rows = np.flatnonzero((ops.kind == HostKind.OVERHEAD) & named(context, NOTED)[ops.name])
    start, end = clock.to_gpu(ops.start[rows]), clock.to_gpu(ops.end[rows])
    inside = context.in_steps(start)
    return union(start[inside], end[inside])


def _calls_around(context: Context, spans: Intervals) -> Int64:
    """Per span: the call of the window that began last before it and lasts until its end, -1
    without one."""
    rows = np.flatnonzero(context.calls)
    at = np.searchsorted(context.call_start[rows], spans.start, "right") - 1
    call = np.where(at >= 0, rows[np.maximum(at, 0)], -1)
    around = (call >= 0) & (context.call_end[np.maximum(call, 0)] >= spans.end)
    return np.where(around, call, -1).astype(np.int64)
