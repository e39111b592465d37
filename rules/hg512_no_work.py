"""HG512 no-work: no request was running.

## What it sees
Idle time of the GPU while a serving engine stands where it waits for its first request: vLLM's
`_process_input_queue`, SGLang's idle loop, by the stacks.

## Why it costs
It does not: there was nothing to do. But such time in the window makes utilization, cost and
every share of the step look worse than they are under load.

## Example
    bench --request-rate 1                    # profiled between two requests

## Use instead
    bench --request-rate inf --num-prompts 64

Profile under the load that matters, or choose busy steps with --steps.

## Options
None.

## Sources
vLLM's engine core, SGLang's scheduler."""

from __future__ import annotations

from collections.abc import Iterator

from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import idle_match, idle_of, no_work
from hostgap.diagnosis.rule import Match, Rule
from hostgap.units import duration


class NoWork(Rule):
    """The engine had nothing to do."""

    code = "HG512"
    name = "no-work"
    title = "No request was running"
    advice = "Profile under load, or choose busy steps with --steps."
    informs = True

    def find(self, context: Context, options: object) -> Iterator[Match]:
        """One match for the window."""
        idle = idle_of(context, no_work(context))
        if idle.total:
            share = idle.total / max(1, context.window_ns)
            title = f"{self.title} during {duration(idle.total)}, {share:.0%} of the window"
            yield idle_match(context, None, idle, title)
