"""Events of random traces: `played` ones could have been recorded, `wild` ones are anything."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import strategies as st

from tests.analysis.build import (
    BLOCKING_COPY,
    COPY_CALL,
    D2D,
    D2H,
    DEVICE_SYNC,
    GRAPH,
    H2D,
    LAUNCH,
    MAIN,
    STREAM_SYNC,
    Event,
    call,
    copy,
    frame,
    kernel,
    memset,
    note,
    op,
    overhead,
    whole_graph,
)
from tests.analysis.oracle import COMPILE, GC, WAIT

WORKER = (1, 2)
SHORT, LENGTH = st.integers(1, 60), st.integers(1, 400)
NAMES = ("a", "b", "ncclDevKernel_AllReduce")


class Player:
    """Plays one program: the host runs through it, streams work in order."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.now = 0
        self.free: dict[int, int] = {}  # stream -> when it is free
        self.events: list[Event] = []
        self.id = 0

    def wait(self) -> None:
        self.now += self.draw(LENGTH)

    def called(self, name: str, length: int | None = None, until: int = 0) -> tuple[int, int]:
        """An API call; it returns when its time is up and `until` is reached."""
        self.id += 1
        start = self.now
        self.now = max(start + (length or self.draw(SHORT)), until)
        self.events.append(call(name, start, self.now, self.id))
        return start, self.id

    def runs(self, begun: int, stream: int) -> tuple[int, int]:
        start = max(self.free.get(stream, 0), begun + self.draw(SHORT))
        end = start + self.draw(st.one_of(st.just(0), LENGTH))
        self.free[stream] = end
        return start, end

    def launch(self) -> None:
        stream = self.draw(st.sampled_from((7, 7, 7, 9)))
        begun, id = self.called(LAUNCH)
        self.events.append(kernel(*self.runs(begun, stream), id, self.name(), stream=stream))

    def name(self) -> str:
        return self.draw(st.sampled_from(NAMES))

    def graph(self) -> None:
        """Nodes in turn; with luck one waits for its submission."""
        length = self.draw(st.sampled_from((30, 9_000)))
        begun, id = self.called(GRAPH, length)
        for i in range(self.draw(st.integers(0, 8))):
            start, end = self.runs(begun, 7)
            if self.draw(st.integers(0, 5)) == 0:
                start, end = start + 4_000, end + 4_000
                self.free[7] = end
            self.events.append(kernel(start, end, id, f"n{i}", node=i + 1))

    def copy(self) -> None:
        name = self.draw(st.sampled_from((H2D, D2D, "memset")))
        stream = self.draw(st.sampled_from((7, 9)))
        begun, id = self.called(COPY_CALL)
        span = self.runs(begun, stream)
        done = (
            memset(*span, id, stream=stream)
            if name == "memset"
            else copy(*span, id, name, stream=stream)
        )
        self.events.append(done)

    def item(self) -> None:
        begun, id = self.called(COPY_CALL)
        span = self.runs(begun, 7)
        self.events.append(copy(*span, id, D2H))
        self.called(STREAM_SYNC, until=span[1] + self.draw(SHORT))

    def blocking_copy(self) -> None:
        begun = self.now
        span = self.runs(begun, 7)
        _, id = self.called(BLOCKING_COPY, until=span[1] + 1)
        self.events.append(copy(*span, id, D2H))

    def sync(self) -> None:
        self.called(DEVICE_SYNC, until=max(self.free.values(), default=0) + self.draw(SHORT))

    def other(self) -> None:
        names = ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaEventRecord", "cuModuleLoadData")
        self.called(self.draw(st.sampled_from(names)), self.draw(LENGTH))

    def block(self, depth: int) -> None:
        """Some actions, now and then inside a frame or an op."""
        actions = (self.launch, self.launch, self.graph, self.copy, self.item, self.sync)
        more = (self.blocking_copy, self.other, self.wait, self.wait)
        for _ in range(self.draw(st.integers(1, 4))):
            if depth < 3 and self.draw(st.booleans()):
                start = self.now
                self.wait()
                self.block(depth + 1)
                name = self.draw(st.sampled_from(("aten::mm", "u.py(1): f", WAIT, GC, COMPILE)))
                make = op if name.startswith("aten") else frame
                self.events.append(make(name, start, self.now))
            else:
                self.draw(st.sampled_from(actions + more))()


