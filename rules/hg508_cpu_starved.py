"""HG508 cpu-starved: the process gets less CPU than it asks for.

## What it sees
Of what `hostgap profile` measures without a profiler and keeps in the run directory: the launching
thread was ready to run and was not run for more than 2 % of the step (run delay), the cgroup was
throttled, or more threads of the process ran than its quota has cores.

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
        host = context.measurement.host if context.measurement is not None else None
        if host is None:
            return
        step = max(1.0, host.wall_ns)
        said = []
        if host.run_delay_ns is not None and host.run_delay_ns > options.max_run_delay * step:
            said.append(f"{host.run_delay_ns / step:.0%} of the step ready but not run")
        if host.throttled_ns:
            said.append(f"throttled for {host.throttled_ns / 1e3:,.0f} us a step")
        if host.threads > host.cores:
            said.append(f"{host.threads} threads on {host.cores:g} cores")
        if said:
            yield Match(title=f"{self.title}: {', '.join(said)}", count=1)
