"""From what was named on the command line to traces: files, folders, patterns, URLs."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hostgap.errors import TraceError
from hostgap.profiling.rundir import NAME as MEASUREMENT
from hostgap.ranks.names import Named, is_trace_name, named
from hostgap.trace.remote import has_pattern, is_url, listed

MOST_TRACES = 10_000
_OWN = b'"hostgap.'  # a result of hostgap's own begins with its schema
_HEAD = 256
_RANK = re.compile(r"rank\d{1,6}")  # the folder of a rank's run
_SAME = "the same file as another"


@dataclass(frozen=True, slots=True)
class Input:
    """One trace.

    Attributes:
        name: its path or URL; of a run directory, the folder.
        size: bytes, 0 when unknown.
        said: what its name says of its rank.
        listed: it was found in a folder or by a pattern, and may be no trace at all.
    """

    name: str
    size: int
    said: Named
    listed: bool = False


@dataclass(frozen=True, slots=True)
class Inputs:
    """All traces to read.

    Attributes:
        traces: each once, in the order of names.
        several: whether a set was asked for: several names, a folder or a pattern.
        notes: a line for each file that was left out.
    """

    traces: tuple[Input, ...]
    several: bool
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Found:
    """What is found while names are looked at."""

    traces: list[Input] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seen: set[object] = field(default_factory=set)

    def add(self, name: str, key: object, size: int, *, listed: bool = False) -> None:
        if key in self.seen:
            self.notes.append(f"{name}: left out: {_SAME}")
            return
        self.seen.add(key)
        if len(self.traces) >= MOST_TRACES:
            raise TraceError(f"{name}: over {MOST_TRACES:,} traces", "name fewer, with a pattern")
        said = named(name.rstrip("/").rpartition("/")[2])
        self.traces.append(Input(name, size, said, listed))


def find_inputs(names: Iterable[str]) -> Inputs:
    """The traces that some names stand for.

    A folder stands for the trace files and run directories directly in it, unless it is a run
    directory itself; a pattern
    (`*`, `?`, `[...]`, `**` for folders in folders) for those that match; a URL that ends with /
    for those that its server lists. Links are followed to regular files and each file counts once;
    anything else in a folder (pipes, devices, links to nowhere, results of hostgap's own) is left
    out, and so is what SGLang merged from the ranks' own files.

    Raises:
        TraceError: nothing is there, standard input is one of several, or there are too many.
    """
    given = list(names)
    if "-" in given and len(given) > 1:
        raise TraceError("-: standard input is one trace, and cannot be one of several")
    found = _Found()
    several = len(given) > 1
    for name in given:
        if name == "-":
            found.add(name, name, 0)
        elif is_url(name):
            several |= _url(name, found)
        else:
            several |= _local(name, found)
    traces = found.traces
    ranks = [one for one in traces if one.said.role != "merged"]
    if several and ranks and len(ranks) < len(traces):
        for one in traces:
            if one.said.role == "merged":
                found.notes.append(f"{one.name}: left out: it repeats the ranks' own files")
        traces = ranks
    return Inputs(tuple(traces), several, tuple(found.notes))


def _url(url: str, found: _Found) -> bool:
    """Add what a URL stands for; whether that may be several."""
    if not (url.endswith("/") or has_pattern(url)):
        found.add(url, url, 0)
        return False
    before = len(found.traces)
    for name, size in listed(url):
        if is_trace_name(name.rpartition("/")[2]):
            found.add(name, name, size, listed=True)
    if len(found.traces) == before:
        raise TraceError(f"{url}: no trace there", "traces end with .json, .json.gz, .sqlite")
    return True


def _local(name: str, found: _Found) -> bool:
    """Add what a path or pattern stands for; whether that may be several."""
    path = Path(name)
    try:
        if path.is_dir() and not (path / MEASUREMENT).is_file():
            entries = sorted(path.iterdir())
        elif path.exists() or path.is_symlink() or not glob.has_magic(name):
            # what is wrong with it, its reader says
            _add(path, found)
            return False
        else:
            matches = glob.glob(name, recursive=True)  # noqa: PTH207  Path has none for any path
            entries = [Path(one) for one in sorted(matches)]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TraceError(f"{name}: cannot be looked at: {reason}") from error
    before, known = len(found.traces), len(found.notes)
    for entry in entries:
        if (entry / MEASUREMENT).is_file():
            _add(entry, found)
        elif is_trace_name(entry.name) and (why := _left_out(entry)) is not None:
            found.notes.append(f"{entry}: left out: {why}")
        elif is_trace_name(entry.name):
            _add(entry, found, listed=True)
        elif _RANK.fullmatch(entry.name) and entry.is_dir():
            found.notes.append(f"{entry}: left out: no {MEASUREMENT} in it")
    if len(found.traces) == before and not any(map(_again, found.notes[known:])):
        said = "; ".join(found.notes[-3:])
        hint = "traces end with .json, .json.gz, .json.zst, .sqlite; 'DIR/**/*.json' looks deeper"
        what = "no trace in this folder" if path.is_dir() else "no trace matches"
        raise TraceError(f"{name}: {what}" + (f" ({said})" if said else ""), hint)
    return True


def _again(note: str) -> bool:
    return note.endswith(_SAME)


def _add(path: Path, found: _Found, *, listed: bool = False) -> None:
    try:
        state = path.stat()
        found.add(os.fspath(path), (state.st_dev, state.st_ino), state.st_size, listed=listed)
    except (OSError, ValueError):  # its reader says what is wrong
        found.add(os.fspath(path), os.fspath(path), 0)


def _left_out(path: Path) -> str | None:
    """Why a file in a folder is no trace to read, None where it may be one."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return "a folder"
        if not stat.S_ISREG(mode):
            return "not a regular file"
        if path.suffix == ".json":
            with path.open("rb") as stream:
                head = stream.read(_HEAD)
            if _OWN in head.partition(b"\n")[0] + b"".join(_lines(head)):
                return "a result of hostgap's, no trace"
    except FileNotFoundError:
        return "a link to nowhere"
    except OSError:  # its reader says what is wrong
        return None
    return None


def _lines(head: bytes) -> Iterator[bytes]:
    """The lines of a file's beginning that name its schema."""
    return (line for line in head.splitlines() if line.strip().startswith(b'"schema"'))
