"""Take out of an Nsight Systems export what tells whose it is, and leave every figure as it was.

An export holds the whole environment of the process, its command line, what it printed, and the
names of everything else that ran on the machine. Numbers, ids and the names of kernels, API calls
and NVTX ranges stay; environments are kept by a list of what is harmless, not of what is secret.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable
from contextlib import closing
from functools import lru_cache
from pathlib import Path

from hostgap.errors import HostgapError, TraceError
from hostgap.files import atomic_output
from hostgap.trace.nsys_tables import refuse_other_databases
from hostgap.trace.redact import Redaction, own_names
from hostgap.trace.scrub import REDACTED, Scrubber, is_sensitive, names_somebody
from hostgap.trace.sqlite import ERRORS, Database, quoted

# Tables of names and values, of which only known values stay.
_SETTINGS = (
    "META_DATA_CAPTURE",
    "META_DATA_EXPORT",
    "EXPORT_META_DATA",
    "TARGET_INFO_SYSTEM_ENV",
)
_KEPT_SETTING = re.compile(
    r"EXPORT_(?:PRODUCT_\w+|SCHEMA_\w+|PLATFORM|ARCH|TIME|TIME_UTC)|CAPTURE_EVENT_TYPE|DEVICE_TYPE"
    r"|START_TRIGGER|STOP_TRIGGER|CUDA_TRACE_SCOPE|(?:.*:)?(?:HOW_TO_ATTACH|MODE)"
    r"|Cpu(?:Architecture|Description)|Supported(?:64Bit)?ABIs|NvDriverVersion|OsDescription"
    r"|(?:Hardware|Software)Platform"
)
_TELLING_SETTING = re.compile(
    r"environ|variable|argument|command|dir(?:_|$|ectory)|user|host|u?uid|path|file|string|serial"
    r"|name|passw|token|secret|local",
    re.I,
)
_PLAIN_SETTING = re.compile(r"(?:[-+]?\d+(?:\.\d+)?|true|false)?")

# Columns that hold ids of strings: names, and texts of unknown content (what the program printed).
_NAME_ID = re.compile(
    r"^(?!json|file)\w*(?:name|text|string|label|symbol|module|key|description)(?:id)?$", re.I
)
_OPAQUE_ID = re.compile(r"(?:json\w*|content|arguments?|filename)id$", re.I)
_OPAQUE_TEXT = re.compile(r"json\w*|binary\w*", re.I)
_PATH_TEXT = re.compile(r"(?:path|file|filename|dir|directory|module)$", re.I)
_IN_USE = ("globalTid", "globalPid", "endGlobalTid")

_VARIABLE = re.compile(r"(?:^|[\0\n;])(\w+)=\"?([^\0\n;\"]*)")
_ENVIRONMENT = re.compile(r"(?:^|[\n;])\s*[A-Z_][A-Z0-9_]*=")
_NAMING_VARIABLES = {
    "COMPUTERNAME",
    "CONTAINER_NAME",
    "DEVICE_DISPLAY_NAME",
    "HOME",
    "LOGNAME",
    "POD_NAME",
    "SLURMD_NODENAME",
    "SUDO_USER",
    "USERPROFILE",
}


def redact_nsys(
    path: Path, out: Path, *, also: Iterable[str] = (), force: bool = False
) -> Redaction:
    """Write a copy of the export at `path` without environment, command lines, names and paths.

    Args:
        path: an SQLite export of Nsight Systems; it is not touched.
        out: where to write.
        also: further text to take out wherever it occurs.
        force: replace `out` if it exists.

    Raises:
        TraceError: `path` is no such export, or damaged.
        HostgapError: `out` exists, or cannot be written.
    """
    if path.suffix == ".nsys-rep":
        raise TraceError(
            f"{path}: a report of Nsight Systems cannot be redacted, its SQLite export can",
            f"nsys export --type sqlite -o {path.stem}.sqlite {path.name}",
        )
    if out.suffix in (".gz", ".zst"):
        raise HostgapError(
            f"{out}: an SQLite export is not compressed", "give a name that ends in .sqlite"
        )
    with closing(Database(path)) as database:
        refuse_other_databases(database)
    scrubber = Scrubber(own_names(), also)
    with atomic_output(out, force=force) as stream:
        part = Path(stream.name)
        if part.is_file():
            with path.open("rb") as source:
                shutil.copyfileobj(source, stream, 1 << 20)
            stream.flush()
            changed = _edit(part, path, scrubber)
        else:  # a device or a pipe
            with tempfile.TemporaryDirectory(prefix="hostgap-") as folder:
                part = Path(folder) / "export.sqlite"
                shutil.copyfile(path, part)
                changed = _edit(part, path, scrubber)
                with part.open("rb") as source:
                    shutil.copyfileobj(source, stream, 1 << 20)
    return Redaction(changed, path.stat().st_size, (), "SQLite")


def _edit(copy: Path, path: Path, scrubber: Scrubber) -> int:
    """Redact the database `copy` in place; the number of values changed."""
    with copy.open("r+b") as stream:
        stream.seek(18)
        stream.write(b"\1\1")  # out of write-ahead mode, which would make files beside it
    try:
        with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
            return _Editor(connection, scrubber).run()
    except ERRORS as error:
        if "full" in str(error) or "I/O" in str(error):
            raise HostgapError(f"the redacted copy cannot be written: {error}") from error
        raise TraceError(
            f"{path}: the database cannot be redacted: {error}",
            "if it is damaged, export again: nsys export --type sqlite",
        ) from error


class _Editor:
    def __init__(self, connection: sqlite3.Connection, scrubber: Scrubber) -> None:
        self.sql = connection
        self.scrubber = scrubber
        self.changed = 0
        # Nothing is ever rolled back: after an error the copy is thrown away.
        for pragma in (
            "journal_mode = OFF",
            "locking_mode = EXCLUSIVE",
            "synchronous = OFF",
            "secure_delete = ON",
            "foreign_keys = OFF",
            "ignore_check_constraints = ON",
            "trusted_schema = OFF",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        self.encoding = str(connection.execute("PRAGMA encoding").fetchone()[0])
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        self._drop_what_copies_text()
        self.columns = {
            table: self._columns(table)
            for (table,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite^_%' "
                "ESCAPE '^' AND name NOT LIKE 'ENUM^_%' ESCAPE '^'"
            ).fetchall()
        }
        clean = lru_cache(maxsize=1 << 16)(self._clean)
        for name, arguments, function in (
            ("hostgap_clean", 1, lambda raw: clean(self._decoded(raw))),
            ("hostgap_dirty", 1, lambda raw: clean(text := self._decoded(raw)) != text),
            ("hostgap_clean_path", 1, self._clean_path),
            ("hostgap_keep", 2, self._keep),
        ):
            connection.create_function(name, arguments, function, deterministic=True)

    def run(self) -> int:
        """Do it all; the number of values changed."""
        self.sql.execute("BEGIN")
        self._learn()
        self._settings()
        self._strings_of_unknown_content()
        self._idle_processes()
        for table, columns in self.columns.items():
            self._table(table, columns)
        self.sql.execute("COMMIT")
        self.sql.execute("VACUUM")  # or freed pages would still hold what was replaced
        self._check()
        return self.changed

    def _check(self) -> None:
        """Raise for a copy that cannot be read: VACUUM copies damaged cells as they are."""
        for (found,) in self.sql.execute("PRAGMA quick_check(100)"):
            if found != "ok" and not found.startswith("NULL value in"):
                raise sqlite3.DatabaseError(" ".join(found.split()))

    # --- the schema --------------------------------------------------------------------------

    def _drop_what_copies_text(self) -> None:
        """Triggers, full-text tables and statistics, none of which nsys makes."""
        rows = self.sql.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
        for kind, name, sql in rows:
            text = str(sql or "")
            virtual = kind == "table" and text.upper().startswith("CREATE VIRTUAL")
            told = kind == "view" and self.scrubber.text(text) != text
            if virtual or told or kind == "trigger" or name.startswith("sqlite_stat"):
                self.sql.execute(f"DROP {kind} IF EXISTS {quoted(name)}")

    def _columns(self, table: str) -> dict[str, bool]:
        """Name of every column that can be written, and whether it must not be null."""
        rows = self.sql.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
        return {row[1]: bool(row[3]) for row in rows}

    def _has(self, table: str, *columns: str) -> bool:
        return set(columns) <= set(self.columns.get(table, ()))

    def _update(self, statement: str) -> None:
        self.changed += max(0, self.sql.execute(statement).rowcount)

    # --- text --------------------------------------------------------------------------------

    def _decoded(self, raw: bytes) -> str:
        return raw.decode(self.encoding, "replace")

    def _clean(self, text: str) -> str:
        if "\0" in text or len(_ENVIRONMENT.findall(text)) >= 3:
            return REDACTED
        return self.scrubber.text(text)

    def _clean_path(self, raw: bytes) -> str:
        """What is known to be a path, relative ones too, which are no paths elsewhere."""
        text = self._decoded(raw)
        clean = self._clean(text)
        return REDACTED if clean == text and re.search(r"[/\\]", text) else clean

    def _keep(self, name: bytes | None, value: bytes) -> bool:
        """Whether a setting's value can stay."""
        key, text = self._decoded(name or b""), self._decoded(value)
        if text in ("", REDACTED):
            return True
        if _KEPT_SETTING.fullmatch(key):
            return self._clean(text) == text
        return not _TELLING_SETTING.search(key) and bool(_PLAIN_SETTING.fullmatch(text))

    # --- steps -------------------------------------------------------------------------------

    def _learn(self) -> None:
        """Names of hosts and people, to be found in other strings too."""
        texts: list[str] = []
        for table in _SETTINGS:
            if self._has(table, "name", "value"):
                rows = self.sql.execute(f"SELECT name, value FROM {table}").fetchall()
                for name, value in rows:
                    key = str(name).rpartition(":")[2].removeprefix("EXPORT_")
                    self._learn_one(key, str(value))
                    texts.append(str(value))
        if self._has("StringIds", "value"):
            query = "SELECT value FROM StringIds WHERE instr(CAST(value AS BLOB), x'00')"
            texts += (str(value) for (value,) in self.sql.execute(query))
            query = (
                "SELECT value FROM StringIds WHERE value LIKE '%/home/%' OR value LIKE '%/users/%'"
            )
            for (value,) in self.sql.execute(query):
                self.scrubber.learn_homes(str(value))
        for text in texts:
            for name, value in _VARIABLE.findall(text):
                self._learn_one(name, value)

    def _learn_one(self, key: str, value: str) -> None:
        if key in _NAMING_VARIABLES or names_somebody(key):
            self.scrubber.learn(re.split(r"[/\\]", value.rstrip("/\\"))[-1])

    def _settings(self) -> None:
        for table in _SETTINGS:
            if self._has(table, "name", "value"):
                self._update(
                    f"UPDATE {table} SET value = '{REDACTED}' WHERE value IS NOT NULL "
                    "AND NOT hostgap_keep(CAST(name AS BLOB), CAST(value AS BLOB))"
                )
        for table, column in (
            ("TARGET_INFO_SYSTEM_ENV", "devStateName"),
            ("TARGET_INFO_SESSION_START_TIME", "localTime"),  # against UTC it tells the time zone
        ):
            if self._has(table, column):
                self._update(
                    f"UPDATE {table} SET {column} = '{REDACTED}' "
                    f"WHERE {column} NOT IN ('Local (CLI)', '{REDACTED}')"
                )

    def _ids(self, pattern: re.Pattern[str], besides: tuple[str, ...] = ()) -> set[int]:
        """The ids of strings in the columns whose name matches."""
        found: set[int] = set()
        for table, columns in self.columns.items():
            for column in columns:
                if table not in (*besides, "StringIds") and pattern.search(column):
                    name = quoted(column)
                    query = (
                        f"SELECT DISTINCT {name} FROM {quoted(table)} "
                        f"WHERE typeof({name}) = 'integer'"
                    )
                    found.update(value for (value,) in self.sql.execute(query))
        return found

    def _strings_of_unknown_content(self) -> None:
        """What the program printed, and the names of threads in which nothing was recorded."""
        if not self._has("StringIds", "id", "value"):
            return
        wanted = self._ids(_OPAQUE_ID)
        if self._has("ThreadNames", "nameId", "globalTid"):
            used = self._in_use()
            query = "SELECT nameId, globalTid FROM ThreadNames WHERE typeof(nameId) = 'integer'"
            rows = self.sql.execute(query).fetchall()
            busy = {name for name, thread in rows if thread in used}
            wanted |= {name for name, _ in rows} - busy
            named = self._ids(_NAME_ID, ("ThreadNames",)) | busy
        else:
            named = self._ids(_NAME_ID)
        ids = sorted(wanted - named)
        done = self.sql.executemany(
            f"UPDATE StringIds SET value = '{REDACTED}' "
            f"WHERE id = ? AND value NOT IN ('', '{REDACTED}')",
            ((i,) for i in ids),
        )
        self.changed += max(0, done.rowcount)

    def _in_use(self) -> set[int]:
        """Global ids of the threads and processes that recorded anything."""
        used: set[int] = set()
        for table, columns in self.columns.items():
            for column in _IN_USE:
                if column in columns and table.startswith(("CUPTI_", "NVTX_", "OSRT_", "PROFILER")):
                    query = f"SELECT DISTINCT {column} FROM {quoted(table)}"
                    used.update(v for (v,) in self.sql.execute(query) if isinstance(v, int))
        return used

    def _idle_processes(self) -> None:
        if not self._has("PROCESSES", "globalPid", "name"):
            return
        busy = {value >> 24 for value in self._in_use()}
        rows = self.sql.execute("SELECT DISTINCT globalPid FROM PROCESSES").fetchall()
        idle = [p for (p,) in rows if not isinstance(p, int) or p >> 24 not in busy]
        done = self.sql.executemany(
            f"UPDATE PROCESSES SET name = '{REDACTED}' "
            f"WHERE globalPid IS ? AND name <> '{REDACTED}'",
            ((p,) for p in idle),
        )
        self.changed += max(0, done.rowcount)

    def _table(self, table: str, columns: dict[str, bool]) -> None:
        """Scrub the text of one table, and empty its blobs."""
        if not columns:
            return
        kinds = ", ".join(
            f"max(typeof({quoted(c)}) = 'text'), max(typeof({quoted(c)}) = 'blob')" for c in columns
        )
        found = self.sql.execute(f"SELECT {kinds} FROM {quoted(table)}").fetchone()
        for i, (column, never_null) in enumerate(columns.items()):
            name = quoted(column)
            update = f"UPDATE {quoted(table)} SET {name} ="
            nothing = "''" if never_null else "NULL"
            is_text = f"typeof({name}) = 'text' AND {name} <> ''"
            if found[2 * i + 1]:
                self._update(f"{update} {nothing} WHERE typeof({name}) = 'blob'")
            if not found[2 * i]:
                continue
            if _OPAQUE_TEXT.fullmatch(column):
                self._update(f"{update} {nothing} WHERE {is_text}")
            elif is_sensitive(column):
                self._update(f"{update} '{REDACTED}' WHERE {is_text} AND {name} <> '{REDACTED}'")
            elif _PATH_TEXT.search(column):
                clean = f"hostgap_clean_path(CAST({name} AS BLOB))"
                self._update(f"{update} {clean} WHERE {is_text} AND {name} IS NOT {clean}")
            else:
                self._update(
                    f"{update} hostgap_clean(CAST({name} AS BLOB)) "
                    f"WHERE {is_text} AND hostgap_dirty(CAST({name} AS BLOB))"
                )