@st.composite
def played(draw: st.DrawFn) -> list[Event]:
    """One device, one process, two threads of which one launches; clocks agree."""
    player = Player(draw)
    n, marked = draw(st.integers(1, 4)), draw(st.booleans())
    for i in range(n):
        start = player.now
        player.wait()
        player.block(0)
        if marked:
            player.events.append(note(f"ProfilerStep#{i}", start, player.now))
        player.wait()
    last = player.now
    events = [*player.events, *draw(tree(last, WORKER, calls=False))]
    if draw(st.booleans()):  # a launch that is not in the file
        lost = draw(st.integers(1, player.id)) if player.id else 0
        events = [e for e in events if e.table != "api" or e.id != lost]
    if draw(st.booleans()):
        start = draw(st.integers(0, last))
        events.append(overhead("Buffer Flush", start, start + draw(LENGTH)))
    if not draw(st.booleans()):
        events = [e for e in events if e.table != "frame"]
    return events


CALLS = (
    *(LAUNCH, GRAPH, COPY_CALL, BLOCKING_COPY, STREAM_SYNC, DEVICE_SYNC, "cudaEventSynchronize"),
    *("cudaMalloc", "cudaFree", "cudaEventRecord", "cuModuleLoadData", "cudaGraphInstantiate"),
)


@st.composite
def tree(
    draw: st.DrawFn, high: int, thread: tuple[int, int], *, calls: bool = True, first: int = 1
) -> list[Event]:
    """Host events of one thread that nest; calls are leaves with ids from `first` on."""
    events: list[Event] = []

    def inside(low: int, high: int, depth: int) -> None:
        at = low
        for _ in range(draw(st.integers(0, 4))):
            if at >= high:
                return
            start = draw(st.integers(at, high - 1))
            end = draw(st.integers(start, high))
            at = end
            what = draw(st.sampled_from(("frame", "op", "call")))
            if what == "call" and calls:
                name = draw(st.sampled_from(CALLS))
                events.append(call(name, start, end, first + len(events), thread=thread))
            elif what == "op":
                events.append(op("aten::add", start, end, thread=thread))
            else:
                name = draw(st.sampled_from(("u.py(2): g", "u.py(2): g", WAIT, GC, COMPILE)))
                events.append(frame(name, start, end, thread=thread))
            if what != "call" and depth < 3 and end > start:
                inside(start, end, depth + 1)

    inside(0, max(high, 1), 0)
    return events


@st.composite
def wild(
    draw: st.DrawFn,
    *,
    devices: int = 1,
    processes: int = 1,
    crossing: bool = False,
    origin: int = 0,
) -> list[Event]:
    """Anything goes: orphans, ops before their calls, clocks that contradict each other.

    Args:
        devices, processes: how many.
        crossing: host events may overlap without nesting.
        origin: added to all times.
    """
    high = draw(st.sampled_from((40, 400, 30_000)))
    time = st.integers(0, high)
    events: list[Event] = []
    for process in range(1, processes + 1):
        for thread in (1, 2):
            events += draw(tree(high, (process, thread), first=100 * len(events) + 1))
    ids = [e.id for e in events if e.table == "api"]
    if crossing:
        for _ in range(draw(st.integers(0, 4))):
            start = draw(time)
            make = draw(st.sampled_from((op, frame, note)))
            events.append(make("x.py(3): h", start, start + draw(time)))
    skew = draw(st.sampled_from((0, high, -high, 10 * high)))
    for _ in range(draw(st.integers(1, 12))):
        start = draw(time) + skew
        end = start + draw(st.one_of(st.just(0), SHORT, time))
        by = draw(st.sampled_from([0, *ids]))
        stream = draw(st.sampled_from((7, 7, 9)))
        device = draw(st.integers(0, devices - 1))
        kind = draw(st.sampled_from(("kernel", "kernel", "copy", "memset", "graph")))
        if kind == "kernel":
            events.append(
                kernel(start, end, by, draw(st.sampled_from(NAMES)), device=device, stream=stream)
            )
        elif kind == "copy":
            name = draw(st.sampled_from((H2D, D2H, D2D)))
            events.append(copy(start, end, by, name, device=device, stream=stream))
        elif kind == "memset":
            events.append(memset(start, end, by, stream=stream))
        else:
            events.append(whole_graph(start, end, by, stream=stream))
    marks = sorted(draw(st.lists(time, max_size=5, unique=True)))
    for i, (start, end) in enumerate(itertools.pairwise([*marks, high + 1])):
        # of no length, they nest with everything
        events.append(note(f"ProfilerStep#{i}", start, end if crossing else start, thread=MAIN))
    if draw(st.booleans()):
        start = draw(time)
        events.append(overhead("Buffer Flush", start, start + draw(time)))
    if draw(st.booleans()):
        events = [e for e in events if e.table != "frame"]
    return [replace(e, start=e.start + origin, end=e.end + origin) for e in events]
