"""What a child process is asked, as typed messages: one JSON line there, one back."""

from __future__ import annotations

from typing import Literal

import msgspec

from hostgap.profiling.bench import Variant
from hostgap.profiling.lockstep import Rank
from hostgap.profiling.measurement import Environment, GraphTimes, HostTimes, Timing
from hostgap.profiling.target import TargetSpec

REPLAY = "replay"  # what a graph replay is called among collectives


class _Request(msgspec.Struct, frozen=True, tag=True):
    """Tagged by its name."""


class Hello(_Request, frozen=True):
    """Which target, and which rank of several runs it here; answered with `Welcome`."""

    spec: TargetSpec
    rank: Rank | None = None


class Build(_Request, frozen=True):
    """Build a variant and keep it; answered with `Built`."""

    variant: Variant


class Measure(_Request, frozen=True):
    """Time a variant without a profiler, and its spans; answered with `Measured`."""

    variant: Variant
    warmup: int
    steps: int
    repeats: int


class Trace(_Request, frozen=True):
    """Record a variant; answered with an `Estimate` of the step as traced."""

    variant: Variant
    mode: Literal["cuda", "cpu+cuda", "stacks"]
    path: str
    warmup: int
    steps: int


class Sites(_Request, frozen=True):
    """Where a variant blocks; answered with a list of `Site`."""

    variant: Variant
    warmup: int


class Calibrate(_Request, frozen=True):
    """How the profiler slows this machine's calls; answered with a list of `Inflation`."""


class Compare(_Request, frozen=True):
    """Time two variants in turn; answered with a `Comparison`."""

    old: Variant
    new: Variant
    warmup: int
    steps: int
    repeats: int


class Prove(_Request, frozen=True):
    """Compare the outputs of two variants; answered with a `Proof`."""

    reference: Variant
    variant: Variant
    steps: int
    tolerance: float


class Drop(_Request, frozen=True):
    """Free a variant; answered with null."""

    variant: Variant


Request = Hello | Build | Measure | Trace | Sites | Calibrate | Compare | Prove | Drop


class Welcome(msgspec.Struct, frozen=True):
    """Where the child runs, and the target's own defects that are on as it stands."""

    environment: Environment
    defects: tuple[str, ...]


class Stop(msgspec.Struct, frozen=True, array_like=True):
    """A collective or a graph replay (`what`) at which `ranks` meet.

    `called_ns` is the host's clock, one for all processes of a machine; `inside_ns` the GPU's time
    from where its stream came to the call to where it went on.
    """

    what: str
    ranks: tuple[int, ...]
    called_ns: int
    inside_ns: float


class WatchedStep(msgspec.Struct, frozen=True, array_like=True):
    """One step without a profiler: when its host began it, where it met others, in order.

    `unwatched` counts the collectives that the host did not wait for.
    """

    begun_ns: int
    stops: list[Stop]
    unwatched: int


class Measured(msgspec.Struct, frozen=True):
    """What a process that never profiled found: see `hostgap.profiling.measurement`.

    `watched` are blocks of steps, of a process that is one of several ranks.
    """

    timing: Timing
    host: HostTimes | None
    span_ns: float | None
    graphs: list[GraphTimes]
    tokens: int | None = None
    watched: list[list[WatchedStep]] = []


class Failure(msgspec.Struct, frozen=True):
    """Why a request was not answered; `kind` is the class of the error in the child."""

    kind: str
    message: str
    hint: str | None = None
    trace: str | None = None


class Reply(msgspec.Struct, frozen=True):
    """A line back: a result, or why there is none."""

    result: msgspec.Raw = msgspec.Raw(b"null")
    failure: Failure | None = None
