"""The Nsight Systems reader: SQLite exports of 2020 to 2026.

Tables are lazy (no GPU work, no KERNEL table) and columns come and go between versions, so both
are probed and never assumed. Rows join within their process: correlation ids repeat across them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostgap.errors import TraceError
from hostgap.trace import vocabulary as vocab
from hostgap.trace.columns import Interner, by_start, distinct
from hostgap.trace.join import match_calls
from hostgap.trace.model import (
    ApiCalls,
    Bool,
    CopyKind,
    Device,
    Frames,
    GpuKind,
    GpuOps,
    HostKind,
    HostOps,
    Int32,
    Int64,
    Memory,
    ReadReport,
    Role,
    Thread,
    Trace,
)
from hostgap.trace.sqlite import NULL, Database

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
DRIVER = "CUPTI_ACTIVITY_KIND_DRIVER"
OVERHEAD = "CUPTI_ACTIVITY_KIND_OVERHEAD"

_PUSH_POP, _START_END = 59, 60  # NVTX_EVENTS.eventType of ranges

_COPY_KINDS = {1: CopyKind.H2D, 2: CopyKind.D2H, 8: CopyKind.D2D, 9: CopyKind.H2H, 10: CopyKind.P2P}
_MEMORIES = {
    0: Memory.PAGEABLE,
    1: Memory.PINNED,
    2: Memory.DEVICE,
    3: Memory.ARRAY,
    4: Memory.MANAGED,
}
# Calls into the operating system in which a thread waits; others are work.
_WAITS = re.compile(
    r"^(?:poll|ppoll|select|pselect|epoll_wait|epoll_pwait|futex|nanosleep|clock_nanosleep|usleep|sleep"
    r"|sem_wait|sem_timedwait|sem_clockwait|pthread_cond_\w*wait|pthread_mutex_lock|pthread_join"
    r"|pthread_rwlock_\w+lock|read|readv|pread64|recv|recvfrom|recvmsg|accept|accept4|connect"
    r"|wait|waitpid|waitid|flock|fsync|sigwait\w*|msgrcv)$"
)
# What emit_nvtx writes around framework ops: "aten::add, seq = 12, op_id = 34".
_FRAMEWORK_OP = re.compile(
    r"^((?:aten|torch|prims|c10d|inductor|autograd|nccl)::[\w:.]+)(?:, .*)?$"
)
_LOSSES = re.compile(
    r"missing|lost|dropped|overflow|not been started correctly|out of memory", re.I
)


def read_nsys(
    path: Path, progress: Callable[[int], None] | None = None, *, name: str | None = None
) -> Trace:
    """Read an Nsight Systems SQLite export.

    Args:
        path: the export.
        progress: called now and then with the share of the file read, in bytes.
        name: how the trace calls its file, where that is not `path`.

    Raises:
        TraceError: not such an export, damaged, locked or unfinished; the message says which table
            is missing and which option of nsys records it.
    """
    database = Database(path)
    try:
        return _Reader(database, progress).trace(name or str(path))
    finally:
        database.close()


class _Reader:
    def __init__(self, database: Database, progress: Callable[[int], None] | None) -> None:
        self.db = database
        self._refuse_what_is_no_export()
        self.names: Interner[str] = Interner()
        self.threads: Interner[int] = Interner()  # globalTid
        self.devices: Interner[int] = Interner()
        self.streams: Interner[int] = Interner()
        self.unreadable = 0
        self.negative = 0
        self.negative_host = 0
        self._strings: dict[int, int] = {}  # StringIds.id -> code in names
        self._done = 0
        size = database.path.stat().st_size
        total = sum(
            map(database.count, (KERNEL, MEMCPY, MEMSET, RUNTIME, "NVTX_EVENTS", "OSRT_API"))
        )
        self._per_row = size / max(1, total)
        self._progress = progress

    def _refuse_what_is_no_export(self) -> None:
        db = self.db
        if not db.tables:
            raise TraceError(
                f"{db.path}: the database has no tables", "nsys export was killed: export again"
            )
        known = [t for t in db.tables if t.startswith(("CUPTI_", "NVTX_", "TARGET_INFO", "OSRT_"))]
        if not known and not db.has("StringIds"):
            named = ", ".join(sorted(db.tables)[:4])
            raise TraceError(
                f"{db.path}: an SQLite file, but no Nsight Systems export (tables: {named})",
                "make one with: nsys export --type sqlite -o x.sqlite x.nsys-rep",
            )

    def _tick(self) -> None:
        if self._progress is not None:
            self._done += 1
            self._progress(int(self._done * 16384 * self._per_row))

    def _read(self, table: str, *columns: str) -> dict[str, Int64]:
        return self.db.columns(table, columns, self._tick)

    # --- names -------------------------------------------------------------------------------

    def _named(self, ids: Int64, normal: Callable[[str], str] | None = None) -> Int32:
        """Codes in `names` of string ids; an id without a string gets a name that says so."""
        unique, which = distinct(ids)
        wanted = set(unique.tolist())
        texts: dict[int, str] = {}
        if self.db.has("StringIds", "id", "value"):
            # a few strings are asked for by id, many are read through
            if len(wanted) < 500:
                marks = ",".join("?" * len(wanted))
                query = f"SELECT id, value FROM StringIds WHERE id IN ({marks})"
                texts = dict(self.db.rows(query, sorted(wanted)))
            else:
                rows = self.db.rows("SELECT id, value FROM StringIds")
                texts = {key: text for key, text in rows if key in wanted}
        codes = []
        for key in unique.tolist():
            text = texts.get(key)
            name = str(text) if text is not None else ("" if key == NULL else f"[string {key}]")
            codes.append(self.names[normal(name) if normal else name])
        return np.array(codes, np.int32)[which] if len(codes) else np.zeros(len(ids), np.int32)

    def _kept(self, start: Int64, end: Int64, *, host: bool) -> Bool:
        """Rows with usable times; the others are counted."""
        readable = (start != NULL) & (end != NULL)
        ordered = readable & (end >= start)
        self.unreadable += int(np.count_nonzero(~readable))
        wrong = int(np.count_nonzero(readable & ~ordered))
        if host:
            self.negative_host += wrong
        else:
            self.negative += wrong
        return np.asarray(ordered)

    # --- GPU ---------------------------------------------------------------------------------

    def _gpu(self) -> tuple[dict[str, NDArray[Any]], Int64]:
        """Columns of GpuOps (unsorted), and the process of each op."""
        blocks: list[dict[str, NDArray[Any]]] = []
        for table, kind in (
            (KERNEL, GpuKind.KERNEL),
            (MEMCPY, GpuKind.COPY),
            (MEMSET, GpuKind.MEMSET),
            (GRAPH, GpuKind.GRAPH),
        ):
            blocks.append(self._gpu_table(table, kind))
        columns = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
        return columns, columns.pop("process")

    def _gpu_table(self, table: str, kind: GpuKind) -> dict[str, NDArray[Any]]:
        name_column = self._kernel_name() if kind is GpuKind.KERNEL else "graphId"
        rows = self._read(
            table,
            "start",
            "end",
            "deviceId",
            "streamId",
            "correlationId",
            "globalPid",
            "graphNodeId",
            "bytes",
            "copyKind",
            "srcKind",
            "dstKind",
            name_column,
        )
        keep = self._kept(rows["start"], rows["end"], host=False)
        rows = _only(rows, keep)
        n = len(rows["start"])
        copied = rows if kind is GpuKind.COPY else dict.fromkeys(rows, np.full(n, NULL, np.int64))
        source = _translated(copied["srcKind"], _MEMORIES, Memory.UNKNOWN)
        target = _translated(copied["dstKind"], _MEMORIES, Memory.UNKNOWN)
        return {
            "start": rows["start"],
            "end": rows["end"],
            "device": self._device_codes(rows["deviceId"], rows["globalPid"]),
            "stream": _interned(self.streams, rows["streamId"]).astype(np.int32),
            "kind": np.full(n, kind, np.int8),
            "name": self._gpu_names(kind, rows, name_column, source, target),
            "correlation": np.where(rows["correlationId"] == NULL, -1, rows["correlationId"]),
            "graph_node": np.where(rows["graphNodeId"] == NULL, 0, rows["graphNodeId"]),
            "bytes": np.where(rows["bytes"] == NULL, -1, rows["bytes"]),
            "copy_kind": _translated(copied["copyKind"], _COPY_KINDS, CopyKind.NONE),
            "src_mem": source,
            "dst_mem": target,
            "process": _process(rows["globalPid"]),
        }

    def _kernel_name(self) -> str:
        for column in ("demangledName", "shortName", "mangledName", "name"):
            if self.db.has(KERNEL, column):
                return column
        return "demangledName"

    def _gpu_names(
        self,
        kind: GpuKind,
        rows: dict[str, Int64],
        column: str,
        source: NDArray[np.int8],
        target: NDArray[np.int8],
    ) -> Int32:
        if kind is GpuKind.KERNEL:
            return self._named(rows[column])
        if kind is GpuKind.GRAPH:
            return np.array(
                [self.names[f"CUDA graph {g}"] for g in rows[column].tolist()], np.int32
            )
        if kind is GpuKind.MEMSET:
            return np.full(len(rows["start"]), self.names["Memset"], np.int32)
        texts = [
            f"Memcpy {_COPY_TEXT.get(code, '')} ({Memory(a).name.title()} -> {Memory(b).name.title()})"
            for code, a, b in zip(
                rows["copyKind"].tolist(), source.tolist(), target.tolist(), strict=True
            )
        ]
        return np.array([self.names[text] for text in texts], np.int32)

    def _device_codes(self, device: Int64, process: Int64) -> Int32:
        """Codes of devices: a process numbers its GPUs itself, the target's table says which."""
        gpu_of: dict[tuple[int, int], int] = {}
        if self.db.has("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid"):
            rows = self._read("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid")
            gpu_of = {
                (pid, cuda): gpu
                for gpu, cuda, pid in zip(*(c.tolist() for c in rows.values()), strict=True)
            }
        pids, of_pid = distinct(_process(process) & 0xFFFFFF)
        ids, of_id = distinct(device)
        pairs, which = distinct((of_pid * max(1, len(ids)) + of_id).astype(np.int64))
        codes = []
        for pair in pairs.tolist():
            pid, own = int(pids[pair // len(ids)]), int(ids[pair % len(ids)])
            codes.append(self.devices[gpu_of.get((pid, own), own)])
        return np.array(codes, np.int32)[which]

    # --- host --------------------------------------------------------------------------------

    def _calls(self) -> tuple[dict[str, NDArray[Any]], Int64]:
        blocks = []
        for table in (RUNTIME, DRIVER):
            rows = self._read(table, "start", "end", "globalTid", "correlationId", "nameId")
            # a call counts although its end is missing: the process died inside it
            rows["end"] = np.where(rows["end"] == NULL, rows["start"], rows["end"])
            keep = self._kept(rows["start"], rows["end"], host=True)
            blocks.append(_only(rows, keep))
        rows = {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]}
        thread = rows["globalTid"]
        columns: dict[str, NDArray[Any]] = {
            "start": rows["start"],
            "end": rows["end"],
            "thread": _interned(self.threads, thread).astype(np.int32),
            "name": self._named(rows["nameId"], vocab.api_name),
            "correlation": np.where(rows["correlationId"] == NULL, -1, rows["correlationId"]),
        }
        return columns, _process(thread)

    def _host_ops(self) -> dict[str, NDArray[Any]]:
        blocks = [self._nvtx(), self._waits()]
        blocks += [self._overhead(table) for table in (OVERHEAD, "PROFILER_OVERHEAD")]
        return {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]}

    def _nvtx(self) -> dict[str, NDArray[Any]]:
        """NVTX ranges. Framework ops of emit_nvtx become ops, everything else annotations.

        A start/end range can end on another thread, so it nests with nothing; it is a mark of time.
        """
        table = "NVTX_EVENTS"
        rows = self._read(table, "start", "end", "eventType", "globalTid", "textId")
        texts = self._nvtx_texts(rows["textId"])
        range_ = np.isin(rows["eventType"], (_PUSH_POP, _START_END)) & (rows["end"] != NULL)
        keep = range_ & (rows["end"] >= rows["start"])
        code, op = texts[0][keep], texts[1][keep]
        return {
            "start": rows["start"][keep],
            "end": rows["end"][keep],
            "thread": _interned(self.threads, rows["globalTid"][keep]).astype(np.int32),
            "name": code,
            "kind": np.where(op, HostKind.OP, HostKind.ANNOTATION).astype(np.int8),
        }

    def _nvtx_texts(self, ids: Int64) -> tuple[Int32, Bool]:
        """Name code of every row of NVTX_EVENTS, and whether it is a framework op."""
        code = self._named(ids)
        if self.db.has("NVTX_EVENTS", "text") and len(ids):
            inline = self.db.rows("SELECT text FROM NVTX_EVENTS")
            own = np.array([text is not None for (text,) in inline], np.bool_)
            named = [self.names[str(text)] for (text,) in inline if text is not None]
            code[own] = named
        names = list(self.names)
        final = np.arange(len(names), dtype=np.int32)
        is_op = np.zeros(len(names), np.bool_)
        for used in np.unique(code).tolist():
            if match := _FRAMEWORK_OP.match(names[used]):
                final[used] = self.names[match[1]]
                is_op[used] = True
        return final[code], is_op[code]

    def _waits(self) -> dict[str, NDArray[Any]]:
        """Blocking calls into the operating system."""
        rows = self._read("OSRT_API", "start", "end", "globalTid", "nameId")
        code = self._named(rows["nameId"], vocab.api_name)
        blocks = np.array([_WAITS.match(name) is not None for name in self.names], np.bool_)
        keep = self._kept(rows["start"], rows["end"], host=True)
        if len(keep):
            keep &= blocks[code]
        return {
            "start": rows["start"][keep],
            "end": rows["end"][keep],
            "thread": _interned(self.threads, rows["globalTid"][keep]).astype(np.int32),
            "name": code[keep],
            "kind": np.full(int(keep.sum()), HostKind.WAIT, np.int8),
        }

    def _overhead(self, table: str) -> dict[str, NDArray[Any]]:
        rows = self._read(table, "start", "end", "globalTid", "nameId")
        keep = self._kept(rows["start"], rows["end"], host=True)
        return {
            "start": rows["start"][keep],
            "end": rows["end"][keep],
            "thread": _interned(self.threads, rows["globalTid"][keep]).astype(np.int32),
            "name": self._named(rows["nameId"])[keep],
            "kind": np.full(int(keep.sum()), HostKind.OVERHEAD, np.int8),
        }

    # --- the finished trace ------------------------------------------------------------------

    def trace(self, file: str) -> Trace:
        gpu, gpu_process = self._gpu()
        calls, call_process = self._calls()
        host = self._host_ops()
        names = tuple(self.names)
        roles = np.array([vocab.api_role(name) for name in names], np.int8)
        start, end, thread, name, correlation, call_process = by_start(
            [calls[c] for c in ("start", "end", "thread", "name", "correlation")] + [call_process]
        )
        role = roles[name] if len(names) else np.zeros(0, np.int8)
        api = ApiCalls(start, end, thread, name, role, correlation)
        del calls
        if (np.diff(gpu["start"]) <= 0).any():
            order = np.lexsort((gpu["end"], gpu["start"]))
            gpu = {name: column[order] for name, column in gpu.items()}
            gpu_process = gpu_process[order]
        # ids repeat across processes: number the pairs
        gpu_ids, call_ids = _paired(gpu_process, gpu["correlation"], call_process, api.correlation)
        call, ambiguous = match_calls(gpu_ids, call_ids, api.role)
        empty64, empty32 = np.zeros(0, np.int64), np.zeros(0, np.int32)
        return Trace(
            source="nsys",
            file=file,
            gpu_ops=GpuOps(call=call, **gpu),
            api_calls=api,
            host_ops=HostOps(
                *by_start([host[c] for c in ("start", "end", "thread", "name", "kind")])
            ),
            frames=Frames(empty64, empty64, empty32, empty32),
            names=names,
            threads=self._threads(),
            devices=self._devices(),
            streams=tuple(self.streams),
            metadata=self._metadata(),
            report=ReadReport(
                events=len(call) + len(api) + len(host["start"]),
                negative=self.negative,
                negative_host=self.negative_host,
                unreadable_times=self.unreadable,
                ambiguous_correlations=ambiguous,
                missing=self._missing(len(api), len(call), roles, api),
                losses=tuple(self._losses()),
            ),
        )

    def _threads(self) -> tuple[Thread, ...]:
        named: dict[int, int] = {}
        if self.db.has("ThreadNames", "nameId", "globalTid"):
            rows = self._read("ThreadNames", "nameId", "globalTid")
            wanted = np.isin(rows["globalTid"], list(self.threads))
            codes = self._named(rows["nameId"][wanted])
            named = dict(zip(rows["globalTid"][wanted].tolist(), codes.tolist(), strict=True))
        names = list(self.names)
        return tuple(
            Thread(t >> 24 & 0xFFFFFF, t & 0xFFFFFF, names[named[t]] if t in named else "")
            for t in self.threads
        )

    def _devices(self) -> tuple[Device, ...]:
        known: dict[int, str] = {}
        if self.db.has("TARGET_INFO_GPU", "id", "name"):
            known = {
                key: str(name) for key, name in self.db.rows("SELECT id, name FROM TARGET_INFO_GPU")
            }
        return tuple(Device(device, known.get(device, "")) for device in self.devices)

    def _metadata(self) -> dict[str, Any]:
        """The export's own versions. Nothing else: an export holds the process's environment."""
        for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
            if self.db.has(table, "name", "value"):
                query = f"SELECT name, value FROM {table} WHERE name LIKE 'EXPORT_%VERSION%'"
                return dict(self.db.rows(query))
        return {}

    def _losses(self) -> Iterable[str]:
        """What nsys itself says it may have lost."""
        if self.db.has("DIAGNOSTIC_EVENT", "text"):
            for (text,) in self.db.rows("SELECT DISTINCT text FROM DIAGNOSTIC_EVENT"):
                line = " ".join(str(text).split())
                if _LOSSES.search(line):
                    yield line[:200]

    def _missing(self, calls: int, ops: int, roles: NDArray[np.int8], api: ApiCalls) -> str:
        """Which table is missing and what records it, "" when nothing is."""
        if ops:
            return "" if calls else f"no {RUNTIME} table: record with nsys profile --trace=cuda"
        if not calls:
            return f"no {KERNEL} and no {RUNTIME} table: record with nsys profile --trace=cuda,nvtx"
        if np.isin(api.role, (Role.GRAPH_LAUNCH,)).any():
            return f"no {KERNEL} table: record with --cuda-graph-trace=node"
        return (
            f"no {KERNEL} table: record with --trace=cuda, and --trace-fork-before-exec=true where "
            "child processes do the work"
        )


