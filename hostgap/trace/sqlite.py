"""Reading an SQLite file that belongs to somebody else: read-only, column by column, in blocks.

Nothing is written into the user's file or beside it: no index, no temporary table, no journal.
Rows are read in the order they lie in and sorted in memory afterwards.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from hostgap.errors import TraceError
from hostgap.trace.model import Int64

_LONGEST = 64 << 20  # bytes of a value, or of a row
_BLOCK = 512  # rows at once: more no longer fit in the cache together
_WAL = 2  # value of byte 19 of the header, the version for reading, in write-ahead mode
# What reading a damaged file raises: sqlite3 decodes SQLite's messages, which quote the file.
ERRORS = (sqlite3.Error, UnicodeDecodeError)


class Database:
    """An SQLite file opened for reading.

    Args:
        path: the file.
        name: how errors call it, where that is not `path`.

    Raises:
        TraceError: it is no database, is being written, or was left unfinished.
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path = path
        self.name = name or str(path)
        real = Path(os.path.realpath(path))  # SQLite looks beside the file that a link leads to
        for suffix in ("-wal", "-journal"):
            beside = real.with_name(real.name + suffix)
            if beside.is_file() and beside.stat().st_size:
                raise TraceError(
                    f"{self.name}: unfinished: {beside.name} lies beside it, so nsys was killed "
                    "or still writes",
                    "export again: nsys export --type sqlite",
                )
        with path.open("rb") as stream:
            header = stream.read(100)
        # a write-ahead database would need a file of shared memory beside it
        immutable = "&immutable=1" if header[19:20] == bytes([_WAL]) else ""
        uri = f"file:{quote(str(real))}?mode=ro{immutable}"
        try:
            self._connection = sqlite3.connect(uri, uri=True, timeout=1.0, isolation_level=None)
        except ERRORS as error:
            raise self._broken(error) from error
        self._connection.text_factory = _text
        if sys.version_info >= (3, 11):
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
        self._probed: dict[str, tuple[str, ...]] = {}
        try:
            # no views and virtual tables (these lie on no page): an export has none, and those of
            # somebody else's could compute for ever
            query = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
            self.tables = frozenset(str(name) for (name,) in self.rows(query))
        except TraceError:
            self.close()
            raise

    def _broken(self, error: Exception) -> TraceError:
        # what SQLite quotes may be no text: Python 3.10 leaves the message empty then
        if isinstance(error, UnicodeDecodeError) or not str(error):
            error = sqlite3.DatabaseError("its schema is malformed")
        message = str(error)
        if "locked" in message:
            return TraceError(
                f"{self.name}: the database is locked", "is nsys still writing it? try again later"
            )
        if "malformed" in message or "not a database" in message or "disk image" in message:
            return TraceError(
                f"{self.name}: the database is damaged ({message})",
                "export again: nsys export --type sqlite",
            )
        return TraceError(f"{self.name}: cannot be read as a database: {message}")

    def columns_of(self, table: str) -> tuple[str, ...]:
        """Names of a table's columns, none without the table."""
        if table not in self.tables:
            return ()
        if table not in self._probed:
            info = self.rows(f"PRAGMA table_info({quoted(table)})")
            self._probed[table] = tuple(row[1] for row in info)
        return self._probed[table]

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """All rows of a small result.

        Raises:
            TraceError: the file is damaged or locked.
        """
        try:
            return self._connection.execute(query, parameters).fetchall()
        except ERRORS as error:
            raise self._broken(error) from error

    def blocks(self, query: str) -> Iterator[list[Any]]:
        """The rows of a large result, block by block.

        Raises:
            TraceError: the file is damaged or locked.
        """
        try:
            cursor = self._connection.execute(query)
            cursor.arraysize = _BLOCK
            while block := cursor.fetchmany():
                yield block
        except ERRORS as error:
            raise self._broken(error) from error

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is such a table, with all these columns."""
        return table in self.tables and set(columns) <= set(self.columns_of(table))

    def fills(self, table: str, column: str) -> bool:
        """Whether any row of a table has a value in this column."""
        if not self.has(table, column):
            return False
        some = f"SELECT 1 FROM {quoted(table)} NOT INDEXED WHERE {quoted(column)} IS NOT NULL"
        return bool(self.rows(f"{some} LIMIT 1"))

    def count(self, table: str) -> int:
        """Number of rows, 0 without the table."""
        if table not in self.tables:
            return 0
        return int(self.rows(f"SELECT count(*) FROM {quoted(table)}")[0][0])

    def columns(
        self, table: str, columns: Sequence[str], tick: Callable[[int], None] | None = None
    ) -> dict[str, Int64]:
        """Integer columns of a table; one that it does not have, and every null, is NULL.

        Args:
            table: its name; a missing table has no rows.
            columns: their names.
            tick: called after every block with the number of its rows.

        Rows come in the order they lie in: an index of the user's own must not change it.
        """
        have = self.columns_of(table)
        used = [name for name in columns if name in have]
        chunks: dict[str, list[NDArray[np.int64]]] = {name: [] for name in used}
        length = 0
        if used:
            selected = ", ".join(f"coalesce({quoted(name)}, {NULL})" for name in used)
            for block in self.blocks(f"SELECT {selected} FROM {quoted(table)} NOT INDEXED"):
                length += len(block)
                for name, values in zip(used, zip(*block, strict=True), strict=True):
                    chunks[name].append(_integers(values))
                if tick is not None:
                    tick(len(block))
        empty = np.zeros(0, np.int64)
        return {
            name: (
                (np.concatenate(chunks[name]) if chunks[name] else empty)
                if name in chunks
                else np.full(length, NULL, np.int64)
            )
            for name in columns
        }

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()


NULL = -(2**63)  # stands for null in an integer column; no time or id is ever that


def _integers(values: Sequence[Any]) -> NDArray[np.int64]:
    try:
        return np.array(values, np.int64)
    except (TypeError, ValueError, OverflowError):  # a text or a real where a number is due
        return np.array([_integer(value) for value in values], np.int64)


def _integer(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return NULL
    return number if NULL < number < 2**63 else NULL


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def quoted(name: str) -> str:
    """A name of a table or column, as SQL wants it."""
    return '"' + name.replace('"', '""') + '"'
