"""Stacks of CUDA calls in an Nsight export: Python frames and framework ops around each call.

`--cudabacktrace` writes every call twice, the copy with the stack around the call itself, and
gives native frames: torch's dispatcher (`at::_ops::item::call`) names the ops among them.
`--python-backtrace=cuda` marks the start of that copy, and its payload holds Python frames with the
line being run; it is exported with `nsys export --include-json=true`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hostgap.trace.model import Int32, Int64
from hostgap.trace.sqlite import NULL, Database

CHAINS = "CUDA_CALLCHAINS"
MARK = 34  # NVTX_EVENTS.eventType
_LONGEST = 1_000  # characters of a file's or function's name
# The op, without the overload that its symbol also names: `sum_dim_IntList` is aten::sum.
_OVERLOADS = (
    "out|dim|dims|dtype|dtype_layout|int|self|other|memory_format|start|start_step|correction|"
    "value|sizes|split_sizes|device|float|from|generator|stable|mode|default|names|decimals|unary_out"
)
_DISPATCHED = re.compile(
    rf"at::_ops::(\w+?)(?:_(?:[A-Z]\w*|(?:{_OVERLOADS})(?:_[A-Z]\w*)?))?::call\("
)


@dataclass(frozen=True, slots=True)
class Stacks:
    """What the stacks of n calls show, outermost first, by row of the calls."""

    ops: dict[int, list[str]]
    frames: dict[int, list[str]]  # "decode.py(75): step", the line being run


class _Frame(msgspec.Struct):
    """A Python frame: string ids, or the strings themselves."""

    function: int | str = msgspec.field(name="Function", default="")
    file: int | str = msgspec.field(name="File", default="")
    line: int | None = msgspec.field(name="Line", default=None)


class _Backtrace(msgspec.Struct):
    frames: list[_Frame] = msgspec.field(name="Frames", default_factory=list)


class _Payload(msgspec.Struct):
    """Payload of a mark of the domain "Python Backtrace on CUDA"."""

    backtrace: _Backtrace | None = msgspec.field(name="Python Backtrace on CUDA", default=None)


def merge_twins(rows: dict[str, Int64], name: Int32) -> tuple[dict[str, Int64], Int32]:
    """Calls, each once: of one written twice, the inner copy with the stack of the outer.

    A copy with a stack and the call of the same name, thread and id that begins next after it are
    one, unless the copy has ended by then. The process may have died inside: then it has no end,
    which the rows give as its start.

    Args:
        rows: n calls: start, end, globalTid, correlationId, callchainId and others.
        name: n codes of their names, without version suffixes.

    Returns:
        The rows that remain, in column `stamp` when the copy with the stack began; their names.
    """
    chain, start, end = rows["callchainId"].copy(), rows["start"], rows["end"]
    stamp = start.copy()
    keys = (rows["globalTid"], rows["correlationId"], name.astype(np.int64))
    plain = chain == NULL
    order = np.lexsort((plain, start, *keys))
    outer, inner = order[:-1], order[1:]
    same = ~plain[outer] & plain[inner]
    for key in keys:
        same &= key[outer] == key[inner]
    same &= (start[inner] <= end[outer]) | (end[outer] == start[outer])
    outer, inner = outer[same], inner[same]
    chain[inner], stamp[inner] = chain[outer], start[outer]
    keep = np.ones(len(start), np.bool_)
    keep[outer] = False
    merged = rows | {"callchainId": chain, "stamp": stamp}
    return {key: column[keep] for key, column in merged.items()}, name[keep]


def read_stacks(database: Database, calls: dict[str, NDArray[Any]]) -> Stacks:
    """The stacks of calls that `merge_twins` gave.

    Raises:
        TraceError: the file is damaged or locked.
    """
    stacked = np.flatnonzero(calls["callchainId"] != NULL)
    of_chain = _ops(database)
    chains = calls["callchainId"][stacked].tolist()
    ops = {
        row: of_chain[chain]
        for row, chain in zip(stacked.tolist(), chains, strict=True)
        if chain in of_chain
    }
    return Stacks(ops, _frames(database, calls, stacked))


def _ops(database: Database) -> dict[int, list[str]]:
    """Chain -> the framework ops that its native frames show."""
    if not database.has("StringIds", "id", "value") or not database.has(CHAINS, "id", "symbol"):
        return {}
    query = "SELECT id, value FROM StringIds WHERE value GLOB 'at::_ops::*::call(*'"
    symbols = {
        key: f"aten::{found[1]}"
        for key, text in database.rows(query)
        if isinstance(key, int) and (found := _DISPATCHED.match(str(text)))
    }
    rows = database.columns(CHAINS, ("id", "symbol", "stackDepth"))
    at = np.flatnonzero(np.isin(rows["symbol"], np.array(list(symbols), np.int64)))
    at = at[np.lexsort((-rows["stackDepth"][at], rows["id"][at]))]
    ops: dict[int, list[str]] = {}
    for chain, symbol in zip(rows["id"][at].tolist(), rows["symbol"][at].tolist(), strict=True):
        ops.setdefault(chain, []).append(symbols[symbol])
    return ops


def _frames(
    database: Database, calls: dict[str, NDArray[Any]], stacked: NDArray[np.intp]
) -> dict[int, list[str]]:
    """Row of a call -> its Python frames, from the marks that stand at its stamp."""
    if not database.has("NVTX_EVENTS", "start", "globalTid", "eventType"):
        return {}
    payload = _payload_column(database)
    if not payload:
        return {}
    stamps = zip(
        calls["globalTid"][stacked].tolist(), calls["stamp"][stacked].tolist(), strict=True
    )
    row_at = dict(zip(stamps, stacked.tolist(), strict=True))
    query = (
        f"SELECT globalTid, start, {payload} AS payload FROM NVTX_EVENTS NOT INDEXED "
        f"WHERE eventType = {MARK} AND payload IS NOT NULL"
    )
    decode = msgspec.json.Decoder(_Payload).decode
    found: dict[int, list[_Frame]] = {}
    for block in database.blocks(query):
        for thread, start, text in block:
            row = row_at.get((thread, start))
            if row is None:
                continue
            try:
                mark = decode(str(text))
            except (msgspec.MsgspecError, RecursionError):  # of another tool's own marks
                continue
            if mark.backtrace is not None:
                found[row] = mark.backtrace.frames
    texts = _texts(database, found)
    return {
        row: [
            f"{_text(texts, f.file)}({f.line or 0}): {_text(texts, f.function)}"
            for f in reversed(frames)
        ]
        for row, frames in found.items()
    }


def _payload_column(database: Database) -> str:
    """SQL for the payload of a mark, in its row or among the strings; "" where there is none."""
    ways = []
    if database.has("NVTX_EVENTS", "jsonText"):
        ways.append("jsonText")
    if database.has("NVTX_EVENTS", "jsonTextId") and database.has("StringIds", "id", "value"):
        ways.append("(SELECT value FROM StringIds WHERE id = jsonTextId)")
    return f"coalesce({', '.join(ways)}, NULL)" if ways else ""


def _text(texts: dict[int | str, str], key: int | str) -> str:
    return str(texts.get(key, key))[:_LONGEST]


def _texts(database: Database, frames: dict[int, list[_Frame]]) -> dict[int | str, str]:
    """The strings that frames point to."""
    wanted = {key for each in frames.values() for f in each for key in (f.file, f.function)}
    if not wanted or not database.has("StringIds", "id", "value"):
        return {}
    return {
        key: str(text)
        for block in database.blocks("SELECT id, value FROM StringIds")
        for key, text in block
        if key in wanted
    }


def flat(of_row: dict[int, list[str]]) -> tuple[Int64, list[str]]:
    """Rows and names, one of each per frame or op, in the order given."""
    rows = [row for row, names in of_row.items() for _ in names]
    return np.array(rows, np.int64), [name for names in of_row.values() for name in names]
