"""The result of an analysis, as typed and versioned data: what `--format json` writes.

Everything hostgap prints is a view of a `Diagnosis`. Field names carry their unit; times are
integer nanoseconds, shares and utilizations run from 0 to 1. A figure that cannot be given is null,
with the reason beside it, never 0.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "hostgap.diagnosis/1"

# What limits the step; see docs/causes.md.
Verdict = Literal[
    "gpu-bound",
    "rank-wait",
    "sync-bound",
    "launch-bound",
    "host-bound",
    "input-bound",
    "transfer-bound",
    "mixed",
    "unmeasurable",
]


class _Base(msgspec.Struct, frozen=True, kw_only=True):
    """Frozen, keyword-only."""


class Tool(_Base, frozen=True):
    """Who made this."""

    name: str
    version: str


class Reason(_Base, frozen=True):
    """One thing that limits what can be said, from the table in docs/integrity.md."""

    code: str
    text: str


class IntegrityVerdict(_Base, frozen=True):
    """Whether the trace can be trusted at all."""

    verdict: Literal["ok", "partial", "unmeasurable"]
    reasons: list[Reason]


class TraceInfo(_Base, frozen=True):
    """What was read."""

    source: Literal["kineto", "nsys"]
    file: str
    events: int
    window: Literal["steps", "trace"]
    integrity: IntegrityVerdict


class Gaps(_Base, frozen=True):
    """Maximal idle intervals: how many are longer than 1 and 10 us, and their total."""

    over_1us: int
    over_10us: int
    total_ns: int


class Site(_Base, frozen=True):
    """A place in the user's source.

    `line` is the function's first line with precision "function", the line of the call with
    "call". Without Python stacks, file and line are null and `op` names the framework ops.
    `candidates` are the lines of the function that it may be, where its source could be read and
    several fit.
    """

    file: str | None
    line: int | None
    function: str | None
    op: str | None
    precision: Literal["call", "function", "none"]
    candidates: tuple[int, ...] = ()


class IdleSite(_Base, frozen=True):
    """Idle time under one place, by cause; `calls` are the innermost host events, longest first."""

    site: Site
    idle_ns: int
    by_cause: dict[str, int]
    calls: list[str]


class StreamMetrics(_Base, frozen=True):
    """One stream of a device, over the device's window."""

    stream: int | str
    ops: int
    kernels: int
    active_ns: int
    idle_ns: int
    gaps: Gaps
    idle_by_cause: dict[str, int]


class DeviceMetrics(_Base, frozen=True):
    """One GPU. `window_ns == active_ns + idle_ns`, and `idle_by_cause` adds up to `idle_ns`."""

    device: int | str
    name: str
    window_ns: int
    kernel_busy_ns: int
    active_ns: int
    idle_ns: int
    copy_only_ns: int
    kernel_utilization: float | None
    active_utilization: float | None
    utilization_without_collectives: float | None
    reason: str | None
    kernels: int
    copies: int
    memsets: int
    orphans: int
    gaps: Gaps
    idle_by_cause: dict[str, int]
    idle_sites: list[IdleSite]
    launch_latency_median_ns: int | None
    streams: list[StreamMetrics]


class Copies(_Base, frozen=True):
    """Copies by direction (`d2d` includes peer to peer), and how many involve pageable memory."""

    h2d: int
    d2h: int
    d2d: int
    pageable: int


class Counts(_Base, frozen=True):
    """Calls in the window. `blocking_syncs` adds blocking copies to `sync_calls`."""

    launches: int
    graph_launches: int
    sync_calls: int
    blocking_syncs: int
    allocs: int
    copies: Copies


class PerStep(_Base, frozen=True):
    """Averages per step of one class; `idle_ns` per device."""

    launches: float
    graph_launches: float
    sync_calls: float
    copies: float
    allocs: float
    idle_ns: float


class StepClass(_Base, frozen=True):
    """Steps alike in phase, batch and what they launch. Different classes are never averaged."""

    label: str
    steps: list[int]
    duration_median_ns: int
    per_step: PerStep


class StepsSummary(_Base, frozen=True):
    """The steps of the window, `count` of the trace's `total`.

    `per_step` is of `main_class`, the class that took the most time. `fill_ns` is the period of the
    first step where that was left out because it fills the pipeline.
    """

    count: int
    total: int
    source: Literal["annotation", "nvtx", "cycle", "whole"]
    first: int
    fill_ns: int | None
    durations_ns: list[int]
    classes: list[StepClass]
    main_class: str | None
    per_step: PerStep | None


class SyncSite(_Base, frozen=True):
    """Blocking calls of one kind at one place: time inside them, and idle time in their shadow."""

    call: str
    copy: Literal["h2d", "d2h", "d2d", "h2h", "p2p"] | None
    count: int
    blocked_ns: int
    shadow_ns: int
    site: Site | None