_COPY_TEXT = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
}
_COPY_TEXT |= {9: "HtoH", 10: "PtoP", 11: "UVM HtoD", 12: "UVM DtoH", 13: "UVM DtoD"}


def _process(global_id: Int64) -> Int64:
    """hardware and process id of a globalTid or globalPid (`hw << 48 | pid << 24 | tid`)."""
    return global_id >> 24


def _only(rows: dict[str, Int64], keep: Bool) -> dict[str, Int64]:
    """Some rows of a table; the table itself where they are all."""
    return rows if keep.all() else {name: column[keep] for name, column in rows.items()}


def _translated(values: Int64, table: Mapping[int, int], missing: int) -> NDArray[np.int8]:
    unique, which = distinct(values)
    return np.array([table.get(value, missing) for value in unique.tolist()], np.int8)[which]


def _interned(codes: Interner[int], values: Int64) -> NDArray[np.intp]:
    unique, which = distinct(values)
    return np.array([codes[value] for value in unique.tolist()], np.intp)[which]


def _paired(
    gpu_process: Int64, gpu_id: Int64, call_process: Int64, call_id: Int64
) -> tuple[Int64, Int64]:
    """One number per (process, correlation id); 0 for no id."""
    processes = np.unique(np.concatenate((gpu_process, call_process)))

    def number(process: Int64, ids: Int64) -> Int64:
        rank = np.searchsorted(processes, process)
        return np.where(ids > 0, (rank << 40) + ids, 0)

    return number(gpu_process, gpu_id), number(call_process, call_id)
