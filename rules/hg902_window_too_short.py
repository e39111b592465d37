"""HG902 window-too-short: too few steps to say what is usual.

## What it sees
Fewer than three counted steps, or a window under 10 ms. The first step of a trace only fills the
pipeline and does not count.

## Why it costs
It costs nothing, but one garbage collection, one interrupt or one flush of the profiler's buffer
decides what such a window shows, and a step that differs from the rest cannot be told.

## Example
    schedule(wait=0, warmup=0, active=1)

## Use instead
    schedule(wait=5, warmup=3, active=10)

## Options
- `min-steps` (3): counted steps.
- `min-window-ms` (10): length of the window.

## Sources
None: it follows from what a median needs."""

from __future__ import annotations

from collections.abc import Iterator

from hostgap.diagnosis import rule as base
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.rule import Match, Rule
from hostgap.units import duration


class Options(base.Options, frozen=True):
    """Thresholds of HG902."""

    min_steps: float = 3
    min_window_ms: float = 10


class WindowTooShort(Rule):
    """The window says little about the usual step."""

    code = "HG902"
    name = "window-too-short"
    title = "The window is short"
    advice = "Record ten steps or more, after warm-up."
    options = Options
    needs = ()
    informs = True

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """One match, with what there is."""
        said = []
        if context.analysis.options.window == "steps" and context.steps < options.min_steps:
            marked = context.analysis.steps.marks.source != "whole"
            plural = "s" if context.steps > 1 else ""
            said.append(f"{context.steps} counted step{plural}" if marked else "no steps found")
        if context.window_ns < options.min_window_ms * 1e6:
            said.append(duration(context.window_ns))
        if said:
            yield Match(title=f"{self.title}: {', '.join(said)}", count=1)