class Capture(_Base, frozen=True):
    """Shares of GPU ops and of idle time inside CUDA graphs."""

    gpu_ops_in_graphs: float | None
    idle_in_graphs: float | None


class LaunchFigures(_Base, frozen=True):
    """How launching went.

    `call_share` is the time inside launch calls, graphs' too and of all threads, by the length of
    the window; `lead_median_ns`, of launches outside graphs, the median
    time from a launch's return to its kernel's start (how far the host runs ahead; negative where
    kernels start before the call returns), null without launches.
    """

    call_share: float | None
    lead_median_ns: int | None


class Cost(_Base, frozen=True):
    """What the window costs at a price per GPU hour, and what of that is idle.

    Per million steps, and per million tokens where the tokens of a step are known; null where not.
    """

    gpu_price_per_hour: float
    per_million_steps: float | None
    idle_per_million_steps: float | None
    per_million_tokens: float | None
    idle_per_million_tokens: float | None


class Finding(_Base, frozen=True):
    """Something a rule found, with what the step would lose by its absence.

    `blocked_ns`, `shadow_ns` and the savings are totals over the window. `predicted_saving_ns` is
    what a replay of the trace without it saves; the profiler slows the host, so from a trace alone
    that is the most. `predicted_saving_low_ns` is what is left where the host is as much faster as
    profilers have been measured to slow it. Where the unprofiled step is known (`saving_basis` is
    "calibrated") they are the best estimate for that step and its low end, times the steps of the
    window. A finding whose low end is less than 1 % of the step is `info`, one from 5 % on an
    error. Both are null where nothing can be replayed, and for rules that only inform. The shares
    are of the step as recorded and of the step with the faster host, or of the unprofiled step.
    `evidence` holds rows of the table `api_calls`.
    """

    code: str
    name: str
    severity: Literal["error", "warning", "info"]
    title: str
    site: Site | None
    count: int
    count_per_step: float
    blocked_ns: int
    shadow_ns: int
    predicted_saving_ns: int | None
    predicted_saving_low_ns: int | None
    predicted_saving_share: float | None
    predicted_saving_low_share: float | None
    advice: str
    evidence: list[int]
    fix: str | None


class NotApplicable(_Base, frozen=True):
    """A rule that could not look, and what it lacks."""

    code: str
    name: str
    reason: str


class BatchPoint(_Base, frozen=True):
    """Decode steps of one batch: their median length, and the share of it that the GPU idles."""

    batch: int
    steps: int
    duration_ns: int
    idle_share: float


class Batches(_Base, frozen=True):
    """Decode steps by batch. Below `host_bound_below` the host limits the step; null where it does
    at every batch, or at none."""

    points: list[BatchPoint]
    host_bound_below: int | None


class WhatIf(_Base, frozen=True):
    """The replay behind the predicted savings: of `steps` steps, which it misses by `residual_ns`.

    The combined savings are those of all findings above `info` at once, over the window: single
    savings do not add up. Where the replay is fitted to the unprofiled step, it takes `misfit_ns`
    a step longer than that (negative: less), with host work at `host_rate` of its traced time.
    """

    steps: int
    residual_ns: int
    combined_saving_ns: int
    combined_saving_low_ns: int
    misfit_ns: int | None
    host_rate: float | None


class Unprofiled(_Base, frozen=True):
    """One step without a profiler: its median and 95 % interval, and what follows from it.

    `exposed_idle_ns` is the step less what its GPU work takes with the host ahead: as measured,
    else the replay's. `kernel_utilization` is the share of it that kernels run, by the trace, times
    the share of the step that it takes. `inflation` is the traced step by the unprofiled one. Null
    where host and GPU clocks cannot be reconciled.
    """

    step_ns: int
    low_ns: int
    high_ns: int
    exposed_idle_ns: int | None
    kernel_utilization: float | None
    inflation: float


class Diagnosis(_Base, frozen=True):
    """Everything hostgap says of one trace.

    `verdict` to `not_applicable` come from the rules; `problems` has a line per rule that failed or
    could not be loaded. Devices, counts, steps and syncs are of the trace as it was recorded;
    `unprofiled` is of the step as it runs without a profiler, null where that is not known.
    """

    schema: str
    tool: Tool
    trace: TraceInfo
    verdict: Verdict | None
    devices: list[DeviceMetrics]
    counts: Counts
    steps: StepsSummary
    syncs: list[SyncSite]
    cost_factor: float | None
    saving_basis: Literal["upper_bound", "calibrated"]
    unprofiled: Unprofiled | None
    capture: Capture
    launch: LaunchFigures | None
    cost: Cost | None
    batches: Batches | None
    whatif: WhatIf | None
    findings: list[Finding]
    not_applicable: list[NotApplicable]
    problems: list[str]
