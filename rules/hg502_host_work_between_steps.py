"""HG502 host-work-between-steps: the GPU waits while the host prepares the next step.

## What it sees
Idle time between the last launch of a step and the first of the next, during which the launching
thread runs Python or framework ops: scheduling, sampling on the CPU, detokenising, building the
inputs of the next step. Waits for the GPU or for other threads in between are other rules'.

## Why it costs
The GPU has finished the step and nothing is queued behind it. The host's work is then paid in
full, once a step, and grows with the number of requests.

## Example
    while requests:
        tokens = model(inputs).tolist()
        for request, token in zip(requests, tokens):
            request.append(token)             # the GPU waits for all of this
        inputs = schedule(requests)

## Use instead
    while requests:
        future = model(inputs)                # returns once launched
        finish(previous)                      # the host works on step k-1 meanwhile
        previous, inputs = future, schedule_ahead(requests)

Launch the next step first and do the bookkeeping of the one before while it runs; move what needs
no Python (detokenising, logging) to another process.

## Options
- `min-host-us` (100): exposed host time between two steps, on average, below which it is merely
  the loop.
- `min-share` (0.1): share of the GPU's idle time that it must be; below that the steps themselves
  are what is slow.

## Sources
vLLM's asynchronous scheduling (vllm#19970); SGLang's overlap scheduler; TensorRT-LLM's overlap
scheduler."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hostgap.analysis.causes import Cause
from hostgap.analysis.parts import Parts
from hostgap.diagnosis import rule as base
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import IdlePlaces, between_steps, caused_by, idle_match, parts_in
from hostgap.diagnosis.rule import Match, Need, Rule
from hostgap.trace.model import Bool
from hostgap.units import duration


class Options(base.Options, frozen=True):
    """Thresholds of HG502."""

    min_host_us: float = 100
    min_share: float = 0.1


class HostWorkBetweenSteps(Rule):
    """The host works between two steps while the GPU has nothing to do."""

    code = "HG502"
    name = "host-work-between-steps"
    title = "The GPU waits for host work between two steps"
    advice = "Launch the next step first, and do this while it runs; or move it off the thread."
    needs = (Need.API_CALLS, Need.STEPS)
    options = Options

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """The costliest places of exposed host work between steps."""
        between, tells_python = between_steps(context), context.host.tells_python()
        # a function that launches is the step itself, however long it takes to begin
        launches = np.zeros(len(context.trace.names) + 1, np.bool_)
        launches[context.host.call_sites(context.launched.call)] = True
        launches[-1] = False  # no function

        def work(parts: Parts) -> Bool:
            mine = caused_by(parts, Cause.PYTHON, Cause.DISPATCH, Cause.UNTRACED)
            mine &= parts_in(parts, between) & ~launches[parts.site]
            # Where ops are recorded, what shows nothing is another's; it counts under an
            # annotation, which gives it a name. An Nsight export without ops shows no host work.
            if tells_python:
                mine &= (parts.cause != Cause.UNTRACED) | (parts.site >= 0) | (parts.op >= 0)
            return mine

        places = IdlePlaces(context, work)
        if places.total_ns < options.min_share * context.idle():
            return
        for site, idle in places.costliest():
            each = idle.total / context.steps
            if each < options.min_host_us * 1e3:  # what is left behind any wait
                continue
            yield idle_match(context, site, idle, f"{self.title}: {duration(each)} of idle a step")
