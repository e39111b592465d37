"""Traces that lie elsewhere: `s3://`, `gs://`, `https://` and the like, through fsspec.

fsspec is an optional extra, and so is the package behind each protocol. What is read is streamed:
nothing is stored here but an Nsight export, which SQLite must have as a file. Names that a server
lists are shown and read, and never become names of files.
"""

from __future__ import annotations

import http
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from hostgap.errors import TraceError

# Those that only read from elsewhere: none that wraps another, or reads files by a list it is given
PROTOCOLS = ("abfs", "az", "gcs", "gs", "hdfs", "http", "https", "memory", "s3", "s3a")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_PACKAGES = {
    "abfs": "adlfs",
    "az": "adlfs",
    "gcs": "gcsfs",
    "gs": "gcsfs",
    "hdfs": "pyarrow",
    "http": "'hostgap[remote]'",
    "https": "'hostgap[remote]'",
    "s3": "s3fs",
    "s3a": "s3fs",
}
_GLOB = re.compile(r"[*?\[]")
MOST_FILES = 100_000  # of one folder or pattern
_BLOCK = 1 << 22  # bytes that are read ahead
PATIENCE_S = 60  # for a web server to answer, or to go on with its answer
_SPARE = 1 << 30  # bytes that a copy leaves free on its disk; on a small one a twentieth


def is_url(name: str) -> bool:
    """Whether `name` is a URL and no path."""
    return _URL.match(name) is not None


def open_url(url: str) -> tuple[BinaryIO, int]:
    """Open a remote file for reading.

    Returns:
        The stream, whose errors are OSErrors, and its size in bytes, 0 when unknown.

    Raises:
        TraceError: a package is missing, or the file cannot be opened.
    """
    system, path = _system(url)
    try:
        # fsspec asks a second time where the first question finds no answer: this is for both
        within = {"timeout": PATIENCE_S} if url.startswith("http") else {}
        info = system.info(path, **within)
        if info.get("type") == "directory" and not info.get("size"):
            raise TraceError(f"{url}: is a folder", "end it with a / to read all traces in it")
        stream = system.open(path, "rb", block_size=_BLOCK)
    except TraceError:
        raise
    except Exception as error:  # each protocol's package raises its own
        raise _unreadable(url, error) from error
    return _Stream(stream), int(info.get("size") or 0)  # type: ignore[return-value]


@contextmanager
def downloaded(url: str, most: int) -> Iterator[Path]:
    """A copy of a remote file in a folder that is removed at the end.

    Args:
        url: the file.
        most: bytes that it may have, whatever the server says of its size.

    Raises:
        TraceError: it cannot be read, is larger, or does not fit here.
    """
    with tempfile.TemporaryDirectory(prefix="hostgap-") as folder:
        path = Path(folder) / "trace"
        source, size = open_url(url)
        try:
            with source, path.open("wb") as copy:
                _copy(source, copy, url, Path(folder), size, most)
        except OSError as error:
            raise TraceError(f"{url}: cannot be copied: {error.strerror or error}") from error
        yield path


def _copy(source: BinaryIO, copy: BinaryIO, url: str, folder: Path, size: int, most: int) -> None:
    """Copy a file of `size` bytes, 0 when unknown: no more than that, than `most`, or than fit.

    Raises:
        TraceError: there is more of it.
    """
    too_large = TraceError(f"{url}: more than {most:,} bytes", "that is no trace of a profiler")
    if size > most:
        raise too_large
    _fits(url, folder, size)
    copied = 0
    while block := source.read(_BLOCK):
        copied += len(block)
        if copied > most:
            raise too_large
        if 0 < size < copied:
            raise TraceError(f"{url}: more than the {size:,} bytes that the server announced")
        _fits(url, folder, len(block))
        copy.write(block)


