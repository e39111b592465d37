"""HG508 cpu-starved: the process gets less CPU than it asks for.

## What it sees
Of what `hostgap profile` measures beside the trace: the launching thread was ready to run and was
not run for more than 2 % of the step (run delay), the cgroup was throttled, or more threads
compute than the quota has cores.

## Why it costs
A throttled process stands still for the rest of the quota's period, up to 100 ms, in the middle
of a launch if so be it. Every host figure of the trace is then longer than it need be.

## Example
    docker run --cpus 4 server                # 64 OpenMP threads on a quota of four cores

## Use instead
    docker run --cpuset-cpus 0-7 -e OMP_NUM_THREADS=4 server

Cores instead of a quota; OMP_NUM_THREADS and the tokenizers' threads below the number of cores.

## Options
- `max-run-delay` (0.02): share of the step that the launching thread may wait for a core.

## Sources
vllm#49013 (5.4 times); Linux cgroup v2 cpu.stat, /proc/<pid>/schedstat."""

from __future__ import annotations

from collections.abc import Iterator

from hostgap.diagnosis import rule as base
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.rule import Match, Need, Rule

RECORDED = "hostgapCpu"  # of the trace's metadata: figures per step, ns, and numbers of threads


class Options(base.Options, frozen=True):
    """Thresholds of HG508."""

    max_run_delay: float = 0.02


class CpuStarved(Rule):
    """The launching process does not get the CPU that it needs."""

    code = "HG508"
    name = "cpu-starved"
    title = "The process gets less CPU than it asks for"
    advice = "Cores instead of a quota, and fewer threads than cores (OMP_NUM_THREADS)."
    needs = (Need.API_CALLS, Need.PROFILE)
    options = Options
    informs = True  # what it costs is spread over all that the host does

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """One match, with what was measured."""
        measured = context.trace.metadata.get(RECORDED)
        if not isinstance(measured, dict):
            return
        step = max(1, context.window_ns // context.steps)
        said = []
        if measured.get("run_delay_ns", 0) > options.max_run_delay * step:
            said.append(f"{measured['run_delay_ns'] / step:.0%} of the step ready but not run")
        if measured.get("throttled_ns", 0) > 0:
            said.append(f"throttled for {measured['throttled_ns'] / 1e3:,.0f} us a step")
        if measured.get("threads", 0) > measured.get("cores", float("inf")):
            said.append(f"{measured['threads']} threads on {measured['cores']} cores")
        if said:
            yield Match(title=f"{self.title}: {', '.join(said)}", count=1)
