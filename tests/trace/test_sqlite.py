"""Reading somebody else's SQLite file: nothing is written, rows keep their order."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostgap.errors import TraceError
from hostgap.trace.sqlite import _BLOCK, NULL, Database
from tests.trace.nsys_build import untouched


def made(path: Path, *statements: str, rows: list[tuple[object, ...]] | None = None) -> Path:
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            database.executemany(f"INSERT INTO t VALUES ({marks})", rows)
    return path


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.integers(-(2**63) + 1, 2**63 - 1), st.none(), st.sampled_from(["x", "12", 1.5, b"y"])
        ),
        max_size=30,
    )
)
def test_any_value_is_a_number_or_null(
    tmp_path_factory: pytest.TempPathFactory, values: list[object]
) -> None:
    path = made(
        tmp_path_factory.mktemp("db") / "x.sqlite",
        "CREATE TABLE t (a)",  # no type: what is put in stays what it is
        rows=[(value,) for value in values],
    )
    expected = [
        value if isinstance(value, int) else {"12": 12, 1.5: 1}.get(value, NULL)  # type: ignore[call-overload]
        for value in values
    ]
    with closing(Database(path)) as database:
        assert database.columns("t", ["a"])["a"].tolist() == expected
        assert database.count("t") == len(values)


def test_more_rows_than_a_block(tmp_path: Path) -> None:
    n = 2 * _BLOCK + 3
    path = made(tmp_path / "x.sqlite", "CREATE TABLE t (a INTEGER)", rows=[(i,) for i in range(n)])
    ticks: list[int] = []
    with untouched(path), closing(Database(path)) as database:
        read = database.columns("t", ["a", "absent"], ticks.append)
    assert np.array_equal(read["a"], np.arange(n))
    assert ticks == [_BLOCK, _BLOCK, 3]
    assert (read["absent"] == NULL).all()
    assert len(read["absent"]) == n


def test_an_index_of_the_users_does_not_change_the_order(tmp_path: Path) -> None:
    path = made(
        tmp_path / "x.sqlite",
        "CREATE TABLE t (a INTEGER, b INTEGER)",
        "CREATE INDEX mine ON t (a)",
        rows=[(3, 1), (1, 2), (2, 3)],
    )
    with closing(Database(path)) as database:
        assert database.columns("t", ["a"])["a"].tolist() == [3, 1, 2]


def test_missing_tables_and_columns(tmp_path: Path) -> None:
    path = made(tmp_path / "x.sqlite", "CREATE TABLE t (a INTEGER)", rows=[(1,)])
    with closing(Database(path)) as database:
        assert database.has("t")
        assert database.has("t", "a")
        assert not database.has("t", "a", "b")
        assert not database.has("u")
        assert database.columns_of("u") == ()
        assert database.count("u") == 0
        assert database.columns("u", ["a"])["a"].tolist() == []


def test_views_are_no_tables(tmp_path: Path) -> None:
    endless = "WITH RECURSIVE n(a) AS (SELECT 1 UNION ALL SELECT a FROM n) SELECT a FROM n"
    path = made(
        tmp_path / "x.sqlite", "CREATE TABLE t (a)", f"CREATE VIEW v AS {endless}", rows=[(1,)]
    )
    with closing(Database(path)) as database:
        assert database.tables == {"t"}
        assert database.count("v") == 0
        assert database.columns("v", ["a"])["a"].tolist() == []


def test_names_with_quotes_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = made(
        tmp_path / "x.sqlite",
        'CREATE TABLE "t""; DROP" ("a""b" INTEGER)',
        'INSERT INTO "t""; DROP" VALUES (5)',
        "CREATE TABLE s (text TEXT)",
        "INSERT INTO s VALUES (CAST(x'41ff' AS TEXT))",
    )
    with closing(Database(path)) as database:
        assert database.columns('t"; DROP', ['a"b'])['a"b'].tolist() == [5]
        assert database.rows("SELECT text FROM s") == [("A\N{REPLACEMENT CHARACTER}",)]


@pytest.mark.parametrize("name", ["a?b.sqlite", "a#b.sqlite", "a%41.sqlite", "ä b.sqlite"])
def test_odd_file_names(tmp_path: Path, name: str) -> None:
    path = made(tmp_path / name, "CREATE TABLE t (a)", rows=[(1,)])
    with untouched(path), closing(Database(path)) as database:
        assert database.count("t") == 1


def test_nothing_can_be_written(tmp_path: Path) -> None:
    path = made(tmp_path / "x.sqlite", "CREATE TABLE t (a)", rows=[(1,)])
    with untouched(path), closing(Database(path)) as database:
        for statement in ("INSERT INTO t VALUES (2)", "CREATE INDEX i ON t (a)"):
            with pytest.raises(TraceError, match="readonly"):
                database.rows(statement)


def test_write_ahead_database_that_was_closed(tmp_path: Path) -> None:
    path = made(tmp_path / "x.sqlite", "PRAGMA journal_mode=WAL", "CREATE TABLE t (a)", rows=[(1,)])
    assert path.read_bytes()[18:20] == b"\2\2"
    with untouched(path), closing(Database(path)) as database:
        assert database.count("t") == 1


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_unfinished_work_beside_it(tmp_path: Path, suffix: str) -> None:
    path = made(tmp_path / "x.sqlite", "CREATE TABLE t (a)", rows=[(1,)])
    beside = tmp_path / f"x.sqlite{suffix}"
    beside.write_bytes(b"")
    with closing(Database(path)) as database:  # an empty one says nothing
        assert database.count("t") == 1
    beside.write_bytes(b"x")
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.sqlite"
    link.symlink_to(path)
    for opened in (path, link):
        with untouched(path), pytest.raises(TraceError, match=f"x.sqlite{suffix} lies beside it"):
            Database(opened)


def test_a_damaged_schema_that_sqlite_quotes(tmp_path: Path) -> None:
    path = made(tmp_path / "x.sqlite", "CREATE TABLE t (a)", rows=[(1,)])
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE t", b"CRE\xffTE TABLE t"))
    with untouched(path), pytest.raises(TraceError, match="the database is damaged"):
        Database(path)


def test_nothing_is_made_beside_a_file_in_write_ahead_mode(tmp_path: Path) -> None:
    path = made(tmp_path / "x.sqlite", "CREATE TABLE t (a)", rows=[(1,)])
    for versions in (b"\2\2", b"\1\2", b"\2\1"):
        data = bytearray(path.read_bytes())
        data[18:20] = versions
        path.write_bytes(data)
        with untouched(path), closing(Database(path)) as database:
            assert database.count("t") == 1


def test_errors_use_the_name_they_are_given(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 200)
    with pytest.raises(TraceError) as caught:
        Database(path, "run.nsys-rep")
    assert caught.value.message.startswith("run.nsys-rep: the database is damaged")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are not listed here")
def test_a_refused_file_is_let_go(tmp_path: Path) -> None:
    path = made(tmp_path / "x.sqlite", "CREATE TABLE t (a)", rows=[(1,)])

    def is_open() -> bool:
        opened = (str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink())
        return str(path) in opened

    with closing(Database(path)):
        assert is_open()
    path.write_bytes(path.read_bytes()[:100] + b"\xa5" * 8092)
    with pytest.raises(TraceError) as caught:
        Database(path)
    assert not is_open(), caught.value  # which keeps every frame alive
