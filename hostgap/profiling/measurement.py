"""What `hostgap profile` measured, as typed and versioned data: `measurement.json` of a run.

Times are nanoseconds. `Measurement` is what a run directory holds beside its traces; `Timing` and
`Figures` are also what `hostgap fix` keeps of every rung.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "hostgap.measurement/1"
# What no measurement can hold: sums are reported as whole ns, in 64 bits.
SHORTEST_NS = 1.0  # of a step
LONGEST_NS = 1e15  # eleven days
MOST_STEPS = 10  # that a part of one takes, such as a graph or a wait on several streams at once


class _Base(msgspec.Struct, frozen=True, kw_only=True):
    """Frozen, keyword-only."""


class Estimate(_Base, frozen=True):
    """A median of blocks and its 95 % bootstrap interval, ns."""

    median_ns: float
    low_ns: float
    high_ns: float


class Timing(_Base, frozen=True):
    """A step without a profiler: `blocks_ns` are ns a step, of `steps` steps each."""

    step: Estimate
    steps: int
    blocks_ns: list[float]


class GraphTimes(_Base, frozen=True):
    """The k-th graph replay of a step, without a profiler: medians, ns.

    `call_ns` is the host's time in `replay()`, in place. `span_ns` is the GPU's, between events
    around the replay with the host far ahead; the events' own cost is taken off.
    """

    call_ns: float
    span_ns: float


class HostTimes(_Base, frozen=True):
    """The launching thread without a profiler, per step, ns; counts per step.

    `cpu_ns` of `wall_ns` it ran; for `run_delay_ns` it was ready and another ran; `throttled_ns` is
    its cgroup's. `threads` of the process were running on `cores` of its quota.
    """

    wall_ns: float
    cpu_ns: float
    run_delay_ns: float | None
    throttled_ns: float | None
    involuntary_switches: float
    gc_ns: float
    gc_collections: float
    threads: int
    cores: float


class Inflation(_Base, frozen=True):
    """One kind of call on this machine without a profiler, with CUDA tracing, with CPU and CUDA.

    `nodes` is the size of the graph where `what` is "graph launch" or "graph span".
    """

    what: str
    nodes: int | None
    unprofiled_ns: float
    cuda_ns: float | None
    cpu_cuda_ns: float | None


class Site(_Base, frozen=True):
    """A call that blocked, seen by the site pass: the exact line, and how often per step."""

    what: str
    file: str
    line: int
    function: str
    per_step: float


class Pass(_Base, frozen=True):
    """One traced pass: its mode, its file in the run directory, and the step it saw."""

    mode: Literal["cuda", "cpu+cuda", "stacks"]
    file: str
    step: Estimate


class BatchTiming(_Base, frozen=True):
    """One batch of a sweep: the unprofiled step, and what its GPU work takes with the host ahead.

    A step that waits for the GPU has no host that could be ahead: `span_ns` is then a trace's,
    replayed with every launch in hand, and `recorded` true; null where that is not to be had.
    """

    batch: int
    step: Estimate
    span_ns: float | None
    recorded: bool = False


class Region(_Base, frozen=True):
    """A region that was timed as one CUDA graph and as it is, in turn, ns for one run of it.

    `file`, `line` and `function` say where it is; null for the whole step.
    """

    file: str | None
    line: int | None
    function: str | None
    graph_ns: float
    eager_ns: float


class Waits(_Base, frozen=True):
    """What a rank waits for others without a profiler, and has them wait, ns a step.

    Of blocks in the real loop with events around each collective and each graph replay. `inside` is
    the GPU's time in these, `wait` how much longer this rank stays in them than whoever comes last,
    `caused` what the others would have been spared where this rank came last. `late` is by how much
    further its host falls behind all others' within a step, negative where it is ahead; `lost` by
    how much others' hosts fall behind its own: what its waits cost it, which is less than their sum
    where its GPU would idle instead. Neither is more than the waits.

    `ranks` meet in so many `collectives` and `replays` of a step, `step_ns` long with the events;
    `wait_by_stop_ns` are medians, in order. `unwatched` counts collectives that the host did not
    wait for, of which nothing is known.
    """

    ranks: int
    step_ns: float
    collectives: float
    replays: float
    unwatched: float
    inside: Estimate
    wait: Estimate
    caused: Estimate
    late: Estimate
    lost: Estimate
    wait_by_stop_ns: list[float]


class Environment(_Base, frozen=True):
    """Where it ran. No host names, no paths, no secrets."""

    gpu: str
    driver: str | None
    torch: str
    cuda: str | None
    python: str
    hostgap: str
    cpus: int
    sm_mhz: int | None
    memory_mhz: int | None


class Measurement(_Base, frozen=True):
    """Everything of one profiled target that is not in its traces.

    `step` is the unprofiled step; `span_ns` what its GPU work takes with the host ahead, null where
    the step waits for the GPU and so can never be behind. `problems` has a line per pass that
    failed: `status` is then "partial". `graphs` are the graph replays of one step, in order.
    `waits` is null but for ranks that ran together and met.
    """

    schema: str
    target: str
    options: dict[str, str | int | float | bool | list[str]]
    status: Literal["complete", "partial"]
    problems: list[str]
    environment: Environment
    timing: Timing
    span_ns: float | None
    graphs: list[GraphTimes]
    host: HostTimes | None
    inflation: list[Inflation]
    sites: list[Site]
    passes: list[Pass]
    batches: list[BatchTiming] = []
    tokens_per_step: int | None = None
    regions: list[Region] = []
    waits: Waits | None = None
