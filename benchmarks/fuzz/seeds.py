"""Small real traces to mutate: the bundled samples, and any folder of others, cut to a few steps.

A cut keeps what belongs together: of every step the first launches with their GPU ops and flow
arrows, the waits, the annotations, and the operators and Python frames around them.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SAMPLES = Path(__file__).parents[2] / "sample_traces"
LARGEST = 8 << 20  # bytes of a further file, as it lies on the disk
MOST = 70  # events of a cut
_GPU = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")
_CALLS = ("cuda_runtime", "cuda_driver", "Runtime")
_ENUM = ("ENUM_", "PROCESSES", "ThreadNames", "TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE")


@dataclass(frozen=True)
class Table:
    """A table of a database: its columns with their declared types, and rows."""

    columns: tuple[tuple[str, str], ...]
    rows: list[list[Any]]


@dataclass(frozen=True)
class Seed:
    """A trace to begin with: a JSON document, tables of a database, or bytes as they are."""

    name: str
    document: Any = None
    tables: Mapping[str, Table] = field(default_factory=dict)
    raw: bytes = b""


def seeds(folders: Iterable[Path] = ()) -> list[Seed]:
    """The bundled samples, cut down, and every trace below `folders`."""
    found = []
    for path in sorted(SAMPLES.glob("*.json.gz")):
        document = json.loads(gzip.decompress(path.read_bytes()))
        found += [Seed(f"{path.stem}/{n}", cut(document, n)) for n in (1, 3)]
    for path in sorted(SAMPLES.glob("*.sqlite")):
        found.append(Seed(path.name, tables=cut_database(path)))
    found.append(Seed("stacks.sqlite", tables=_with_stacks(found[-1].tables)))
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.stat().st_size <= LARGEST:
                found += _further(path)
    return found


def _further(path: Path) -> list[Seed]:
    raw = path.read_bytes()
    if raw.startswith(b"SQLite format 3"):
        return [Seed(path.name, tables=cut_database(path))]
    try:
        text = gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
        document = json.loads(text)
    except (ValueError, OSError, EOFError, zlib.error):
        return [Seed(path.name, raw=raw[: 8 << 10])]
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if isinstance(events, list) and len(events) > 200:
        document = cut(document, 2)
    if len(json.dumps(document)) > 40_000:
        return [Seed(path.name, raw=text[: 8 << 10])]
    return [Seed(path.name, document)]


def cut(document: Any, launches: int) -> Any:
    """A trace with `launches` launches of every step, at most four steps, and what is around."""
    events = [e for e in _events(document) if isinstance(e, dict)]
    host = [e for e in events if e.get("cat") in _CALLS and _span(e) is not None]
    working = {_correlation(e) for e in events if e.get("cat") in _GPU}
    steps = _steps(events)
    kept: dict[int, dict[str, Any]] = {}
    times: list[tuple[float, float]] = []
    for low, high in steps[:4]:
        calls = [e for e in host if low <= e["ts"] < high]
        launching = [e for e in calls if _correlation(e) in working]
        waits = [e for e in calls if "Synchronize" in str(e.get("name"))][:2]
        copies = [e for e in calls if "Memcpy" in str(e.get("name"))][:2]
        for event in [*(launching or calls)[:launches], *copies, *waits]:
            kept[id(event)] = event
            times.append((event["ts"], event["ts"] + event["dur"]))
    wanted = {_correlation(e) for e in kept.values()} - {None}
    per_id: defaultdict[Any, int] = defaultdict(int)
    frames = 0
    for event in events:
        category, phase = event.get("cat"), event.get("ph")
        if category in _GPU or category == "cuda_sync":
            key = _correlation(event)
            per_id[key] += 1
            if (key in wanted or not wanted) and per_id[key] <= 6 and len(kept) < MOST:
                kept[id(event)] = event
        elif phase == "X" and "annotation" in str(category):
            if any(low <= event.get("ts", 0) < high for low, high in steps[:4]):
                kept[id(event)] = event
        elif phase == "X" and category not in _CALLS and _span(event) is not None:
            around = any(event["ts"] <= t and event["ts"] + event["dur"] >= u for t, u in times)
            if around and frames < 24:
                frames += 1
                kept[id(event)] = event
        elif phase in ("s", "f"):
            if event.get("id") in wanted and len(kept) < MOST:
                kept[id(event)] = event
        elif phase == "i" or (phase == "M" and len(kept) < 12):
            kept[id(event)] = event
    chosen = [e for e in events if id(e) in kept][: MOST + 30] or events[:60]
    if isinstance(document, list):
        return chosen
    return {**document, "traceEvents": chosen}


def _events(document: Any) -> list[Any]:
    events = document.get("traceEvents") if isinstance(document, dict) else document
    return events if isinstance(events, list) else []


def _span(event: Mapping[str, Any]) -> tuple[float, float] | None:
    start, length = event.get("ts"), event.get("dur")
    both = isinstance(start, int | float) and isinstance(length, int | float)
    return (start, length) if both else None


def _correlation(event: Mapping[str, Any]) -> Any:
    args = event.get("args")
    key = args.get("correlation") if isinstance(args, dict) else None
    return key if isinstance(key, int | str) else None


def _steps(events: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """Start and end of each annotated step; all of the trace where there is none."""
    marked = [
        (e["ts"], e["ts"] + e["dur"])
        for e in events
        if "ProfilerStep" in str(e.get("name"))
        and e.get("cat") != "gpu_user_annotation"
        and _span(e) is not None
    ]
    return sorted(marked) or [(float("-inf"), float("inf"))]


def cut_database(path: Path) -> dict[str, Table]:
    """An export with a few launches after each range, and the strings and tables they need."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        database.text_factory = lambda raw: raw.decode("utf-8", "replace")
        names = [
            name
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        tables = {name: _rows(database, name, names) for name in names}
    return {name: table for name, table in tables.items() if table.columns}


def _rows(database: sqlite3.Connection, table: str, names: list[str]) -> Table:
    info = database.execute(f'PRAGMA table_info("{table}")').fetchall()
    columns = tuple((row[1], row[2]) for row in info)
    have = {name for name, _ in columns}
    ranges = "NVTX_EVENTS" in names
    query = f'SELECT * FROM "{table}" LIMIT 40'
    if table == "StringIds":
        query = f'SELECT * FROM "{table}" LIMIT 300'
    elif table.startswith(_ENUM):
        query = f'SELECT * FROM "{table}" LIMIT 3'
    elif "correlationId" in have and "CUPTI_ACTIVITY_KIND_RUNTIME" in names and ranges:
        # the first calls of each range: what is launched there, and what launched it
        query = (
            f'SELECT * FROM "{table}" WHERE correlationId IN (SELECT c.correlationId FROM '
            "(SELECT start FROM NVTX_EVENTS WHERE eventType IN (59, 60) LIMIT 4) n JOIN "
            "CUPTI_ACTIVITY_KIND_RUNTIME c ON c.start BETWEEN n.start AND n.start + 300000) "
            "LIMIT 24"
        )
    rows = [list(row) for row in database.execute(query)]
    if not rows and "correlationId" in have:
        rows = [list(row) for row in database.execute(f'SELECT * FROM "{table}" LIMIT 40')]
    if table == "StringIds":
        rows = [[row[0], row[1][:300] if isinstance(row[1], str) else row[1]] for row in rows]
    return Table(columns, rows)


def _with_stacks(tables: Mapping[str, Table]) -> dict[str, Table]:
    """The tables with stacks of calls, scheduling and waits as nsys writes them."""
    calls = tables["CUPTI_ACTIVITY_KIND_RUNTIME"]
    at = [name for name, _ in calls.columns].index
    rows = [list(row) for row in calls.rows]
    strings = [*tables["StringIds"].rows, [900_001, "at::_ops::item::call(at::Tensor const&)"]]
    strings.append([900_002, "poll"])
    marks: list[list[Any]] = []
    nvtx = [name for name, _ in tables["NVTX_EVENTS"].columns]
    sched, waits = [], []
    for i, row in enumerate(calls.rows[:20]):
        twin = list(row)
        twin[at("start")] -= 3
        twin[at("end")] = (twin[at("end")] or twin[at("start")]) + 2
        twin[at("callchainId")] = i + 1
        rows.append(twin)
        payload = {"Frames": [{"Function": "step", "File": "decode.py", "Line": 70 + i}]}
        mark = dict.fromkeys(nvtx)
        mark |= {
            "start": twin[at("start")],
            "eventType": 34,
            "globalTid": row[at("globalTid")],
            "jsonText": json.dumps({"Python Backtrace on CUDA": payload}),
        }
        marks.append(list(mark.values()))
        after = (row[at("end")] or row[at("start")]) + 100
        sched += [[after, 0, row[at("globalTid")], 3], [after + 900, 1, row[at("globalTid")], 0]]
        waits.append([after + 1000, after + 2000, row[at("globalTid")], 900_002])
    chains = [[i + 1, 900_001, depth] for i in range(20) for depth in (0, 1)]
    integer = "INTEGER"

    def of(*columns: str) -> tuple[tuple[str, str], ...]:
        return tuple((name, integer) for name in columns)

    return {
        **tables,
        "CUPTI_ACTIVITY_KIND_RUNTIME": Table(calls.columns, rows),
        "StringIds": Table(tables["StringIds"].columns, strings),
        "NVTX_EVENTS": Table(tables["NVTX_EVENTS"].columns, [*tables["NVTX_EVENTS"].rows, *marks]),
        "CUDA_CALLCHAINS": Table(of("id", "symbol", "stackDepth"), chains),
        "SCHED_EVENTS": Table(of("start", "isSchedIn", "globalTid", "threadState"), sched),
        "OSRT_API": Table(of("start", "end", "globalTid", "nameId"), waits),
    }
