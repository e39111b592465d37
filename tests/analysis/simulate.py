"""A step of a captured model with faults, as it is and as a profiler shows it.

One model of host and GPU makes both: the true step (its length, with a fault and without) and the
events of a traced one, in which each piece of host work takes longer than it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hostgap.analysis.calibration import Calibration
from hostgap.trace.model import Trace
from tests.analysis.build import (
    COPY_CALL,
    DEVICE_SYNC,
    GRAPH,
    LAUNCH,
    STREAM_SYNC,
    Event,
    build,
    call,
    copy,
    frame,
    kernel,
    note,
    steps,
)

PINNED_DOWN = "Memcpy DtoH (Device -> Pinned)"
PAGEABLE_UP = "Memcpy HtoD (Pageable -> Device)"
NODES = 8
LATENCY = 2_000  # from a launch call's return to its op's start
GAP = 1_000  # between queued ops


@dataclass(frozen=True)
class Work:
    """Host work of `ns`, with a Python frame for every 50 us of it."""

    ns: int
    frames: bool = False


@dataclass(frozen=True)
class Replayed:
    """A graph replay: host time of its call, GPU time with the usual gap before its first node."""

    call: int
    span: int
    gap: int = 8_000


@dataclass(frozen=True)
class Kernels:
    """`count` eager kernels of `ns` each."""

    count: int
    ns: int


@dataclass(frozen=True)
class Sync:
    """A synchronize of the device."""


@dataclass(frozen=True)
class Read:
    """`.item()`: a copy to the host and a synchronize behind it."""


@dataclass(frozen=True)
class Upload:
    """An upload of pageable memory that waits until it is done."""

    ns: int = 3_000


@dataclass(frozen=True)
class Beside:
    """A pinned download on a stream of its own, behind what the main one was given before."""

    ns: int = 2_000
    after: int = 8_000  # of the main stream's end: so long does an event take to be seen


@dataclass(frozen=True)
class Collect:
    """A garbage collection."""

    ns: int


Piece = Work | Replayed | Kernels | Sync | Read | Upload | Beside | Collect


@dataclass(frozen=True)
class Speed:
    """How long host and GPU take: by default as they do without a profiler."""

    host: float = 1.0
    graph_call: float = 1.0
    span: float = 1.0
    launch: int = 8_700
    wake: int = 8_000
    frame: int = 0
    gc: float = 1.0


TRACED = Speed(
    host=1.3, graph_call=3.3, span=1.075, launch=11_100, wake=10_400, frame=4_600, gc=2.1
)


@dataclass
class Machine:
    """Plays pieces at a speed; `events` are what a profiler would have recorded."""

    speed: Speed
    host: int = 1_000
    gpu: int = 0
    id: int = 1
    events: list[Event] = field(default_factory=list)

    def play(self, piece: Piece) -> None:
        """One piece of a step."""
        if isinstance(piece, Work):
            self._work(piece)
        elif isinstance(piece, Replayed):
            self._graph(piece)
        elif isinstance(piece, Kernels):
            for _ in range(piece.count):
                self._launch(LAUNCH, piece.ns)
        elif isinstance(piece, Sync):
            self._wait(DEVICE_SYNC)
        elif isinstance(piece, Beside):
            self._beside(piece)
        elif isinstance(piece, Collect):
            begin = self.host
            self.host += round(piece.ns * self.speed.gc)
            self.events.append(note("gc", begin, self.host))
        elif isinstance(piece, Read):
            self._launch(COPY_CALL, 1_500, PINNED_DOWN)
            self._wait(STREAM_SYNC)
        else:
            self._launch(COPY_CALL, piece.ns, PAGEABLE_UP)
            self._wait(STREAM_SYNC)

    def _work(self, work: Work) -> None:
        begin, left = self.host, round(work.ns * self.speed.host)
        while work.frames and self.speed.frame and left > 0:
            part = min(left, 50_000)
            self.events.append(frame("model.py(1): f", self.host, self.host + part))
            self.host += part + self.speed.frame
            left -= part
        self.host = max(self.host, begin + left) if left > 0 else self.host

    def _graph(self, graph: Replayed) -> None:
        begin = self.host
        self.host += round(graph.call * self.speed.graph_call)
        start = max(self.host + LATENCY, self.gpu + graph.gap)
        span = round((graph.span - graph.gap) * self.speed.span)
        self.events.append(call(GRAPH, begin, self.host, self.id))
        edges = [start + span * k // NODES for k in range(NODES + 1)]
        for k in range(NODES):
            low, high = edges[k], edges[k + 1] - (500 if k + 1 < NODES else 0)
            self.events.append(kernel(low, high, self.id, node=k + 1))
        self.gpu = edges[-1]
        self.id += 1

    def _launch(self, name: str, ns: int, copied: str = "") -> None:
        begin = self.host
        self.host += self.speed.launch
        start = max(self.host + LATENCY, self.gpu + GAP)
        self.events.append(call(name, begin, self.host, self.id))
        end = start + ns
        op = copy(start, end, self.id, copied) if copied else kernel(start, end, self.id)
        self.events.append(op)
        self.gpu = end
        self.id += 1

    def _beside(self, beside: Beside) -> None:
        begin = self.host
        self.host += self.speed.launch
        start = max(self.host + LATENCY, self.gpu + beside.after)
        self.events.append(call(COPY_CALL, begin, self.host, self.id))
        self.events.append(copy(start, start + beside.ns, self.id, PINNED_DOWN, stream=21))
        self.id += 1

    def _wait(self, name: str) -> None:
        begin = self.host
        self.host = max(self.host + 3_000, self.gpu + self.speed.wake)
        self.events.append(call(name, begin, self.host, self.id))
        self.id += 1


Step = Sequence[tuple[str, Piece]]  # the name of the fault that a piece is of, "" for the step's


def true_step_ns(step: Step, without: Sequence[str] = (), count: int = 60) -> float:
    """The unprofiled step, without some faults, once it has settled."""
    machine = Machine(Speed())
    ends = []
    for _ in range(count):
        for name, piece in step:
            if name not in without:
                machine.play(piece)
        ends.append(machine.gpu)
    half = count // 2
    return (ends[-1] - ends[half - 1]) / (count - half)


def traced(step: Step, count: int = 12, speed: Speed = TRACED) -> Trace:
    """What a profiler shows of `count` steps; faults are ranges of their names."""
    machine = Machine(speed)
    starts, ranges = [], []
    for _ in range(count):
        starts.append(machine.host)
        for name, piece in step:
            begin = machine.host
            machine.play(piece)
            if name:
                ranges.append(note(name, begin, machine.host))
    machine.events.append(call(DEVICE_SYNC, machine.host, machine.gpu + 5_000, machine.id))
    last = machine.host - starts[-1]
    marks = steps(*starts)
    marks[-1] = note(marks[-1].name, starts[-1], starts[-1] + last)
    return build(marks, ranges, machine.events)


def calibration_of(step: Step, error: float = 0.002) -> Calibration:
    """What would be measured of a step without a profiler."""
    graphs = [piece for _, piece in step if isinstance(piece, Replayed)]
    whole = true_step_ns(step)
    return Calibration(
        step_ns=whole,
        low_ns=whole * (1 - error),
        high_ns=whole * (1 + error),
        graph_call_ns=tuple(float(graph.call) for graph in graphs),
        graph_span_ns=tuple(float(graph.span) for graph in graphs),
        launch_ratio=Speed().launch / TRACED.launch,
        gc_ns=float(sum(piece.ns for _, piece in step if isinstance(piece, Collect))),
    )
