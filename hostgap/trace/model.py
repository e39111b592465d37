"""The `Trace`: what every reader fills and every analysis reads.

A trace is a handful of column tables (numpy arrays of one length) plus the dictionaries their
code columns point into. Times are int64 nanoseconds on the trace's own clock, never float: at
Kineto's absolute microseconds (1.7e15) a float64 steps by 0.25 us. Intervals are half-open,
`[start, end)`. A code of -1 means "none".
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Int8 = NDArray[np.int8]
Bool = NDArray[np.bool_]


class GpuKind(enum.IntEnum):
    """What a row of `gpu_ops` is."""

    KERNEL = 0
    COPY = 1
    MEMSET = 2
    GRAPH = 3  # a whole graph, where the trace does not show its nodes


class CopyKind(enum.IntEnum):
    """Direction of a copy."""

    NONE = 0
    H2D = 1
    D2H = 2
    D2D = 3
    H2H = 4
    P2P = 5


class Memory(enum.IntEnum):
    """Kind of memory at one end of a copy."""

    UNKNOWN = 0
    PAGEABLE = 1
    PINNED = 2
    DEVICE = 3
    ARRAY = 4
    MANAGED = 5


class Role(enum.IntEnum):
    """What a CUDA or HIP call does to the host or the GPU."""

    OTHER = 0
    LAUNCH = 1
    GRAPH_LAUNCH = 2
    COPY = 3  # copies and memsets
    SYNC = 4  # blocks the calling thread until the GPU has caught up
    EVENT = 5
    ALLOC = 6
    FREE = 7
    HOST_ALLOC = 8  # pinned memory, taken or given back
    CAPTURE = 9
    INSTANTIATE = 10
    MODULE_LOAD = 11
    QUERY = 12


class HostKind(enum.IntEnum):
    """What a row of `host_ops` is."""

    OP = 0  # framework operator
    ANNOTATION = 1  # user annotation, NVTX range
    OVERHEAD = 2  # the profiler's own work; stops every thread, whatever row it stands on
    WAIT = 3  # a call into the operating system in which the thread waits
    OFF_CPU = 4  # the thread was not scheduled


class _Table:
    """Shared by the tables: length, row selection, and the pandas edge."""

    __slots__ = ()
    # column -> attribute of Trace that holds the dictionary its codes point into
    dictionaries: ClassVar[dict[str, str]] = {}

    def __len__(self) -> int:
        return len(getattr(self, dataclasses.fields(self)[0].name))  # type: ignore[arg-type]

    def columns(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Name and array of every column, in order."""
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            yield f.name, getattr(self, f.name)


@dataclass(frozen=True, slots=True)
class GpuOps(_Table):
    """One row per kernel, copy or memset (or whole graph), sorted by (start, end).

    `call` is the row of `api_calls` that launched the op, or -1 (an orphan): the call's own
    correlation id joins them, within one process. Many ops of one graph launch share one call.
    """

    start: Int64
    end: Int64
    device: Int32  # code in Trace.devices
    stream: Int32  # code in Trace.streams
    kind: Int8  # GpuKind
    name: Int32  # code in Trace.names
    correlation: Int64
    call: Int32
    graph_node: Int64  # id of the graph node, 0 when not part of a graph
    bytes: Int64  # of a copy or memset, -1 when not recorded
    copy_kind: Int8  # CopyKind
    src_mem: Int8  # Memory
    dst_mem: Int8  # Memory

    dictionaries: ClassVar[dict[str, str]] = {
        "device": "devices",
        "stream": "streams",
        "name": "names",
    }


@dataclass(frozen=True, slots=True)
class ApiCalls(_Table):
    """One row per CUDA/HIP runtime or driver call, sorted by start."""

    start: Int64
    end: Int64
    thread: Int32  # code in Trace.threads
    name: Int32  # code in Trace.names, version suffix stripped
    role: Int8  # Role
    correlation: Int64

    dictionaries: ClassVar[dict[str, str]] = {"thread": "threads", "name": "names"}


