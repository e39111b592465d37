"""The trace files that a server writes: which are new, which are complete, and copying them."""

from __future__ import annotations

import gzip
import shutil
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG

from hostgap.errors import HostgapError, TraceError
from hostgap.files import atomic_output
from hostgap.serving.engine import Engine, Label

POLL_S = 0.5
SETTLE_S = 3.0  # how long no further file may come before those that are there are taken for all
_BLOCK = 1 << 20
_SHORTEST = 18  # bytes of gzip's header and trailer

State = tuple[int, int]  # size in bytes, time of the last change in ns
Folder = dict[Path, State]


@dataclass(frozen=True, slots=True)
class Found:
    """A complete trace file of this recording, where the server wrote it."""

    path: Path
    label: Label
    size: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """What came of waiting for files.

    Attributes:
        found: the complete ones.
        partial: those that are not complete yet.
        waited_s: how long was to be waited, seconds.
    """

    found: tuple[Found, ...]
    partial: tuple[Path, ...]
    waited_s: float


def listing(folder: Path, engine: Engine) -> Folder:
    """The trace files in a folder, as they are now.

    Raises:
        HostgapError: it is no folder, or cannot be read.
    """
    if not folder.is_dir():
        raise HostgapError(f"{folder}: no such folder", "give the folder that the server writes to")
    states: Folder = {}
    try:
        for pattern in engine.patterns:
            for path in folder.glob(pattern):
                if engine.label(path.name) is None:
                    continue
                try:
                    stat = path.stat()
                except FileNotFoundError:  # between the listing and the look
                    continue
                if not S_ISREG(stat.st_mode):
                    continue  # a pipe would be waited for, a device read for ever
                states[path] = (stat.st_size, stat.st_mtime_ns)
    except PermissionError as error:
        raise _unreadable(Path(error.filename or folder)) from None
    return states


def wait_for_files(
    folder: Path,
    engine: Engine,
    before: Folder,
    *,
    prefix: str,
    ranks: int | None,
    timeout_s: float,
    alive: Callable[[], None],
    say: Callable[[str], None],
) -> Waiting:
    """Wait until a recording's files are there and complete.

    New is what was not in the folder before, or has changed since: no clock is compared, since the
    server's may differ. Complete is what has not grown between two looks and can be unpacked.

    Args:
        folder: where to look.
        before: its `listing` before the recording.
        prefix: what the file names begin with, where the server follows it.
        ranks: how many files of workers there will be, None when unknown.
        timeout_s: how long to wait, seconds.
        alive: called at every look; raises when the server has gone.
        say: told of the progress.

    Raises:
        TraceError: a file is damaged.
        HostgapError: the server has gone.
    """
    begin = changed = time.monotonic()
    last: Folder = {}
    complete: dict[Path, State] = {}
    while True:
        now = _ours(listing(folder, engine), before, prefix)
        if now != last:
            changed = time.monotonic()
        for path, state in now.items():
            if state == last.get(path) and complete.get(path) != state and is_complete(path):
                complete[path] = state
        last = now
        found = _found(engine, now, complete)
        partial = tuple(path for path, state in now.items() if complete.get(path) != state)
        workers = sum(1 for one in found if one.label.role == "worker")
        quiet = time.monotonic() - changed >= SETTLE_S
        if workers and not partial and (quiet or (ranks is not None and workers >= ranks)):
            return Waiting(found, (), timeout_s)
        if time.monotonic() - begin > timeout_s:
            return Waiting(found, partial, timeout_s)
        wanted = f" of {ranks}" if ranks is not None else ""
        say(f"waiting for the traces: {workers}{wanted} there, {len(partial)} being written")
        alive()
        time.sleep(POLL_S)


def _ours(now: Folder, before: Folder, prefix: str) -> Folder:
    new = {path: state for path, state in now.items() if before.get(path) != state}
    # a server that follows the prefix names all of this recording's files by it
    named = {path: state for path, state in new.items() if path.name.startswith(prefix)}
    return named or new


def _found(engine: Engine, now: Folder, complete: Folder) -> tuple[Found, ...]:
    found = []
    for path, state in now.items():
        label = engine.label(path.name)
        if complete.get(path) == state and label is not None:
            found.append(Found(path, label, state[0]))
    return tuple(
        sorted(found, key=lambda one: (one.label.role != "worker", one.label.order, one.path.name))
    )


def is_complete(path: Path) -> bool:
    """Whether a trace file has its end: gzip's checksum, or JSON's last brace.

    Raises:
        TraceError: it is damaged, and more bytes would not mend it.
        HostgapError: it cannot be read.
    """
    try:
        if path.name.endswith(".gz"):
            if path.stat().st_size < _SHORTEST:  # too short to be told from what is no gzip
                return False
            with gzip.open(path) as stream:
                while stream.read(_BLOCK):
                    pass
            return True
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - 64))
            return stream.read().rstrip().endswith((b"}", b"]"))
    except EOFError:
        return False
    except (gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(
            f"{path} is damaged: {error}", "record again; see the server's log"
        ) from None
    except PermissionError:
        raise _unreadable(path) from None
    except FileNotFoundError:
        return False


def _unreadable(path: Path) -> HostgapError:
    return HostgapError(
        f"{path} cannot be read: permission denied",
        "run this as the server's user, or let the server write readable files",
    )


def copy_all(found: Iterable[Found], out: Path, *, force: bool) -> list[Path]:
    """Copy files into a folder, each whole or not at all; the server's own stay where they are.

    Raises:
        HostgapError: one exists and `force` is not given, or cannot be read or written.
    """
    made = []
    for one in found:
        path = out / one.path.name
        try:
            source = one.path.open("rb")
        except OSError as error:
            raise HostgapError(f"{one.path} cannot be read: {error.strerror}") from None
        with source, atomic_output(path, force=force) as stream:
            shutil.copyfileobj(source, stream, _BLOCK)
        made.append(path)
    return made
