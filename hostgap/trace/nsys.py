"""The Nsight Systems reader: SQLite exports of 2020 to 2026.

Tables are lazy (no GPU work, no KERNEL table) and columns come and go between versions, so both
are probed and never assumed. Rows join within their process: correlation ids repeat across them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostgap.trace import nsys_tables as tables
from hostgap.trace import vocabulary as vocab
from hostgap.trace.columns import Interner, by_start, distinct
from hostgap.trace.join import match_calls, pair_ids
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
from hostgap.trace.nsys_ranges import crossing, inside_calls
from hostgap.trace.nsys_tables import DRIVER, GRAPH, KERNEL, MEMCPY, MEMSET, OVERHEAD, RUNTIME
from hostgap.trace.sqlite import NULL, Database

_MOST_LOSSES = 5  # lines
_PID_TID = (1 << 48) - 1
_LIMIT = 2**62  # ns; as in Kineto traces, so that the difference of two times fits in an int64


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
    database = Database(path, name)
    try:
        return _Reader(database, progress).trace(database.name)
    finally:
        database.close()


class _Reader:
    def __init__(self, database: Database, progress: Callable[[int], None] | None) -> None:
        self.db = database
        tables.refuse_other_databases(database)
        tables.refuse_tables_without_times(database)
        self.names: Interner[str] = Interner()
        self.threads: Interner[int] = Interner()  # globalTid
        self.devices: Interner[int] = Interner()
        self.streams: Interner[int] = Interner()
        self.unreadable = 0
        self.negative = 0
        self.negative_host = 0
        self._done = 0
        self._size = database.path.stat().st_size
        self._rows = sum(map(database.count, tables.LARGE_TABLES)) if progress is not None else 0
        self._progress = progress

    def _tick(self, rows: int) -> None:
        if self._progress is not None:
            self._done += rows
            share = min(1.0, self._done / max(1, self._rows))  # some tables are not counted
            self._progress(int(self._size * share))

    def _read(self, table: str, *columns: str) -> dict[str, Int64]:
        return self.db.columns(table, columns, self._tick)

    # --- names -------------------------------------------------------------------------------

    def _named(self, ids: Int64, code_of: Callable[[str], int] | None = None) -> Int32:
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
                for block in self.db.blocks("SELECT id, value FROM StringIds"):
                    texts.update((key, text) for key, text in block if key in wanted)
        codes = []
        for key in unique.tolist():
            text = texts.get(key)
            name = str(text) if text is not None else ("" if key == NULL else f"[string {key}]")
            codes.append(code_of(name) if code_of else self.names[name])
        return np.array(codes, np.int32)[which] if len(codes) else np.zeros(len(ids), np.int32)

    def _api_name(self, text: str) -> int:
        return self.names[vocab.api_name(text)]

    def _kept(self, start: Int64, end: Int64, *, host: bool) -> Bool:
        """Rows with usable times; the others are counted."""
        readable = (np.abs(start) < _LIMIT) & (np.abs(end) < _LIMIT) & (start != NULL)
        readable &= end != NULL  # which np.abs leaves negative
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
        source = _translated(copied["srcKind"], tables.MEMORIES, Memory.UNKNOWN)
        target = _translated(copied["dstKind"], tables.MEMORIES, Memory.UNKNOWN)
        return {
            "start": rows["start"],
            "end": rows["end"],
            "device": self._device_codes(rows["deviceId"], rows["globalPid"]),
            "stream": _interned(self.streams, np.maximum(rows["streamId"], 0)).astype(np.int32),
            "kind": np.full(n, kind, np.int8),
            "name": self._gpu_names(kind, rows, name_column, source, target),
            "correlation": np.where(rows["correlationId"] == NULL, -1, rows["correlationId"]),
            "graph_node": np.where(rows["graphNodeId"] == NULL, 0, rows["graphNodeId"]),
            "bytes": np.where(rows["bytes"] == NULL, -1, rows["bytes"]),
            "copy_kind": _translated(copied["copyKind"], tables.COPY_KINDS, CopyKind.NONE),
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
            f"Memcpy {tables.COPY_TEXT.get(code, '')} "
            f"({Memory(a).name.title()} -> {Memory(b).name.title()})"
            for code, a, b in zip(
                rows["copyKind"].tolist(), source.tolist(), target.tolist(), strict=True
            )
        ]
        return np.array([self.names[text] for text in texts], np.int32)

    @cached_property
    def _gpu_of(self) -> dict[tuple[int, int], int]:
        """The target's number of a GPU, by process and its number there."""
        if not self.db.has("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid"):
            return {}
        rows = self._read("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid")
        return {
            (pid, cuda): gpu
            for gpu, cuda, pid in zip(*(c.tolist() for c in rows.values()), strict=True)
            if gpu != NULL
        }

    def _device_codes(self, device: Int64, process: Int64) -> Int32:
        """Codes of devices: a process numbers its GPUs itself, the target's table says which."""
        pids, of_pid = distinct(_process(process) & 0xFFFFFF)
        ids, of_id = distinct(np.where(device == NULL, 0, device))
        pairs, which = distinct((of_pid * max(1, len(ids)) + of_id).astype(np.int64))
        codes = []
        for pair in pairs.tolist():
            pid, own = int(pids[pair // len(ids)]), int(ids[pair % len(ids)])
            codes.append(self.devices[self._gpu_of.get((pid, own), own)])
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
            "name": self._named(rows["nameId"], self._api_name),
            "correlation": np.where(rows["correlationId"] == NULL, -1, rows["correlationId"]),
        }
        return columns, _process(thread)

    def _host_ops(self, calls: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        blocks = [self._nvtx(), self._waits(calls)]
        blocks += [self._overhead(table) for table in (OVERHEAD, "PROFILER_OVERHEAD")]
        return {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]}

    def _nvtx(self) -> dict[str, NDArray[Any]]:
        """NVTX ranges. Framework ops of emit_nvtx become ops, everything else annotations.

        A start/end range may cross others and end on another thread: such a one nests with nothing
        and stands on a row of its own.
        """
        table = "NVTX_EVENTS"
        rows = self._read(table, "start", "end", "eventType", "globalTid", "endGlobalTid", "textId")
        of_range = np.isin(rows["eventType"], (tables.PUSH_POP, tables.START_END)) & (
            rows["end"] != NULL
        )
        keep = of_range.copy()
        keep[of_range] = self._kept(rows["start"][of_range], rows["end"][of_range], host=True)
        code, op = self._nvtx_texts(rows["textId"], keep)
        rows = {name: column[keep] for name, column in rows.items()}
        thread = rows["globalTid"]
        free = rows["eventType"] == tables.START_END
        away = (rows["endGlobalTid"] != NULL) & (rows["endGlobalTid"] != thread)
        loose = (free & away) | crossing(rows["start"], rows["end"], thread, free)
        thread = np.where(loose, -1 - (thread & _PID_TID), thread)
        return {
            "start": rows["start"],
            "end": rows["end"],
            "thread": _interned(self.threads, thread).astype(np.int32),
            "name": code,
            "kind": np.where(op, HostKind.OP, HostKind.ANNOTATION).astype(np.int8),
        }

    def _nvtx_texts(self, ids: Int64, keep: Bool) -> tuple[Int32, Bool]:
        """Of the rows of NVTX_EVENTS to keep: name codes, and whether they are framework ops."""

        def code_of(text: str) -> int:
            """Twice the code of the name, and 1 for an operator: both may bear one name."""
            emitted = tables.EMITTED.match(text)
            name = emitted[1] if emitted else text
            is_op = (emitted and emitted[2] == "seq") or tables.FRAMEWORK_OP.match(name)
            return 2 * self.names[name] + bool(is_op)

        code = self._named(ids[keep], code_of)
        if self.db.has("NVTX_EVENTS", "text") and len(ids):
            at = done = 0
            for block in self.db.blocks("SELECT text FROM NVTX_EVENTS NOT INDEXED"):
                for kept, (text,) in zip(
                    keep[done : done + len(block)].tolist(), block, strict=True
                ):
                    if kept and text is not None:
                        code[at] = code_of(str(text))
                    at += kept
                done += len(block)
        return code >> 1, (code & 1).astype(np.bool_)

    def _waits(self, calls: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Blocking calls into the operating system, but for those that a CUDA call makes."""
        rows = self._read("OSRT_API", "start", "end", "globalTid", "nameId")
        keep = self._kept(rows["start"], rows["end"], host=True)
        rows = {name: column[keep] for name, column in rows.items()}
        code = self._named(rows["nameId"], self._api_name)
        blocks = np.array([tables.WAITS.match(name) is not None for name in self.names], np.bool_)
        keep = blocks[code] if len(code) else np.zeros(0, np.bool_)
        thread = _interned(self.threads, rows["globalTid"]).astype(np.int32)
        keep &= ~inside_calls(rows["start"], thread, calls)
        return {
            "start": rows["start"][keep],
            "end": rows["end"][keep],
            "thread": thread[keep],
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
            "name": self._named(rows["nameId"][keep]),
            "kind": np.full(int(keep.sum()), HostKind.OVERHEAD, np.int8),
        }

    # --- the finished trace ------------------------------------------------------------------

    def trace(self, file: str) -> Trace:
        gpu, gpu_process = self._gpu()
        calls, call_process = self._calls()
        host = self._host_ops(calls)
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
        gpu_ids, call_ids = pair_ids(gpu_process, gpu["correlation"], call_process, api.correlation)
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
                missing=self._missing(api, len(call)),
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
        threads = []
        for t in self.threads:
            if -1 - _PID_TID <= t < 0:  # the row of ranges that nest with nothing
                threads.append(Thread(~t >> 24, ~t & 0xFFFFFF, "NVTX start/end ranges"))
                continue
            name = names[named[t]] if t in named else ""
            threads.append(Thread(t >> 24 & 0xFFFFFF, t & 0xFFFFFF, name))
        return tuple(threads)

    def _devices(self) -> tuple[Device, ...]:
        known: dict[int, str] = {}
        if self.db.has("TARGET_INFO_GPU", "id", "name"):
            rows = self.db.rows("SELECT id, name FROM TARGET_INFO_GPU WHERE name IS NOT NULL")
            known = {key: str(name) for key, name in rows}
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
            query = "SELECT DISTINCT text FROM DIAGNOSTIC_EVENT"
            lines = (" ".join(str(text).split()) for b in self.db.blocks(query) for (text,) in b)
            for line in islice(filter(tables.LOSSES.search, lines), _MOST_LOSSES):
                yield line if len(line) <= 200 else line[:197].rsplit(" ", 1)[0] + " ..."

    def _missing(self, api: ApiCalls, ops: int) -> str:
        """Which table is missing and what records it, "" when nothing is."""
        if ops:
            return "" if len(api) else f"{self._no(RUNTIME)}: record with nsys profile --trace=cuda"
        if not len(api):
            none = f"{self._no(KERNEL)} and {self._no(RUNTIME)}"
            return f"{none}: record with nsys profile --trace=cuda,nvtx"
        if (api.role == Role.GRAPH_LAUNCH).any():
            return f"{self._no(KERNEL)}: record with --cuda-graph-trace=node"
        return (
            f"{self._no(KERNEL)}: record with --trace=cuda, and --trace-fork-before-exec=true "
            "where child processes do the work"
        )

    def _no(self, table: str) -> str:
        return f"no usable row in {table}" if table in self.db.tables else f"no {table} table"


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
