"""Mutations of an export's tables, then of the pages that they are stored in."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from typing import Any

import mutate_bytes
import values
from seeds import Table

Tables = dict[str, Table]
_TYPES = ("INTEGER", "TEXT", "REAL", "BLOB", "", "NUMERIC", "INTEGER NOT NULL")
_PAGE = 1024


def copied(tables: Any) -> Tables:
    """Tables whose rows can be changed."""
    return {name: Table(t.columns, [list(row) for row in t.rows]) for name, t in tables.items()}


def cell(rng: random.Random) -> Any:
    """A value as SQLite stores them."""
    kind = rng.randrange(8)
    if kind < 4:
        number = values.number(rng)
        return number if isinstance(number, float) or -(2**63) <= number < 2**63 else -(2**63)
    if kind < 6:
        return values.text(rng).encode("utf-8", "replace").decode()
    return rng.choice((None, b"", b"\xff\x00\xfe", b"x" * 300, float("inf"), float("-inf")))


def mutate(tables: Tables, rng: random.Random) -> Tables:
    """The tables with one structured change."""
    filled = [name for name, table in tables.items() if table.rows]
    if not filled:
        return tables
    weight = [4 if name.startswith(("CUPTI", "NVTX", "String", "SCHED")) else 1 for name in filled]
    name = rng.choices(filled, weight)[0]
    table = tables[name]
    column = rng.randrange(len(table.columns))
    kind = rng.randrange(16)
    if kind < 4:
        rng.choice(table.rows)[column] = cell(rng)
    elif kind < 6:
        value, share = cell(rng), rng.choice((0.3, 1.0))
        for row in table.rows:
            if rng.random() < share:
                row[column] = value
    elif kind == 6:  # as any other table has it
        other = tables[rng.choice(filled)]
        source = rng.randrange(len(other.columns))
        for row in table.rows:
            row[column] = rng.choice(other.rows)[source]
    elif kind == 7:
        by = rng.choice((-(10**9), -1000, 1, 1000, 10**9, 2**61))
        for row in table.rows:
            if isinstance(row[column], int):
                row[column] = max(-(2**63), min(2**63 - 1, row[column] + by))
    elif kind == 8:
        keep = [i for i in range(len(table.columns)) if i != column] or [column]
        tables[name] = Table(
            tuple(table.columns[i] for i in keep), [[row[i] for i in keep] for row in table.rows]
        )
    elif kind == 9:
        columns = list(table.columns)
        columns[column] = (columns[column][0], rng.choice(_TYPES))
        tables[name] = Table(tuple(columns), table.rows)
    elif kind == 10:
        columns = list(table.columns)
        columns[column] = (rng.choice(values.words()), columns[column][1])
        if len({each.lower() for each, _ in columns}) == len(columns):
            tables[name] = Table(tuple(columns), table.rows)
    elif kind == 11:
        del tables[name]
    elif kind == 12:
        kinds = ("CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_DRIVER")
        tables[rng.choice((*filled, *kinds))] = table
    elif kind == 13:
        row = rng.choice(table.rows)
        table.rows.extend(list(row) for _ in range(rng.choice((1, 5, 60))))
    elif kind == 14:
        rng.shuffle(table.rows)
        del table.rows[rng.randrange(len(table.rows)) :]
    else:
        wanted = ("callchainId", "jsonText", "jsonTextId", "globalTid", "textId", "eventType")
        extra = rng.choice(wanted)
        if extra.lower() not in {each.lower() for each, _ in table.columns}:
            tables[name] = Table(
                (*table.columns, (extra, "")), [[*row, cell(rng)] for row in table.rows]
            )
    return tables


def written(tables: Tables, rng: random.Random) -> bytes:
    """The tables as the bytes of a database file."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.execute(f"PRAGMA page_size = {rng.choice((512, _PAGE, 4096))}")
        if rng.random() < 0.05:
            database.execute(f"PRAGMA encoding = '{rng.choice(('UTF-16le', 'UTF-16be'))}'")
        database.execute("BEGIN")
        odd = rng.random() < 0.15
        for name, table in tables.items():
            _write(database, name, table, rng if odd else None)
        database.execute("COMMIT")
        return database.serialize()


def _write(
    database: sqlite3.Connection, name: str, table: Table, rng: random.Random | None
) -> None:
    columns = [f"{_quoted(each)} {kind}" for each, kind in table.columns]
    target, extra = name, ""
    shape = rng.randrange(14) if rng is not None else -1
    first = _quoted(table.columns[0][0])
    if shape == 0:
        columns[0] = f"{first} INTEGER PRIMARY KEY"
    elif shape == 1:
        columns.append('"more" TEXT GENERATED ALWAYS AS (hex(zeroblob(1000000)))')
    elif shape == 2:
        target = name + "_real"  # and a view in its place
    elif shape == 3:
        columns.append(f"CHECK ({first} IS NOT NULL OR 1)")
    try:
        database.execute(f"CREATE TABLE {_quoted(target)} ({', '.join(columns)}) {extra}")
        marks = ", ".join("?" * len(table.columns))
        names = ", ".join(_quoted(each) for each, _ in table.columns)
        insert = f"INSERT OR IGNORE INTO {_quoted(target)} ({names}) VALUES ({marks})"
        database.executemany(insert, table.rows)
        if shape == 2:
            database.execute(f"CREATE VIEW {_quoted(name)} AS SELECT * FROM {_quoted(target)}")
        elif shape == 4:
            database.execute(f"CREATE INDEX {_quoted('i' + name)} ON {_quoted(name)} ({first})")
        elif shape == 5:
            database.execute(
                f"CREATE TRIGGER {_quoted('t' + name)} AFTER UPDATE ON {_quoted(name)} "
                f"BEGIN DELETE FROM {_quoted(name)}; END"
            )
        elif shape == 6 and rng is not None:
            _edit_schema(database, name, rng)
    except (sqlite3.Error, OverflowError, UnicodeEncodeError):
        return  # a shape that SQLite itself refuses


def _edit_schema(database: sqlite3.Connection, name: str, rng: random.Random) -> None:
    """The schema of a table, as a damaged or hostile file could have it."""
    virtual = "CREATE VIRTUAL TABLE x USING fts5(a)"
    text = rng.choice(("CREATE TABLE x(a)", virtual, "", None, "\x1b"))
    database.execute("PRAGMA writable_schema = ON")
    database.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (text, name))
    database.execute("PRAGMA writable_schema = OFF")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""').replace("\0", "") + '"'


def damage(data: bytes, rng: random.Random) -> bytes:
    """Pages exchanged, the header changed, bytes anywhere."""
    kind = rng.randrange(5)
    pages = len(data) // _PAGE
    if kind == 0 and pages > 2:
        one, two = rng.randrange(1, pages), rng.randrange(1, pages)
        changed = bytearray(data)
        block = data[two * _PAGE : (two + 1) * _PAGE]
        changed[one * _PAGE : (one + 1) * _PAGE] = block
        return bytes(changed)
    if kind == 1 and len(data) > 100:
        changed = bytearray(data)
        for _ in range(rng.choice((1, 2, 4))):
            changed[rng.randrange(16, 100)] = rng.choice((0, 1, 2, 4, 0x40, 0x80, 0xFF))
        return bytes(changed)
    if kind == 2 and pages > 1:  # the header and the cells of one page
        changed = bytearray(data)
        page = rng.randrange(1, pages) * _PAGE
        for _ in range(rng.choice((1, 3, 10))):
            changed[page + rng.randrange(60)] = rng.randrange(256)
        return bytes(changed)
    return mutate_bytes.damage(data, rng)
