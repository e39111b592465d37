"""Tiny exports of Nsight Systems, row by row; a table has the columns that its rows name.

export = Export()
export.call("cudaLaunchKernel_v7000", 0, 10, 1)
export.kernel(20, 50, by=1)
export.write(tmp_path / "x.sqlite")
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hostgap.errors import TraceError
from hostgap.trace.load import load_trace

ROOT = Path(__file__).parents[2]
CUPTI = "CUPTI_ACTIVITY_KIND_"
KERNEL, MEMCPY, MEMSET = CUPTI + "KERNEL", CUPTI + "MEMCPY", CUPTI + "MEMSET"
GRAPH, RUNTIME, DRIVER = CUPTI + "GRAPH_TRACE", CUPTI + "RUNTIME", CUPTI + "DRIVER"
LAUNCH, GRAPH_LAUNCH = "cudaLaunchKernel_v7000", "cudaGraphLaunch_v10000"
SYNC, COPY = "cudaStreamSynchronize_v3020", "cudaMemcpyAsync_v3020"
PUSH_POP, START_END, MARK = 59, 60, 34
_TEXTS = {"text", "value", "name"}


def gid(pid: int, tid: int = 0) -> int:
    """A globalTid, or a globalPid without a thread."""
    return 1 << 48 | pid << 24 | tid


class Export:
    """Rows by table."""

    def __init__(self) -> None:
        self.tables: dict[str, list[dict[str, Any]]] = {}
        self.strings: dict[str, int] = {}

    def add(self, table: str, **row: Any) -> None:
        self.tables.setdefault(table, []).append(row)

    def text(self, text: str) -> int:
        """The id of a string."""
        return self.strings.setdefault(text, 10 + 3 * len(self.strings))

    def _gpu(self, table: str, start: int, end: int | None, by: int, **more: Any) -> None:
        row = {"start": start, "end": end, "deviceId": 0, "streamId": 7, "correlationId": by}
        pid = more.pop("pid", 100)
        self.add(table, **row | {"globalPid": gid(pid)} | more)

    def kernel(
        self, start: int, end: int | None, by: int = 0, name: str = "k", **more: Any
    ) -> None:
        more = {"demangledName": self.text(name)} | more
        self._gpu(KERNEL, start, end, by, **more)

    def copy(
        self, start: int, end: int, by: int, kind: int, source: int, target: int, **more: Any
    ) -> None:
        kinds = {"copyKind": kind, "srcKind": source, "dstKind": target}
        self._gpu(MEMCPY, start, end, by, bytes=4096, **kinds, **more)

    def memset(self, start: int, end: int, by: int, **more: Any) -> None:
        self._gpu(MEMSET, start, end, by, bytes=64, **more)

    def graph(self, start: int, end: int, by: int, graph: int = 3, **more: Any) -> None:
        self._gpu(GRAPH, start, end, by, graphId=graph, **more)

    def _host(self, table: str, name: str, start: int, end: int | None, **more: Any) -> None:
        where = gid(more.pop("pid", 100), more.pop("tid", 100))
        row = {"start": start, "end": end, "globalTid": where, "nameId": self.text(name)}
        self.add(table, **row | more)

    def call(self, name: str, start: int, end: int | None, id: int = 0, **more: Any) -> None:
        self._host(more.pop("table", RUNTIME), name, start, end, correlationId=id, **more)

    def osrt(self, name: str, start: int, end: int, **more: Any) -> None:
        self._host("OSRT_API", name, start, end, **more)

    def overhead(self, name: str, start: int, end: int, **more: Any) -> None:
        self._host("PROFILER_OVERHEAD", name, start, end, **more)

    def nvtx(
        self, text: str, start: int, end: int | None, kind: int = PUSH_POP, **more: Any
    ) -> None:
        where = gid(more.pop("pid", 100), more.pop("tid", 100))
        row = {"start": start, "end": end, "eventType": kind, "globalTid": where}
        own = {"text": None, "textId": self.text(text)} if more.pop("registered", False) else {}
        self.add("NVTX_EVENTS", **row | {"text": text, "textId": None} | own | more)

    def write(self, path: Path, strings: bool = True) -> Path:
        with closing(sqlite3.connect(path)) as database, database:
            tables = dict(self.tables)
            if strings:
                named = [{"id": key, "value": text} for text, key in self.strings.items()]
                tables["StringIds"] = named or [{"id": 0, "value": ""}]
            for table, rows in tables.items():
                columns = list(dict.fromkeys(name for row in rows for name in row))
                types = [f'"{c}" {"TEXT" if c in _TEXTS else "INTEGER"}' for c in columns]
                database.execute(f'CREATE TABLE "{table}" ({", ".join(types)})')
                marks = ", ".join("?" * len(columns))
                values = [[row.get(c) for c in columns] for row in rows]
                database.executemany(f'INSERT INTO "{table}" VALUES ({marks})', values)
        return path


def step_loop(steps: int = 5) -> Export:
    """Steps of two launches, a copy back and a wait, with input awaited between them."""
    export = Export()
    for step in range(steps):
        t, i = 1000 + step * 100_000, 1 + step * 10
        export.nvtx(f"step#{step}", t, t + 80_000)
        export.call(LAUNCH, t + 1_000, t + 5_000, i)
        export.kernel(t + 8_000, t + 20_000, i, "gemm")
        export.call(LAUNCH, t + 25_000, t + 29_000, i + 1)
        export.kernel(t + 32_000, t + 40_000, i + 1, "softmax")
        export.call(COPY, t + 41_000, t + 44_000, i + 2)
        export.copy(t + 46_000, t + 48_000, i + 2, 2, 2, 1)
        export.call(SYNC, t + 44_500, t + 49_000, i + 3)
    return export


@contextmanager
def untouched(path: Path) -> Iterator[None]:
    """Checks that a file stays the same byte for byte, and that nothing appears beside it."""

    def state() -> tuple[str, int, list[str]]:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return digest, path.stat().st_mtime_ns, sorted(p.name for p in path.parent.iterdir())

    before = state()
    yield
    assert state() == before


def refusal(path: Path) -> str:
    """Message and hint of a file that is refused, each of one line."""
    with untouched(path), pytest.raises(TraceError) as caught:
        load_trace(path)
    assert caught.value.exit_code == 2
    lines = [caught.value.message, caught.value.hint or ""]
    assert "\n" not in "".join(lines)
    assert lines[0].startswith(f"{path}: ")
    return "\n".join(lines)


def hostgap(*args: object, path: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("HOSTGAP_")}
    env |= {"PYTHONPATH": str(ROOT)} | ({} if path is None else {"PATH": path})
    command = [sys.executable, "-m", "hostgap", *map(str, args)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
