"""The Nsight Systems reader: SQLite exports of 2020 to 2026.

Tables are lazy (no GPU work, no KERNEL table) and columns come and go between versions, so both
are probed and never assumed. Rows join within their process: correlation ids repeat across them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostgap.trace import nsys_tables as tables
from hostgap.trace import vocabulary as vocab
from hostgap.trace.columns import by_start, distinct
from hostgap.trace.join import match_calls
from hostgap.trace.model import (
    ApiCalls,
    Device,
    Frames,
    GpuOps,
    HostOps,
    Int64,
    ReadReport,
    Role,
    Thread,
    Trace,
)
from hostgap.trace.nsys_base import PID_TID, Reader, process
from hostgap.trace.nsys_gpu import gpu_ops
from hostgap.trace.nsys_host import api_calls, frames, host_ops
from hostgap.trace.nsys_tables import KERNEL, RUNTIME
from hostgap.trace.sqlite import NULL, Database

_MOST_LOSSES = 5  # lines


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
        return _Nsys(database, progress).trace(database.name)
    finally:
        database.close()


class _Nsys(Reader):
    def trace(self, file: str) -> Trace:
        """The finished trace."""
        gpu, gpu_process = gpu_ops(self)
        calls, around = api_calls(self)
        host, of_stacks = host_ops(self, calls, around)
        python = frames(self, calls, around)
        del around
        names = tuple(self.names)
        roles = np.array([vocab.api_role(name) for name in names], np.int8)
        start, end, thread, name, correlation, global_tid = by_start(
            [calls[c] for c in ("start", "end", "thread", "name", "correlation", "globalTid")]
        )
        role = roles[name] if len(names) else np.zeros(0, np.int8)
        api = ApiCalls(start, end, thread, name, role, correlation)
        del calls
        if (np.diff(gpu["start"]) <= 0).any():
            order = np.lexsort((gpu["end"], gpu["start"]))
            gpu = {name: column[order] for name, column in gpu.items()}
            gpu_process = gpu_process[order]
        # ids repeat across processes: number the pairs
        gpu_ids, call_ids = _pair_ids(
            gpu_process, gpu["correlation"], process(global_tid), api.correlation
        )
        call, ambiguous = match_calls(gpu_ids, call_ids, api.role)
        return Trace(
            source="nsys",
            file=file,
            gpu_ops=GpuOps(call=call, **gpu),
            api_calls=api,
            host_ops=HostOps(
                *by_start([host[c] for c in ("start", "end", "thread", "name", "kind")])
            ),
            frames=Frames(*by_start([python[c] for c in ("start", "end", "thread", "name")])),
            names=names,
            threads=self._threads(),
            devices=self._devices(),
            streams=self._streams(gpu),
            metadata=self._metadata(),
            report=ReadReport(
                events=len(call) + len(api) + len(host["start"]) + len(python["start"]),
                negative=self.negative,
                negative_host=self.negative_host,
                repaired={"names over 64 KiB": self.names.cut} if self.names.cut else {},
                unreadable_times=self.unreadable,
                ambiguous_correlations=ambiguous,
                missing=self._missing(api, len(call)),
                losses=tuple(self._losses()),
                ops_of_calls=of_stacks,
            ),
        )

    def _streams(self, gpu: dict[str, NDArray[Any]]) -> tuple[int | str, ...]:
        """Names of streams: their ids, with the process where several share a GPU."""
        owner = {code: key[0] for key, code in self.streams.items()}
        processes: dict[int, set[int]] = {}
        streams = len(self.streams)
        pairs, _ = distinct(gpu["device"].astype(np.int64) * streams + gpu["stream"])
        for pair in pairs.tolist():
            processes.setdefault(pair // streams, set()).add(owner[pair % streams])
        if all(len(found) < 2 for found in processes.values()):
            return tuple(stream for _, stream in self.streams)
        return tuple(f"{number & 0xFFFFFF}/{stream}" for number, stream in self.streams)

    def _threads(self) -> tuple[Thread, ...]:
        named: dict[int, int] = {}
        if self.db.has("ThreadNames", "nameId", "globalTid"):
            rows = self.read("ThreadNames", "nameId", "globalTid")
            wanted = np.isin(rows["globalTid"], list(self.threads))
            codes = self.named(rows["nameId"][wanted])
            named = dict(zip(rows["globalTid"][wanted].tolist(), codes.tolist(), strict=True))
        names = list(self.names)
        threads = []
        for t in self.threads:
            if -1 - PID_TID <= t < 0:  # the row of ranges that nest with nothing
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


def _pair_ids(
    gpu_process: Int64, gpu_id: Int64, call_process: Int64, call_id: Int64
) -> tuple[Int64, Int64]:
    """One number per (process, correlation id), as ids repeat across processes.

    Args:
        gpu_process, gpu_id: processes (an export's NULL >> 24: unknown) and ids of n GPU ops.
        call_process, call_id: the same of m API calls.

    Returns:
        n and m numbers, 0 for no id. Rows without a process belong to the only one that there is.
    """
    process, ids = np.concatenate((gpu_process, call_process)), np.concatenate((gpu_id, call_id))
    owner, which = distinct(process)
    known = owner[owner != NULL >> 24]
    if len(known) <= 1:
        number = ids
    else:
        unique, rank = distinct(ids)
        number = which * len(unique) + rank + 1
    number = np.where(ids > 0, number, 0)
    return number[: len(gpu_id)], number[len(gpu_id) :]
