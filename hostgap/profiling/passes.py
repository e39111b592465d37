"""What is measured without a profiler: the step's time, its GPU span, the host's time in it.

Each pass is a generator (see `hostgap.profiling.loop`): every yield runs one step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from hostgap.profiling.bench import Comparison
from hostgap.profiling.events import Mark, spin
from hostgap.profiling.hosttime import HostClock
from hostgap.profiling.lockstep import agreed, line_up
from hostgap.profiling.loop import Driver, Fresh, Pass
from hostgap.profiling.measurement import GraphTimes, HostTimes, Timing
from hostgap.profiling.statistics import comparison, timing

SETTLE_BLOCK = 5  # steps
SETTLED = 0.05  # change of a block against the one before it that counts as none
LONGEST_WARMUP_S = 120.0  # compilation is part of it
LEAD_IN = 3  # steps before a block, which fill the pipeline
FEWEST_STEPS = 5  # of a block
ENOUGH_S = 0.3  # length of a block beyond which more steps say no more
SPAN_STEPS = 15
MOST_SLEEP_S = 0.25
_SPIN_CYCLES = 10_000_000  # timed, to know how long a cycle of torch.cuda._sleep is


@dataclass(frozen=True, slots=True)
class Unprofiled:
    """What a process that never profiled measured of a step."""

    timing: Timing
    host: HostTimes | None


def settle(warmup: int) -> Pass[float]:
    """Run at least `warmup` steps, and until two blocks in a row take the same: ns a step.

    Of several ranks each runs as many, and gives the same: they go by the slowest.
    """
    started = time.perf_counter()
    done, before = 0, float("inf")
    while True:
        line_up()  # or a block would be longer by how much later the others begin theirs
        torch.cuda.synchronize()
        begin = time.perf_counter()
        yield from range(SETTLE_BLOCK, 0, -1)
        torch.cuda.synchronize()
        took = agreed(time.perf_counter() - begin)
        done += SETTLE_BLOCK
        steady = abs(took - before) <= SETTLED * took
        before = took
        late = agreed(time.perf_counter() - started) > LONGEST_WARMUP_S
        if done >= warmup and (steady or late):
            return took * 1e9 / SETTLE_BLOCK


def block_steps(most: int, step_ns: float) -> int:
    """How many steps a block has: `most`, fewer where they are so long that fewer do."""
    return min(most, max(FEWEST_STEPS, int(ENOUGH_S * 1e9 / step_ns)))


def block(steps: int, host: HostClock | None = None) -> Pass[float]:
    """One block of `steps` steps in the real loop, nothing drained inside it: ns a step.

    Measured between events in the stream, so that a block has the length of what the GPU did from
    the end of one step to the end of another, whatever the host does meanwhile. `host` counts what
    it did in all steps but the first, before which the workload may have begun anew: reading its
    counters takes milliseconds where /proc is slow, and between the events the GPU would run dry
    meanwhile.
    """
    yield Fresh(LEAD_IN + steps)
    if host is not None:
        host.go_on()
    yield from range(LEAD_IN + steps - 1, steps, -1)
    begin = Mark()
    yield from range(steps, 0, -1)
    end = Mark()
    if host is not None:
        host.pause()
    return begin.until(end) / steps


def time_steps(steps: int, repeats: int) -> Pass[Unprofiled]:
    """`repeats` blocks of `steps` steps, and what the host did in them."""
    blocks = []
    with HostClock() as host:
        for _ in range(repeats):
            torch.cuda.synchronize()
            blocks.append((yield from block(steps, host)))
    return Unprofiled(timing(blocks, steps), host.per_step((LEAD_IN - 1 + steps) * repeats))


def compare(old: Driver, new: Driver, steps: int, repeats: int) -> Comparison:
    """Time two steps in turn, `repeats` blocks of `steps` steps each."""
    blocks: tuple[list[float], list[float]] = [], []
    for index in range(repeats):
        for which in (0, 1) if index % 2 == 0 else (1, 0):  # a drift favours neither
            blocks[which].append((old, new)[which].run(block(steps)))
    return comparison(*blocks, steps)


@dataclass(frozen=True, slots=True)
class Spans:
    """GPU times with the host far ahead, ns: of a whole step, and of each graph replay in it.

    `step_ns` is None where the step waits for the GPU: then the host cannot be ahead.
    """

    step_ns: float | None
    graphs: list[GraphTimes]


def spans(step_ns: float, room: int | None = None) -> Pass[Spans]:
    """GPU time of the step and of its graph replays, kept apart from the host's.

    A spinning kernel holds the GPU while the host gets ahead; events around what is measured then
    see the GPU alone. Whether the host was ahead is checked each time: the event before it must not
    have happened when the host is done.

    Args:
        step_ns: the unprofiled step, from which the spin's length is chosen.
        room: of the workload; fewer steps are watched where that is little.
    """
    steps = SPAN_STEPS if room is None else min(SPAN_STEPS, room - 1)
    cycle_s, cost_ns = _spin_costs()
    cycles = int(min(MOST_SLEEP_S, step_ns * 2e-9 + 1e-3) / cycle_s)
    probe = _Probe(cost_ns)
    for probe.cycles in (0, cycles):
        yield Fresh(1 + steps)  # unwatched: a reset may replay graphs too
        with replaying(probe.around):
            for ahead in range(steps, 0, -1):
                yield ahead
                probe.step_done()
    return Spans((yield from _whole_span(steps, cycles, cost_ns)), probe.graphs())


def _whole_span(steps: int, cycles: int, cost_ns: float) -> Pass[float | None]:
    found = []
    yield Fresh(1 + steps)
    for ahead in range(steps, 0, -1):
        torch.cuda.synchronize()
        hold(cycles)
        begin = Mark()
        yield ahead
        was_ahead = not begin.happened()
        end = Mark()
        if was_ahead:
            found.append(begin.until(end) - cost_ns)
    return statistics.median(found) if len(found) > steps // 2 else None


@dataclass(slots=True)
class _Probe:
    """Watches graph replays. With `cycles` 0 it times the host's call, else the GPU's span.

    `calls[k]` and `spans[k]` are of the k-th replay of a step.
    """

    cost_ns: float
    cycles: int = 0
    calls: dict[int, list[float]] = field(default_factory=dict)
    spans: dict[int, list[float]] = field(default_factory=dict)
    _index: int = 0
    _pending: list[tuple[int, Mark, Mark]] = field(default_factory=list)

    def around(self, replay: Callable[[], None]) -> None:
        """Replay once, watched."""
        if self.cycles == 0:
            start = time.perf_counter_ns()
            replay()
            self.calls.setdefault(self._index, []).append(time.perf_counter_ns() - start)
        else:
            hold(self.cycles)
            begin = Mark()
            replay()
            was_ahead = not begin.happened()
            end = Mark()
            if was_ahead:
                self._pending.append((self._index, begin, end))
        self._index += 1

    def step_done(self) -> None:
        """The next replay is the first of its step."""
        for index, begin, end in self._pending:
            self.spans.setdefault(index, []).append(begin.until(end) - self.cost_ns)
        self._pending.clear()
        self._index = 0

    def graphs(self) -> list[GraphTimes]:
        """Medians; none where a replay could not be watched with the host ahead."""
        if self.spans.keys() != self.calls.keys():
            return []
        return [
            GraphTimes(
                call_ns=statistics.median(self.calls[index]),
                span_ns=statistics.median(self.spans[index]),
            )
            for index in sorted(self.calls)
        ]


def hold(cycles: int) -> None:
    """Hold the GPU up for so many cycles, and of several ranks until all have been held up.

    What follows then begins at the same time on each, and no rank waits for another's spin in it.
    """
    spin(cycles)
    line_up()


def _spin_costs() -> tuple[float, float]:
    """Seconds that a cycle of the spinning kernel takes, and ns between two events in a row."""
    times, costs = [], []
    for _ in range(7):
        torch.cuda.synchronize()
        before = Mark()
        spin(_SPIN_CYCLES)
        after, again = Mark(), Mark()
        costs.append(after.until(again))
        times.append(before.until(after) * 1e-9)
    return statistics.median(times) / _SPIN_CYCLES, statistics.median(costs)


@contextmanager
def replaying(around: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """Have each `torch.cuda.CUDAGraph.replay` go through `around`, inductor's too."""
    original = torch.cuda.CUDAGraph.replay

    def replay(self: torch.cuda.CUDAGraph) -> None:
        around(lambda: original(self))

    torch.cuda.CUDAGraph.replay = replay  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.cuda.CUDAGraph.replay = original  # type: ignore[method-assign]
