"""What every part of the Nsight Systems reader needs: database, dictionaries, counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from hostgap.trace import nsys_tables as tables
from hostgap.trace import vocabulary as vocab
from hostgap.trace.columns import MAX_NAME, Interner, Names, distinct
from hostgap.trace.model import Bool, Int32, Int64
from hostgap.trace.sqlite import NULL, Database
from hostgap.trace.times import LONGEST

PID_TID = (1 << 48) - 1
_LIMIT = 2**62  # ns; as in Kineto traces, so that the difference of two times fits in an int64


class Reader:
    """An open export, and what was found in it so far."""

    def __init__(self, database: Database, progress: Callable[[int], None] | None) -> None:
        self.db = database
        tables.refuse_other_databases(database)
        tables.refuse_tables_without_times(database)
        self.names = Names(MAX_NAME)
        self.threads: Interner[int] = Interner()  # globalTid
        self.devices: Interner[int] = Interner()
        self.streams: Interner[tuple[int, int]] = Interner()  # process, streamId
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

    def read(self, table: str, *columns: str) -> dict[str, Int64]:
        """Integer columns of a table; see `Database.columns`."""
        return self.db.columns(table, columns, self._tick)

    def named(self, ids: Int64, code_of: Callable[[str], int] | None = None) -> Int32:
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

    def api_name(self, text: str) -> int:
        """Code of an API call's name, without the suffixes that nsys adds."""
        return self.names[vocab.api_name(text)]

    def kept(self, start: Int64, end: Int64, *, host: bool) -> Bool:
        """Rows with usable times; the others are counted."""
        readable = (np.abs(start) < _LIMIT) & (np.abs(end) < _LIMIT) & (start != NULL)
        readable &= end != NULL  # which np.abs leaves negative
        length = np.where(readable, end, 0) - np.where(readable, start, 0)
        readable &= length < LONGEST
        ordered = readable & (end >= start)
        self.unreadable += int(np.count_nonzero(~readable))
        wrong = int(np.count_nonzero(readable & ~ordered))
        if host:
            self.negative_host += wrong
        else:
            self.negative += wrong
        return np.asarray(ordered)


def process(global_id: Int64) -> Int64:
    """hardware and process id of a globalTid or globalPid (`hw << 48 | pid << 24 | tid`)."""
    return global_id >> 24


def only(rows: dict[str, Int64], keep: Bool) -> dict[str, Int64]:
    """Some rows of a table; the table itself where they are all."""
    return rows if keep.all() else {name: column[keep] for name, column in rows.items()}


def translated(values: Int64, table: Mapping[int, int], missing: int) -> NDArray[np.int8]:
    """Values of one of nsys's enumerations in ours; `missing` for one that `table` lacks."""
    unique, which = distinct(values)
    return np.array([table.get(value, missing) for value in unique.tolist()], np.int8)[which]


def interned(codes: Interner[int], values: Int64) -> NDArray[np.intp]:
    """Codes of values that repeat."""
    unique, which = distinct(values)
    return np.array([codes[value] for value in unique.tolist()], np.intp)[which]
