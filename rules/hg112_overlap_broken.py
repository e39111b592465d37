"""HG112 overlap-broken: the next step is launched only after this one was waited for.

## What it sees
Between two steps the launching thread waits until the last op of the step is done, and only then
launches the first op of the next step, while the GPU has nothing to do. It counts where this is
so in most steps, where the idle time between steps is a notable share of them, and where nothing
is uploaded between the wait and the first kernel of the next step: what the host read is then no
input of it (an upload may be, and the step would really depend on the wait).

## Why it costs
Sampling, bookkeeping, scheduling and the launches of the next step all fall into the time in
which the GPU is idle, although most of it could run while the GPU still works on the step
before.

## Example
    while True:
        token = step()                       # token stays on the GPU as input of the next step
        if token.item() == eos:              # and yet the host waits for it
            break

## Use instead
    waiting = None
    while True:
        token = step()                       # launched before the last one is looked at
        if waiting is not None and read(waiting) == eos:
            break
        waiting = start_copy(token)          # pinned buffer and an event

Launch one step ahead and look at results one step late; what a step too many has written is
thrown away. Serving engines call it async scheduling or overlap scheduling.

## Options
- `min-idle` (0.05): share of the window that must be idle between steps in this way.

## Sources
vllm-omni#4442; vllm-omni#564 and #590; vLLM's async scheduling, SGLang's overlap scheduler."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hostgap.analysis.edit import Edit
from hostgap.diagnosis import rule as base
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.rule import Match, Need, Rule
from hostgap.trace.model import CopyKind, GpuKind, Int64

MOST = 0.8  # share of the steps in which it must be so
FEWEST_STEPS = 3


class Options(base.Options, frozen=True):
    """Thresholds of HG112."""

    min_idle: float = 0.05


class OverlapBroken(Rule):
    """The next step is launched only after this one was waited for."""

    code = "HG112"
    name = "overlap-broken"
    title = "The next step is launched only after this one was waited for"
    advice = "Launch one step ahead, and look at results one step late."
    needs = (Need.API_CALLS, Need.STEPS)
    options = Options

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """One match: the waits between steps."""
        if context.steps < FEWEST_STEPS:
            return
        waits, pairs, idle_ns = _between_steps(context)
        if pairs < MOST * (context.steps - 1) or idle_ns < options.min_idle * context.window_ns:
            return
        each = idle_ns / pairs / 1_000
        title = f"{self.title}: the GPU is idle for {each:,.0f} us between them"
        site, _ = max(context.by_site(waits), key=lambda group: len(group[1]))
        edit = Edit(unblock=context.with_copies(waits))
        yield Match(calls=waits, edit=edit, site=site, title=title, count=pairs)


def _between_steps(context: Context) -> tuple[Int64, int, int]:
    """Waits for a step's last op, behind its last launch, before the next step's first kernel.

    Returns:
        The waits, between how many pairs of steps they stand, and how long the GPU is idle there.
    """
    launched, gpu, api = context.launched, context.trace.gpu_ops, context.trace.api_calls
    n = int(launched.step.max(initial=-1)) + 2  # the last is of ops that belong to no step, -1
    end, last = np.full(n, np.iinfo(np.int64).min), np.full(n, -1, np.int64)
    np.maximum.at(end, launched.step, gpu.end[launched.op])
    work = np.flatnonzero(np.isin(gpu.kind[launched.op], (GpuKind.KERNEL, GpuKind.GRAPH)))
    np.maximum.at(last, launched.step[work], launched.call[work])
    steps, first = np.unique(launched.step[work], return_index=True)
    first = work[first]  # ops stand in launch order
    uploads = launched.call[gpu.copy_kind[launched.op] == CopyKind.H2D]
    waits, copies = context.waits.call, context.copy_before
    found: list[int] = []
    pairs = idle_ns = 0
    for k, at in zip(steps[1:].tolist(), first[1:].tolist(), strict=True):
        call, done = int(launched.call[at]), int(end[k - 1])
        low, high = np.searchsorted(waits, (last[k - 1], call))
        mine = waits[low:high]
        mine = mine[api.thread[mine] == api.thread[call]]
        if last[k - 1] < 0 or len(mine) == 0:
            continue
        begin = int(copies[mine[0]]) if copies[mine[0]] >= 0 else int(mine[0])
        waited = context.call_start[begin] < done <= context.call_end[mine[-1]]
        # what is uploaded there is the next step's: it cannot be launched before
        uploaded = np.searchsorted(uploads, call) > np.searchsorted(uploads, begin)
        idle = int(gpu.start[launched.op[at]]) - done
        if waited and not uploaded and idle > 0:
            found += mine.tolist()
            pairs += 1
            idle_ns += idle
    return np.array(found, np.int64), pairs, idle_ns
