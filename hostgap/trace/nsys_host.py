"""The host's side of an Nsight export: CUDA calls, NVTX ranges, waits, stacks, scheduling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostgap.trace import nsys_stacks as stacks
from hostgap.trace import nsys_tables as tables
from hostgap.trace import vocabulary as vocab
from hostgap.trace.model import Bool, HostKind, Int32, Int64, Role
from hostgap.trace.nsys_base import PID_TID, Reader, interned, only
from hostgap.trace.nsys_ranges import crossing, inside_calls
from hostgap.trace.nsys_sched import SCHED, contradicted, off_cpu
from hostgap.trace.nsys_tables import DRIVER, OVERHEAD, RUNTIME
from hostgap.trace.sqlite import NULL

Columns = dict[str, NDArray[Any]]
# CUDA calls in which a thread may sleep: being off the CPU there is no news
_MAY_WAIT = (Role.SYNC, Role.COPY, Role.ALLOC, Role.FREE, Role.HOST_ALLOC)


def api_calls(reader: Reader) -> tuple[Columns, stacks.Stacks]:
    """Columns of ApiCalls (unsorted) with the `globalTid` of each, and the stacks around them."""
    names = ["start", "end", "globalTid", "correlationId", "nameId"]
    stacked = any(reader.db.fills(table, "callchainId") for table in (RUNTIME, DRIVER))
    names += ["callchainId"] if stacked else []
    blocks = []
    for table in (RUNTIME, DRIVER):
        rows = reader.read(table, *names)
        # a call counts although its end is missing: the process died inside it
        rows["end"] = np.where(rows["end"] == NULL, rows["start"], rows["end"])
        keep = reader.kept(rows["start"], rows["end"], host=True)
        blocks.append(only(rows, keep))
    rows = {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]}
    name = reader.named(rows["nameId"], reader.api_name)
    around = stacks.Stacks({}, {})
    if stacked:
        rows, name = stacks.merge_twins(rows, name)
        around = stacks.read_stacks(reader.db, rows)
    columns: Columns = {
        "start": rows["start"],
        "end": rows["end"],
        "thread": interned(reader.threads, rows["globalTid"]).astype(np.int32),
        "name": name,
        "correlation": np.where(rows["correlationId"] == NULL, -1, rows["correlationId"]),
        "globalTid": rows["globalTid"],
    }
    return columns, around


def host_ops(reader: Reader, calls: Columns, around: stacks.Stacks) -> tuple[Columns, bool]:
    """Columns of HostOps (unsorted), and whether its framework ops are those of stacks alone."""
    blocks = [_nvtx(reader), _waits(reader, calls)]
    blocks += [_overhead(reader, table) for table in (OVERHEAD, "PROFILER_OVERHEAD")]
    blocks.append(_off_cpu(reader, calls, blocks))
    of_stacks = bool(around.ops) and not (blocks[0]["kind"] == HostKind.OP).any()
    if of_stacks:
        columns = _around(reader, calls, around.ops)
        columns["kind"] = np.full(len(columns["start"]), HostKind.OP, np.int8)
        blocks.append(columns)
    return {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]}, of_stacks


def frames(reader: Reader, calls: Columns, around: stacks.Stacks) -> Columns:
    """Columns of Frames (unsorted): the Python frames around each call that has a stack."""
    return _around(reader, calls, around.frames)


def _around(reader: Reader, calls: Columns, of_row: dict[int, list[str]]) -> Columns:
    """One row per name, as long as the call that it stands around."""
    rows, names = stacks.flat(of_row)
    columns = {name: calls[name][rows] for name in ("start", "end", "thread")}
    return columns | {"name": np.array([reader.names[name] for name in names], np.int32)}


def _off_cpu(reader: Reader, calls: Columns, ops: Sequence[Columns]) -> Columns:
    """When threads were not scheduled, but for the waits that other tables show already."""
    rows = reader.read(SCHED, "start", "isSchedIn", "globalTid", "threadState")
    keep = reader.kept(rows["start"], rows["start"], host=True)
    # system-wide scheduling has thousands of threads that do nothing here
    keep &= np.isin(rows["globalTid"], np.array(list(reader.threads), np.int64))
    rows = only(rows, keep)
    thread = interned(reader.threads, rows["globalTid"]).astype(np.int32)
    start, end, thread, state = off_cpu(
        rows["start"], rows["isSchedIn"] > 0, thread, rows["threadState"]
    )
    may_wait = np.array([vocab.api_role(name) in _MAY_WAIT for name in reader.names], np.bool_)
    waiting = may_wait[calls["name"]] if len(may_wait) else np.zeros(0, np.bool_)
    waits = {
        name: np.concatenate(
            [calls[name][waiting]] + [op[name][op["kind"] == HostKind.WAIT] for op in ops]
        )
        for name in ("start", "end", "thread")
    }
    busy = [calls, *ops]
    times = np.concatenate([c[name] for c in busy for name in ("start", "end")])
    threads = np.concatenate([c["thread"] for c in busy for _ in ("start", "end")])
    keep = ~inside_calls(start, thread, waits) & (end > start)
    keep[keep] = ~contradicted(start[keep], end[keep], thread[keep], times, threads)
    n = int(keep.sum())
    waits_there = np.isin(state[keep], tables.WAITING_STATES)
    return {
        "start": start[keep],
        "end": end[keep],
        "thread": thread[keep],
        "name": np.full(n, reader.names["off the CPU"] if n else 0, np.int32),
        "kind": np.where(waits_there, HostKind.WAIT, HostKind.OFF_CPU).astype(np.int8),
    }


def _nvtx(reader: Reader) -> Columns:
    """NVTX ranges. Framework ops of emit_nvtx become ops, everything else annotations.

    A start/end range may cross others and end on another thread: such a one nests with nothing
    and stands on a row of its own.
    """
    table = "NVTX_EVENTS"
    rows = reader.read(table, "start", "end", "eventType", "globalTid", "endGlobalTid", "textId")
    of_range = np.isin(rows["eventType"], (tables.PUSH_POP, tables.START_END)) & (
        rows["end"] != NULL
    )
    keep = of_range.copy()
    keep[of_range] = reader.kept(rows["start"][of_range], rows["end"][of_range], host=True)
    code, op = _nvtx_texts(reader, rows["textId"], keep)
    rows = {name: column[keep] for name, column in rows.items()}
    thread = rows["globalTid"]
    free = rows["eventType"] == tables.START_END
    away = (rows["endGlobalTid"] != NULL) & (rows["endGlobalTid"] != thread)
    loose = (free & away) | crossing(rows["start"], rows["end"], thread, free)
    thread = np.where(loose, -1 - (thread & PID_TID), thread)
    return {
        "start": rows["start"],
        "end": rows["end"],
        "thread": interned(reader.threads, thread).astype(np.int32),
        "name": code,
        "kind": np.where(op, HostKind.OP, HostKind.ANNOTATION).astype(np.int8),
    }


def _nvtx_texts(reader: Reader, ids: Int64, keep: Bool) -> tuple[Int32, Bool]:
    """Of the rows of NVTX_EVENTS to keep: name codes, and whether they are framework ops."""

    def code_of(text: str) -> int:
        """Twice the code of the name, and 1 for an operator: both may bear one name."""
        emitted = tables.EMITTED.match(text)
        name = emitted[1] if emitted else text
        is_op = (emitted and emitted[2] == "seq") or tables.FRAMEWORK_OP.match(name)
        return 2 * reader.names[name] + bool(is_op)

    code = reader.named(ids[keep], code_of)
    if reader.db.has("NVTX_EVENTS", "text") and len(ids):
        at = done = 0
        for block in reader.db.blocks("SELECT text FROM NVTX_EVENTS NOT INDEXED"):
            for kept, (text,) in zip(keep[done : done + len(block)].tolist(), block, strict=True):
                if kept and text is not None:
                    code[at] = code_of(str(text))
                at += kept
            done += len(block)
    return code >> 1, (code & 1).astype(np.bool_)


def _waits(reader: Reader, calls: Columns) -> Columns:
    """Blocking calls into the operating system, but for those that a CUDA call makes."""
    rows = reader.read("OSRT_API", "start", "end", "globalTid", "nameId")
    keep = reader.kept(rows["start"], rows["end"], host=True)
    rows = {name: column[keep] for name, column in rows.items()}
    code = reader.named(rows["nameId"], reader.api_name)
    blocks = np.array([tables.WAITS.match(name) is not None for name in reader.names], np.bool_)
    keep = blocks[code] if len(code) else np.zeros(0, np.bool_)
    thread = interned(reader.threads, rows["globalTid"]).astype(np.int32)
    keep &= ~inside_calls(rows["start"], thread, calls)
    return {
        "start": rows["start"][keep],
        "end": rows["end"][keep],
        "thread": thread[keep],
        "name": code[keep],
        "kind": np.full(int(keep.sum()), HostKind.WAIT, np.int8),
    }


def _overhead(reader: Reader, table: str) -> Columns:
    rows = reader.read(table, "start", "end", "globalTid", "nameId")
    keep = reader.kept(rows["start"], rows["end"], host=True)
    return {
        "start": rows["start"][keep],
        "end": rows["end"][keep],
        "thread": interned(reader.threads, rows["globalTid"][keep]).astype(np.int32),
        "name": reader.named(rows["nameId"][keep]),
        "kind": np.full(int(keep.sum()), HostKind.OVERHEAD, np.int8),
    }
