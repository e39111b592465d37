"""What the tables of an Nsight Systems export are called and what their codes mean."""

from __future__ import annotations

import re

from hostgap.errors import TraceError
from hostgap.trace.model import CopyKind, Memory
from hostgap.trace.sqlite import Database

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
DRIVER = "CUPTI_ACTIVITY_KIND_DRIVER"
OVERHEAD = "CUPTI_ACTIVITY_KIND_OVERHEAD"

PUSH_POP, START_END = 59, 60  # NVTX_EVENTS.eventType of ranges

# ENUM_CUDA_MEMCPY_OPER; arrays count as device memory, 11 to 13 are pages of managed memory
COPY_KINDS = {1: CopyKind.H2D, 2: CopyKind.D2H, 3: CopyKind.H2D, 4: CopyKind.D2H}
COPY_KINDS |= dict.fromkeys((5, 6, 7, 8, 13), CopyKind.D2D)
COPY_KINDS |= {9: CopyKind.H2H, 10: CopyKind.P2P, 11: CopyKind.H2D, 12: CopyKind.D2H}
COPY_TEXT = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
}
COPY_TEXT |= {9: "HtoH", 10: "PtoP", 11: "UVM HtoD", 12: "UVM DtoH", 13: "UVM DtoD"}
MEMORIES = {
    0: Memory.PAGEABLE,
    1: Memory.PINNED,
    2: Memory.DEVICE,
    3: Memory.ARRAY,
    4: Memory.MANAGED,
    5: Memory.DEVICE,  # static
    6: Memory.MANAGED,  # static
}
# Calls into the operating system in which a thread waits; others are work.
WAITS = re.compile(
    r"^(?:poll|ppoll|select|pselect|epoll_wait|epoll_pwait|futex|nanosleep|clock_nanosleep|usleep|sleep"
    r"|sem_wait|sem_timedwait|sem_clockwait|pthread_cond_\w*wait|pthread_mutex_lock|pthread_join"
    r"|pthread_rwlock_\w+lock|read|readv|pread64|recv|recvfrom|recvmsg|accept|accept4|connect"
    r"|wait|waitpid|waitid|flock|fsync|sigwait\w*|msgrcv)$"
)
# ENUM_SAMPLING_THREAD_STATE of a thread that gave the CPU away: it sleeps or waits
WAITING_STATES = (2, 3, 7)
# What emit_nvtx writes: "aten::add, seq = 12, op_id = 34", annotations without a sequence number.
EMITTED = re.compile(r"^(.*?), (seq|op_id) = \d+", re.DOTALL)
FRAMEWORK_OP = re.compile(r"^(?:aten|torch|prims|c10d|inductor|autograd|nccl)::[\w:.]+$")
LOSSES = re.compile(r"missing|lost|dropped|overflow|not been started correctly|out of memory", re.I)
LARGE_TABLES = (KERNEL, MEMCPY, MEMSET, GRAPH, RUNTIME, DRIVER, "NVTX_EVENTS", "OSRT_API")


def refuse_other_databases(database: Database) -> None:
    """Raise TraceError for an SQLite file that is no export of Nsight Systems."""
    if not database.tables:
        raise TraceError(
            f"{database.name}: the database has no tables", "nsys export was killed: export again"
        )
    known = ("CUPTI_", "NVTX_", "TARGET_INFO", "OSRT_")
    if "StringIds" not in database.tables and not any(
        table.startswith(known) for table in database.tables
    ):
        named = ", ".join(sorted(database.tables)[:4])
        raise TraceError(
            f"{database.name}: an SQLite file, but no Nsight Systems export (tables: {named})",
            "make one with: nsys export --type sqlite -o x.sqlite x.nsys-rep",
        )


def refuse_tables_without_times(database: Database) -> None:
    """Raise TraceError for an export whose GPU work or CUDA calls have no start or no end."""
    for table in (KERNEL, MEMCPY, MEMSET, GRAPH, RUNTIME, DRIVER):
        lacks = {"start", "end"} - set(database.columns_of(table))
        if table in database.tables and lacks:
            raise TraceError(
                f"{database.name}: table {table} has no column {sorted(lacks)[-1]}",
                "export the report again, with nsys of 2020 or later",
            )
