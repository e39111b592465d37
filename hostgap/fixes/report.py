"""The result of climbing the ladder, as typed and versioned data: what `hostgap fix` writes.

Times are nanoseconds, of a step and without a profiler unless a name says otherwise; counts are per
step, from a trace. What was not measured is null.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from hostgap.diagnosis.model import Tool
from hostgap.profiling.bench import Proof, Variant
from hostgap.profiling.measurement import Environment, Estimate

SCHEMA = "hostgap.fix/1"

# start: the target as it was. kept, rolled-back: tried. failed: could not be applied, or the climb
# ended while it was tried. candidate: would be tried (--dry-run, or the climb ended before).
Status = Literal["start", "kept", "rolled-back", "failed", "candidate"]

Ending = Literal["complete", "out-of-time", "interrupted", "failed", "dry-run"]


class _Base(msgspec.Struct, frozen=True, kw_only=True):
    """Frozen, keyword-only."""


class Ratio(_Base, frozen=True):
    """New time by old: the median over pairs of blocks timed in turn, and its 95 % interval."""

    ratio: float
    low: float
    high: float


class Figures(_Base, frozen=True):
    """A variant's trace and unprofiled times, together.

    `gpu_busy_ns` is the time of kernels, from the trace, which does not stretch them.
    `kernel_utilization` is that over the unprofiled step, and `idle_share` what neither kernels nor
    copies fill of it. `exposed_share` is what the step is longer, unprofiled, than its GPU work
    with the host ahead: how long the GPU waits for its host. `blocking` counts waits and blocking
    copies. `launch_call_share` is of the step as traced.
    """

    gpu_busy_ns: float | None
    kernel_utilization: float | None
    idle_share: float | None
    launches: float | None
    graph_launches: float | None
    syncs: float | None
    copies: float | None
    launch_call_share: float | None
    exposed_share: float | None = None
    blocking: float | None = None


class Rung(_Base, frozen=True):
    """One fix (or several that only make sense together), and what became of it.

    Attributes:
        name: of the fix, with + between several; "start" for the target as it was.
        title: what it does.
        why: it was kept, rolled back or failed, in one sentence.
        variant: what was built.
        step: the step's time; null where it was never timed.
        tokens_per_second: of all requests of the batch.
        against: the ratio to the best variant before it.
        figures: null where it was not traced.
        costs: what building it cost.
        predicted_saving_ns: null where the trace could not tell.
        measured_saving_ns: against the best variant before it; negative where it was slower.
        proof: against the target as it was.
        kernels_differ: of a pure capture: what kernels changed, null where none did, or where it
            was not looked at.
    """

    name: str
    title: str
    status: Status
    why: str
    variant: Variant
    step: Estimate | None = None
    tokens_per_second: float | None = None
    against: Ratio | None = None
    figures: Figures | None = None
    costs: dict[str, float] = {}
    predicted_saving_ns: float | None = None
    measured_saving_ns: float | None = None
    proof: Proof | None = None
    kernels_differ: str | None = None


class Skipped(_Base, frozen=True):
    """A fix that was not tried, and why."""

    name: str
    why: str


class FixReport(_Base, frozen=True):
    """The whole climb.

    Attributes:
        status: "out-of-time", "interrupted" or "failed" where it ended early, and `problem` says
            more; "dry-run" where nothing was to be applied.
        noise: a gain must exceed it.
        rungs: in the order in which they were tried; the first is the target as it was.
        best: the variant that is left, all of whose fixes were kept.
        overall: best against start, timed in turn; null where they are the same.
    """

    schema: str
    tool: Tool
    target: str
    options: dict[str, str | int | float | bool | list[str]]
    environment: Environment | None
    status: Ending
    problem: str | None
    tolerance: float
    noise: float
    start: Variant
    best: Variant
    rungs: list[Rung]
    skipped: list[Skipped]
    overall: Ratio | None = None
