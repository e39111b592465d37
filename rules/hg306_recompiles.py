"""HG306 recompiles: something is compiled or autotuned inside a steady step.

## What it sees
Frames or annotations of a compiler in the steps of the window: Dynamo's frame compilation and
what it logs as `(dynamo_timed)`, Inductor's and Triton's compilation, autotuning and
benchmarking.

## Why it costs
Compiling a function takes seconds, and autotuning a kernel runs it many times and waits for each.
Meanwhile no step is made. It comes back with every new shape, and after eight recompilations of
one function Dynamo gives up and runs it eagerly.

## Example
    step = torch.compile(step, dynamic=False)
    for prompt in prompts:
        step(prompt)                  # each new length compiles again

## Use instead
    for length in BUCKETS:            # at start-up
        step(torch.zeros(length, dtype=torch.long, device="cuda"))
    for prompt in prompts:
        step(pad(prompt, BUCKETS))

or `torch._dynamo.mark_dynamic(x, 0)`. `TORCH_LOGS=recompiles` names the guard that failed.
Triton: leave sizes that change out of `key=` of `triton.autotune`, and out of `tl.constexpr`.

## Options
None.

## Sources
PyTorch's notes on recompilation; frames of torch 2.13 (CPU) while it recompiles."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from hostgap.analysis.edit import Edit
from hostgap.analysis.intervals import covers, union
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import event_site, named, outermost
from hostgap.diagnosis.model import Site
from hostgap.diagnosis.regions import waits_in
from hostgap.diagnosis.rule import Match, Need, Rule
from hostgap.units import duration

COMPILING = re.compile(
    r"torch/_dynamo/convert_frame\.py\(\d+\): (?:_compile|_?compile_inner|compile_frame)$"
    r"|\(dynamo_timed\)$|^CompileContext\b"
    r"|torch/_inductor/compile_fx\.py\(\d+\): _?compile_fx_inner$"
    r"|torch/_inductor/runtime/triton_heuristics\.py\(\d+\): "
    r"(?:autotune\w*|benchmark\w*|coordinate_descent\w*|precompile)$"
    r"|(?:^|/)triton/runtime/jit\.py\(\d+\): (?:_do_)?compile$"
    r"|(?:^|/)triton/runtime/autotuner\.py\(\d+\): (?:_?bench|benchmark)$"
    r"|(?:^|/)triton/compiler/compiler\.py\(\d+\): compile$"
    r"|torch/utils/cpp_extension\.py\(\d+\): (?:load\w*|_jit_compile)$"
)


class Recompiles(Rule):
    """Something is compiled inside a steady step."""

    code = "HG306"
    name = "recompiles"
    title = "Something is compiled inside a steady step"
    advice = "Run every shape once at start-up, pad to a few sizes, or mark dimensions dynamic."
    needs = (Need.STEPS,)

    def find(self, context: Context, options: object) -> Iterator[Match]:
        """The compilations, by the user's call that leads to them."""
        spans: dict[Site | None, list[tuple[int, int]]] = {}
        for code, events in outermost(context, named(context, COMPILING)):
            nested = context.host[code].nested
            for event in events.tolist():
                site = event_site(context, code, event)
                spans.setdefault(site, []).append(
                    (int(nested.start[event]), int(nested.end[event]))
                )
        for site, found in spans.items():
            start, end = np.array(found, np.int64).T
            merged = union(start, end)
            calls = np.flatnonzero(context.calls & covers(merged, context.call_start))
            calls = calls.astype(np.int64)
            ops = context.gpu_ops_of(calls)  # what autotuning runs
            edit = Edit(cut=merged, unblock=waits_in(context, merged), drop=ops)
            title = (
                f"Something is compiled inside a steady step: {len(found)} times, "
                f"{duration(merged.total / len(found))} each"
            )
            yield Match(calls=calls, edit=edit, site=site, count=len(found), title=title)
