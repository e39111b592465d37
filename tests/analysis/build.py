"""Small traces in memory, from a list of events that reads like a timeline.

    build(
        call("cudaLaunchKernel", 0, 10, 1),
        kernel(20, 50, by=1),
    )

Times are ns. `by` is the id of the call that launched an op; an op without one is an orphan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hostgap.trace.model import (
    ApiCalls,
    CopyKind,
    Device,
    Frames,
    GpuKind,
    GpuOps,
    HostKind,
    HostOps,
    Memory,
    ReadReport,
    Thread,
    Trace,
)
from hostgap.trace.vocabulary import api_role, copy_of

LAUNCH, GRAPH = "cudaLaunchKernel", "cudaGraphLaunch"
DEVICE_SYNC, STREAM_SYNC = "cudaDeviceSynchronize", "cudaStreamSynchronize"
COPY_CALL, BLOCKING_COPY = "cudaMemcpyAsync", "cudaMemcpy"
H2D, D2H = "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pageable)"
D2D = "Memcpy DtoD (Device -> Device)"
MAIN = (1, 1)  # process, thread


@dataclass(frozen=True, repr=False)
class Event:
    """One event; `table` says of which kind."""

    table: str  # gpu, api, host or frame
    name: str
    start: int
    end: int
    id: int = 0  # of a call, and of the call that launched an op; 0: none
    thread: tuple[int, int] = MAIN
    kind: int = 0  # GpuKind or HostKind
    device: int = 0
    stream: int = 7
    node: int = 0

    def __repr__(self) -> str:
        where = f"{self.device}/{self.stream}" if self.table == "gpu" else f"{self.thread}"
        kind = f" kind {int(self.kind)}" if self.table in ("gpu", "host") else ""
        return f"<{self.table} {self.name!r} {self.start}:{self.end} id {self.id} {where}{kind}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """One line, in hypothesis's reports too."""
        printer.text(repr(self))


def kernel(
    start: int,
    end: int,
    by: int = 0,
    name: str = "k",
    *,
    device: int = 0,
    stream: int = 7,
    node: int = 0,
) -> Event:
    return Event("gpu", name, start, end, by, MAIN, GpuKind.KERNEL, device, stream, node)


def copy(
    start: int, end: int, by: int = 0, name: str = D2H, *, device: int = 0, stream: int = 7
) -> Event:
    return Event("gpu", name, start, end, by, MAIN, GpuKind.COPY, device, stream)


def memset(start: int, end: int, by: int = 0, *, stream: int = 7) -> Event:
    return Event("gpu", "Memset (Device)", start, end, by, MAIN, GpuKind.MEMSET, 0, stream)


def whole_graph(start: int, end: int, by: int = 0, *, stream: int = 7) -> Event:
    return Event("gpu", "graph", start, end, by, MAIN, GpuKind.GRAPH, 0, stream)


def call(name: str, start: int, end: int, id: int = 0, *, thread: tuple[int, int] = MAIN) -> Event:
    return Event("api", name, start, end, id, thread)


def op(name: str, start: int, end: int, *, thread: tuple[int, int] = MAIN) -> Event:
    return Event("host", name, start, end, 0, thread, HostKind.OP)


def note(name: str, start: int, end: int, *, thread: tuple[int, int] = MAIN) -> Event:
    return Event("host", name, start, end, 0, thread, HostKind.ANNOTATION)


def overhead(name: str, start: int, end: int, *, thread: tuple[int, int] = (1, 9)) -> Event:
    return Event("host", name, start, end, 0, thread, HostKind.OVERHEAD)


def frame(name: str, start: int, end: int, *, thread: tuple[int, int] = MAIN) -> Event:
    return Event("frame", name, start, end, 0, thread)


def steps(*starts: int, length: int = 0, thread: tuple[int, int] = MAIN) -> list[Event]:
    """ProfilerStep annotations; each reaches to the next one, the last is as long as the others."""
    last = starts[-1] + (length or (starts[-1] - starts[-2] if len(starts) > 1 else 1))
    ends = [*starts[1:], last]
    return [
        note(f"ProfilerStep#{i}", start, start + length if length else end, thread=thread)
        for i, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def build(
    *events: Event | Iterable[Event],
    report: ReadReport | None = None,
    threads: dict[tuple[int, int], Thread] | None = None,
) -> Trace:
    """A trace of these events, joined as a reader would join them.

    Args:
        events: events, or lists of them.
        report: what the reader met.
        threads: names of threads and processes, where they matter.
    """
    flat: list[Event] = []
    for entry in events:
        flat += [entry] if isinstance(entry, Event) else list(entry)
    names = _codes(event.name for event in flat)
    known = threads or {}
    thread = _codes([*(e.thread for e in flat if e.table != "gpu"), *known])
    gpu = sorted((e for e in flat if e.table == "gpu"), key=lambda e: (e.start, e.end))
    device, stream = _codes(e.device for e in gpu), _codes(e.stream for e in gpu)
    api, host, frames = (_by_start(flat, table) for table in ("api", "host", "frame"))
    row = {e.id: i for i, e in enumerate(api) if e.id}
    copies = [
        copy_of(e.name)
        if e.kind == GpuKind.COPY
        else (CopyKind.NONE, Memory.UNKNOWN, Memory.UNKNOWN)
        for e in gpu
    ]

    def ints(values: Iterable[Any], dtype: Any = np.int64) -> Any:
        return np.array(list(values), dtype)

    def host_columns(rows: list[Event]) -> dict[str, Any]:
        return {
            "start": ints(e.start for e in rows),
            "end": ints(e.end for e in rows),
            "thread": ints((thread[e.thread] for e in rows), np.int32),
            "name": ints((names[e.name] for e in rows), np.int32),
        }

    return Trace(
        source="kineto",
        file="built.json",
        gpu_ops=GpuOps(
            start=ints(e.start for e in gpu),
            end=ints(e.end for e in gpu),
            device=ints((device[e.device] for e in gpu), np.int16),
            stream=ints((stream[e.stream] for e in gpu), np.int32),
            kind=ints((e.kind for e in gpu), np.int8),
            name=ints((names[e.name] for e in gpu), np.int32),
            correlation=ints(e.id for e in gpu),
            call=ints((row.get(e.id, -1) for e in gpu), np.int32),
            graph_node=ints(e.node for e in gpu),
            bytes=ints(-1 for _ in gpu),
            copy_kind=ints((c[0] for c in copies), np.int8),
            src_mem=ints((c[1] for c in copies), np.int8),
            dst_mem=ints((c[2] for c in copies), np.int8),
        ),
        api_calls=ApiCalls(
            **host_columns(api),
            role=ints((api_role(e.name) for e in api), np.int8),
            correlation=ints(e.id for e in api),
        ),
        host_ops=HostOps(**host_columns(host), kind=ints((e.kind for e in host), np.int8)),
        frames=Frames(**host_columns(frames)),
        names=tuple(names),
        threads=tuple(known.get(t, Thread(*t)) for t in thread),
        devices=tuple(Device(d) for d in device),
        streams=tuple(stream),
        report=report or ReadReport(events=len(flat)),
    )


def _codes(values: Iterable[Any]) -> dict[Any, int]:
    return {value: code for code, value in enumerate(dict.fromkeys(values))}


def _by_start(events: list[Event], table: str) -> list[Event]:
    return sorted((e for e in events if e.table == table), key=lambda e: (e.start, -e.end))
