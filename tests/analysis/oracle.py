"""Attribution once more, slowly: the five rules, moment by moment, in plain Python.

Nothing of hostgap.analysis is used but the names of the causes and the clock that was fitted. Host
events must nest, calls must have no children, and a process must have at most two threads.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from hostgap.analysis.causes import Cause
from hostgap.analysis.clock import Clock
from hostgap.trace.model import CopyKind, GpuKind, HostKind, Role, Trace

BY_ROLE = {
    Role.LAUNCH: Cause.LAUNCH_CALL,
    Role.GRAPH_LAUNCH: Cause.LAUNCH_CALL,
    Role.COPY: Cause.COPY_CALL,
    Role.SYNC: Cause.SYNC,
    Role.ALLOC: Cause.ALLOC,
    Role.HOST_ALLOC: Cause.HOST_ALLOC,
    Role.FREE: Cause.FREE,
    Role.CAPTURE: Cause.CAPTURE,
    Role.INSTANTIATE: Cause.CAPTURE,
    Role.MODULE_LOAD: Cause.COMPILE,
}
WAIT, GC, COMPILE = (
    "queue.py(9): get",
    "<built-in function collect>",
    "torch/_dynamo/convert_frame.py(9): _compile",
)
BY_FRAME = {WAIT: Cause.INPUT_WAIT, GC: Cause.GC, COMPILE: Cause.COMPILE}
DULL = (Cause.UNTRACED, Cause.INPUT_WAIT)  # nobody to hand anything off to

Piece = tuple[int, int, Cause, int]  # start, end, cause, and the blocking call to blame or -1


@dataclass(frozen=True)
class HostEvent:
    start: int
    end: int
    rank: int  # frame, op, call: of equal ones the later is the inner
    cause: Cause
    row: int


class Oracle:
    """One trace, on the GPU's clock."""

    def __init__(self, trace: Trace, clock: Clock) -> None:
        self.trace, self.reconciled = trace, clock.reconciled
        gpu, api, host, frames = trace.gpu_ops, trace.api_calls, trace.host_ops, trace.frames
        self.ops = range(len(gpu))
        self.start, self.end = gpu.start.tolist(), gpu.end.tolist()
        self.of, self.kind = gpu.call.tolist(), gpu.kind.tolist()
        self.stream, self.device = gpu.stream.tolist(), gpu.device.tolist()
        self.collective = ["nccl" in trace.names[code] for code in gpu.name]
        self.call_start = clock.to_gpu(api.start).tolist()
        self.call_end = clock.to_gpu(api.end).tolist()
        self.call_thread, self.role = api.thread.tolist(), [Role(r) for r in api.role]
        self.call_name = [trace.names[code] for code in api.name]
        self.events: dict[int, list[HostEvent]] = {t: [] for t in range(len(trace.threads))}
        self.overheads: list[tuple[int, int]] = []
        for row, (start, end) in enumerate(_spans(frames, clock)):
            cause = BY_FRAME.get(trace.names[frames.name[row]], Cause.PYTHON)
            self._add(frames.thread[row], HostEvent(start, end, 0, cause, row))
        for row, (start, end) in enumerate(_spans(host, clock)):
            if host.kind[row] == HostKind.OVERHEAD:
                self.overheads.append((start, end))
                continue
            cause = Cause.DISPATCH if host.kind[row] == HostKind.OP else Cause.PYTHON
            self._add(host.thread[row], HostEvent(start, end, 1, cause, row))
        for row, start in enumerate(self.call_start):
            cause = BY_ROLE.get(self.role[row], Cause.API_CALL)
            self._add(self.call_thread[row], HostEvent(start, self.call_end[row], 2, cause, row))
        self._find_steps(clock)

    def _add(self, thread: int, event: HostEvent) -> None:
        if event.end > event.start:
            self.events[int(thread)].append(event)

    def _find_steps(self, clock: Clock) -> None:
        """The steps' thread, and the host time from the first step to the last host event."""
        trace, host = self.trace, self.trace.host_ops
        named = ["ProfilerStep" in trace.names[code] for code in host.name]
        times = clock.to_gpu(host.start).tolist()
        marked = [row for row, is_step in enumerate(named) if is_step]
        launches = [c for c in self.of if c >= 0]
        if marked:
            self.step_thread = int(host.thread[marked[0]])
            first = times[marked[0]]
        else:
            threads = Counter(self.call_thread[c] for c in launches) or Counter(self.call_thread)
            most = max(threads.values(), default=0)
            self.step_thread = min((t for t, n in threads.items() if n == most), default=-1)
            begun = [self.call_start[c] for c in launches]
            first = min([*begun, *self.start[:1]])
        until = clock.to_gpu(host.end).tolist()
        self.switching = []  # in the profiler's own step(): thread, from, to
        for thread in {int(host.thread[row]) for row in marked}:
            mine = [row for row in marked if host.thread[row] == thread]
            for one, other in pairwise(mine):
                names = [trace.names[host.name[row]] for row in (one, other)]
                numbers = [int(name.removeprefix("ProfilerStep#")) for name in names]
                if numbers[1] == numbers[0] + 1:
                    self.switching.append((thread, until[one], times[other]))
        ends = [*self.call_end, *until]
        self.stepping = (first, max(ends, default=first))

    # --- gaps ---------------------------------------------------------------------------------

    def gaps(self, ops: list[int], low: int, high: int) -> list[tuple[int, int]]:
        """Idle time between ops, cut where an op of no length stands."""
        busy = sorted((self.start[i], self.end[i]) for i in ops)
        found, at = [], low
        for start, end in [*busy, (high, high)]:
            if start > at:
                found.append((at, min(start, high)))
            at = max(at, end, start)
        return [gap for gap in found if gap[1] > gap[0]]

    def next_op(self, ops: list[int], at: int) -> int | None:
        """The op that ends a gap: not a side stream's copy, not a collective."""
        later = [i for i in ops if self.start[i] >= at]
        if not later:
            return None
        work = [i for i in ops if self.kind[i] in (GpuKind.KERNEL, GpuKind.GRAPH)]
        work = [i for i in work if not self.collective[i]]
        time: Counter[int] = Counter()
        for i in work or ops:
            time[self.stream[i]] += self.end[i] - self.start[i]
        compute = min(time, key=lambda s: (-time[s], s))
        found = later[0]
        aside = self.kind[found] in (GpuKind.COPY, GpuKind.MEMSET) and self.stream[found] != compute
        if aside or self.collective[found]:
            kernels = [i for i in work if self.stream[i] == compute and self.start[i] >= at]
            if kernels and self.of[kernels[0]] >= 0:
                return kernels[0]
        return found

    def attribute(self, ops: list[int], low: int, high: int) -> list[Piece]:
        """Pieces (start, end, cause, blame) of all gaps."""
        gaps = self.gaps(ops, low, high)
        ended_by = [self.next_op(ops, end) for _, end in gaps]
        calls = [self.of[k] if k is not None else -1 for k in ended_by]
        internal = [
            c >= 0
            and self.role[c] is Role.GRAPH_LAUNCH
            and any(self.of[i] == c and self.start[i] <= g0 for i in self.ops)
            for (g0, _), c in zip(gaps, calls, strict=True)
        ]
        usual: dict[int, list[int]] = {}
        for (g0, g1), c, inside in zip(gaps, calls, internal, strict=True):
            if inside:
                usual.setdefault(c, []).append(g1 - g0)
        everywhere = [length for lengths in usual.values() for length in lengths]
        pieces: list[Piece] = []
        for (g0, g1), k, c, inside in zip(gaps, ended_by, calls, internal, strict=True):
            if k is not None and c < 0:
                launched = [i for i in self.ops if self.of[i] >= 0]
                early = bool(launched) and k < launched[0]
                pieces.append((g0, g1, Cause.QUEUE_GAP if early else Cause.UNATTRIBUTABLE, -1))
            elif inside:
                lengths = usual[c] if len(usual[c]) >= 5 else everywhere
                far = g1 - g0 > max(10 * median(lengths), 2_000)
                stalled = self.reconciled and far and g1 <= self.call_end[c]
                cause = Cause.LAUNCH_CALL if stalled else Cause.GRAPH_INTERNAL
                pieces.append((g0, g1, cause, -1))
            elif not self.reconciled:
                pieces.append((g0, g1, Cause.UNATTRIBUTABLE, -1))
            elif k is None:
                pieces += self.host_part(g0, g1, self.step_thread)
            elif self.call_end[c] < g0:
                pieces.append((g0, g1, Cause.QUEUE_GAP, -1))
            else:
                until = min(self.call_end[c], g1)
                pieces += self.host_part(g0, until, self.call_thread[c])
                pieces.append((until, g1, Cause.LAUNCH_LATENCY, -1))
        return [piece for piece in pieces if piece[1] > piece[0]]

    # --- the host -----------------------------------------------------------------------------

    def host_part(self, low: int, high: int, thread: int) -> list[Piece]:
        edges = {t for events in self.events.values() for e in events for t in (e.start, e.end)}
        edges |= {t for span in self.overheads for t in span} | set(self.stepping)
        edges |= {t for _, start, end in self.switching for t in (start, end)}
        culprit = self.blocked_in(thread, low)
        out = []
        for a, b in _between(low, high, {t for t in edges if low < t < high}):
            blame = culprit if culprit >= 0 and a >= self.call_end[culprit] else -1
            out.append((a, b, self.cause_at(a, thread), blame))
        return out

    def cause_at(self, t: int, thread: int) -> Cause:
        """What held up `thread` at `t`."""
        if any(start <= t < end for start, end in self.overheads):
            return Cause.PROFILER
        if any(of == thread and start <= t < end for of, start, end in self.switching):
            return Cause.PROFILER
        cause, mates = Cause.UNTRACED, []
        if thread >= 0:
            cause = self.innermost(t, thread)
            threads = self.trace.threads
            mates = [o for o in self.events if threads[o].process == threads[thread].process]
        if cause is Cause.UNTRACED and self.step_thread in mates:
            cause = self.innermost(t, self.step_thread)
        if cause is Cause.INPUT_WAIT:
            theirs = [self.innermost(t, o) for o in mates if o != thread]
            cause = next((c for c in theirs if c not in DULL), cause)
        silent = cause is Cause.UNTRACED and len(self.trace.frames) == 0
        return Cause.PYTHON if silent and self.stepping[0] <= t < self.stepping[1] else cause

    def innermost(self, t: int, thread: int) -> Cause:
        """The innermost event's cause; all but calls inherit that of compiling and of waits."""
        around = [e for e in self.events[thread] if e.start <= t < e.end]
        around.sort(key=lambda e: (e.start, -e.end, e.rank, e.row))
        cause, inherited = Cause.UNTRACED, False
        for event in around:
            if not (inherited and event.rank < 2):
                cause = event.cause
                inherited = event.rank < 2 and cause in (Cause.COMPILE, Cause.INPUT_WAIT)
        return cause

    def blocked_in(self, thread: int, t: int) -> int:
        """The blocking call in which a thread is at `t` (the one that lasts longest), -1: none."""
        mine = [c for c in range(len(self.role)) if self.call_thread[c] == thread]
        found, begun, previous = -1, 0, -1
        for c in mine:
            begun = self.call_start[c]
            if self.call_name[c] == "cudaStreamSynchronize" and self.is_download(previous):
                begun = self.call_start[previous]
            if self.role[c] in (Role.LAUNCH, Role.GRAPH_LAUNCH, Role.COPY, Role.SYNC):
                previous = c
            blocks = self.role[c] is Role.SYNC or self.call_name[c] == "cudaMemcpy"
            longer = found < 0 or self.call_end[c] > self.call_end[found]
            if blocks and begun <= t < self.call_end[c] and longer:
                found = c
        return found

    def is_download(self, call: int) -> bool:
        """Whether a call (-1: none) copies to the host."""
        directions = self.trace.gpu_ops.copy_kind.tolist()
        return call >= 0 and any(
            self.of[i] == call and directions[i] == CopyKind.D2H for i in self.ops
        )


def _spans(table: object, clock: Clock) -> list[tuple[int, int]]:
    starts, ends = clock.to_gpu(table.start), clock.to_gpu(table.end)  # type: ignore[attr-defined]
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def _between(low: int, high: int, edges: set[int]) -> list[tuple[int, int]]:
    marks = [low, *sorted(edges), high]
    return [(a, b) for a, b in itertools.pairwise(marks) if b > a]
