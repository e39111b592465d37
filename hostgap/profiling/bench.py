"""The seam between the ladder and the GPU: variants of a target, and what can be asked of them.

`hostgap.profiling.worker.Workers` is the `Bench` of a real machine; tests climb the ladder on a
simulated one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec

from hostgap.profiling.measurement import GraphTimes, HostTimes, Timing


class Variant(msgspec.Struct, frozen=True):
    """A target with some defects of its own and some fixes applied, in order.

    Attributes:
        defects: names of the target's own defects that are on (the built-in decoder has them).
        fixes: names of fixes, applied from left to right.
    """

    defects: tuple[str, ...] = ()
    fixes: tuple[str, ...] = ()


class Comparison(msgspec.Struct, frozen=True):
    """Two variants timed in turn, block by block, in one process that never profiled.

    `ratio` is the median of new / old over the pairs of blocks, `ratio_low` and `ratio_high` its
    95 % bootstrap interval.
    """

    old: Timing
    new: Timing
    ratio: float
    ratio_low: float
    ratio_high: float


class Proof(msgspec.Struct, frozen=True):
    """Whether a variant gives what the reference gives.

    Attributes:
        equal: all that was compared agrees.
        steps, cases: how many were compared.
        exact: outputs compared bit for bit that agreed in all (tokens), of `compared`.
        largest_difference: of floating-point outputs: norm of the difference, by the norm.
        tolerance: what was allowed.
        why: where it is not equal: one sentence.
    """

    equal: bool
    steps: int
    cases: int
    exact: int
    compared: int
    largest_difference: float
    tolerance: float
    why: str | None = None


class Built(msgspec.Struct, frozen=True):
    """A variant that stands ready: what building it cost (ms, MiB and the like, by name), and the
    tokens that a step of it makes, where it says so."""

    costs: dict[str, float]
    tokens: int | None = None


class Traced(msgspec.Struct, frozen=True):
    """A variant's trace, and what its process measured without a profiler for calibration."""

    path: Path
    timing: Timing
    span_ns: float | None
    graphs: list[GraphTimes]
    host: HostTimes | None = None


class Bench(Protocol):
    """A machine that builds, times, traces and compares variants of one target."""

    def build(self, variant: Variant) -> Built:
        """Make a variant ready.

        Raises:
            FixFailed: a fix cannot be applied (a capture fails, memory runs out, ...); the machine
                is left as it was.
        """
        ...

    def compare(self, old: Variant, new: Variant) -> Comparison:
        """Time both in turn, without a profiler."""
        ...

    def prove(self, reference: Variant, variant: Variant) -> Proof:
        """Compare their outputs over several cases and steps, inputs changing between steps."""
        ...

    def trace(self, variant: Variant) -> Traced:
        """Record some steps with the profiler, in a process apart from the timed one."""
        ...

    def drop(self, variant: Variant) -> None:
        """Free what a variant holds."""
        ...