@dataclass(frozen=True, slots=True)
class HostOps(_Table):
    """One row per framework op, annotation or profiler overhead, sorted by start."""

    start: Int64
    end: Int64
    thread: Int32
    name: Int32
    kind: Int8  # HostKind

    dictionaries: ClassVar[dict[str, str]] = {"thread": "threads", "name": "names"}


@dataclass(frozen=True, slots=True)
class Frames(_Table):
    """One row per Python frame, sorted by start. File, line and function are in the name.

    A Kineto frame lasts as long as the function and carries its first line. One of an Nsight export
    is from the stack of a CUDA call: it lasts as long as the call and carries the line being run.
    """

    start: Int64
    end: Int64
    thread: Int32
    name: Int32  # "decode.py(74): step"

    dictionaries: ClassVar[dict[str, str]] = {"thread": "threads", "name": "names"}


@dataclass(frozen=True, slots=True)
class Thread:
    """A host thread: process id, thread id (as recorded), and their names if the trace has them."""

    process: int | str
    thread: int | str
    name: str = ""
    process_name: str = ""

    def __str__(self) -> str:
        return f"{self.process}/{self.thread}" + (f" {self.name}" if self.name else "")


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as the trace numbers it. `name` is "" when the trace does not say."""

    id: int | str
    name: str = ""

    def __str__(self) -> str:
        return str(self.id)


@dataclass(frozen=True, slots=True)
class ReadReport:
    """What the reader met on the way: everything it repaired, dropped or could not see.

    Counts are events. `truncated` says why the file ends early ("" when it is whole).
    """

    events: int = 0
    truncated: str = ""
    damaged: int = 0  # stretches of text dropped because they are not JSON
    first_damage: str = ""  # where and why, for the first of them
    repaired: dict[str, int] = field(default_factory=dict)  # kind of repair -> events
    negative: int = 0  # GPU ops dropped: they end before they start
    negative_host: int = 0  # host events dropped for the same reason
    unset: int = 0  # GPU ops dropped: start and duration both 0
    unreadable_times: int = 0  # events dropped: a time is missing or not a number
    ambiguous_correlations: int = 0  # ids used by more than one call
    profiler_cycles: int = 0  # profiler spans in the file
    unread_backend: str = ""  # of device events hostgap cannot read as GPU work
    missing: str = ""  # what was not recorded at all, and what records it
    losses: tuple[str, ...] = ()  # what the recording tool itself says it may have lost
    ops_of_calls: bool = False  # framework ops are those in the stacks of CUDA calls, no others


@dataclass(frozen=True, slots=True)
class Trace:
    """One profile of one process (or several), in tables.

    Made by `hostgap.load_trace`. Nothing in it is changed afterwards: analyses return new objects.
    """

    source: Literal["kineto", "nsys"]
    file: str  # as it was given; "stdin" for a pipe
    gpu_ops: GpuOps
    api_calls: ApiCalls
    host_ops: HostOps
    frames: Frames
    names: tuple[str, ...]
    threads: tuple[Thread, ...]
    devices: tuple[Device, ...]
    streams: tuple[int | str, ...]
    report: ReadReport
    metadata: dict[str, Any] = field(default_factory=dict)  # what the file says of itself
    # correlation id of a collective -> the ranks of its process group, as the file has them
    groups: dict[int, str] = field(default_factory=dict)
    # per API call the name code of its user frame, -1 for none, as another recording has it
    call_frames: Int32 | None = None

    def table(self, name: str) -> pd.DataFrame:
        """One table as a pandas DataFrame: codes become categories, enums become names.

        Args:
            name: "gpu_ops", "api_calls", "host_ops" or "frames".
        """
        from hostgap.trace.frames import data_frame

        return data_frame(self, name)