def _fits(url: str, folder: Path, size: int) -> None:
    """Raise where `size` more bytes would fill the disk that `folder` is on."""
    disk = shutil.disk_usage(folder)
    if size > disk.free - min(_SPARE, disk.total // 20):
        raise TraceError(
            f"{url}: no room for a copy in {folder.parent}: {disk.free / 1e9:.1f} GB are free",
            "make room, or name a folder on a larger disk in TMPDIR",
        )


def listed(url: str) -> list[tuple[str, int]]:
    """The files in a remote folder (a URL that ends with /) or of a pattern, and their sizes.

    Raises:
        TraceError: a package is missing, or the folder cannot be listed.
    """
    system, path = _system(url)
    protocol = url.partition("://")[0]
    try:
        if _GLOB.search(path):
            found = system.glob(path, detail=True)
            entries = list(found.values())
        else:
            entries = system.ls(path, detail=True)
    except Exception as error:  # each protocol's package raises its own
        raise _unreadable(url, error) from error
    if len(entries) > MOST_FILES:
        raise TraceError(f"{url}: over {MOST_FILES:,} files", "name fewer, with a pattern")
    files = [entry for entry in entries if entry.get("type") == "file"]
    return sorted((_full(protocol, str(one["name"])), int(one.get("size") or 0)) for one in files)


def has_pattern(url: str) -> bool:
    """Whether a URL's path names several files: a query's `?` is none."""
    rest = url.partition("://")[2]
    if url.startswith("http"):
        rest = rest.partition("?")[0]
    return _GLOB.search(rest) is not None


def _full(protocol: str, name: str) -> str:
    return name if is_url(name) else f"{protocol}://{name.lstrip('/')}"


def _system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    match = _URL.match(url)
    protocol = match[1].lower() if match else ""
    if protocol not in PROTOCOLS or "::" in url:
        raise TraceError(
            f"{url}: hostgap reads no such URL", f"known: {', '.join(f'{p}://' for p in PROTOCOLS)}"
        )
    try:
        import fsspec
    except ImportError as error:
        raise TraceError(
            f"{url}: reading URLs needs the fsspec package", "pip install 'hostgap[remote]'"
        ) from error
    try:
        system, path = fsspec.core.url_to_fs(url, **_patience(protocol))
    except ImportError as error:
        package = _PACKAGES.get(protocol, "fsspec")
        raise TraceError(
            f"{url}: {protocol}:// needs a further package", f"pip install {package}"
        ) from error
    except Exception as error:  # each protocol's package raises its own
        raise _unreadable(url, error) from error
    return system, str(path)


def _patience(protocol: str) -> dict[str, Any]:
    """Options of a file system that gives up on a server which does not answer."""
    if protocol not in ("http", "https"):
        return {}
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=PATIENCE_S, sock_read=PATIENCE_S)
    return {"client_kwargs": {"timeout": timeout}}


def _unreadable(url: str, error: Exception) -> TraceError:
    # for http all that goes wrong is a missing file, and what it was stands behind it
    cause = error.__cause__ if isinstance(error, FileNotFoundError) else error
    status = getattr(cause, "status", None)
    if cause is None or isinstance(cause, FileNotFoundError) or status == http.HTTPStatus.NOT_FOUND:
        return TraceError(f"{url}: no such file")
    hint = "check the address, and your access to it"
    if _took_too_long(cause):
        reason = f"no answer within {PATIENCE_S} s"
    elif isinstance(status, int):
        reason = f"the server answers {status} {getattr(cause, 'message', '')}".rstrip()
    else:
        reason = str(cause).partition("\n")[0] or type(cause).__name__
    return TraceError(f"{url}: cannot be read: {reason[:200]}", hint)


def _took_too_long(error: BaseException) -> bool:
    import asyncio  # loaded already, by what raises its error

    return isinstance(error, TimeoutError | asyncio.TimeoutError)  # one class from 3.11 on


class _Stream:
    """A remote file whose errors are OSErrors, as those of a local one are."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        try:
            return bytes(self._stream.read(size))
        except Exception as error:  # each protocol's package raises its own
            if _took_too_long(error):
                raise OSError("the server stopped answering") from error
            if isinstance(error, OSError):
                raise
            raise OSError(str(error).partition("\n")[0][:200] or type(error).__name__) from error

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
