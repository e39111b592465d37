"""Bytes of a trace file, decompressed as they are read.

Compression is told by the first bytes, never by the name. Memory stays bounded whatever the file
expands to: a block is decompressed only when asked for.
"""

from __future__ import annotations

import os
import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from hostgap.errors import TraceError
from hostgap.trace import lookalikes
from hostgap.trace.remote import is_url, open_url

if TYPE_CHECKING:
    from typing_extensions import Self

_READ = 1 << 16  # blocks that stay in the processor's cache are read a third faster
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
MOST_BYTES = 256 << 30  # decompressed: a hundred times the largest trace that was met
MOST_FOLD = 250  # to which compressed data may expand, ten times what traces do, ...
FOLD_FROM = 512 << 20  # ... from so many bytes on
_ZSTD_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")  # pzstd begins with such a frame


class Source:
    """An opened trace file. Use as a context manager; read with `read()` until it gives b"".

    Attributes:
        name: how messages call the file.
        size: bytes on disk, 0 when unknown (stdin).
        consumed: compressed bytes read so far, for progress.
        offset: decompressed bytes handed out so far.
        truncated: why the compressed data end early, "" while they do not.
    """

    def __init__(self, stream: BinaryIO, name: str, size: int = 0) -> None:
        # a name that is not UTF-8 must not break whatever prints or encodes it
        self.name = name.encode("utf-8", "replace").decode("utf-8")
        self.size = size
        self.consumed = 0
        self.offset = 0
        self.truncated = ""
        self._stream = stream
        self._head = self._raw(4096)
        self.head = self._head
        self._blocks = self._open()

    def read(self) -> bytes:
        """The next block of decompressed bytes, b"" at the end.

        Raises:
            TraceError: the compressed data are damaged, or expand to more than any trace.
        """
        block = next(self._blocks, b"")
        self.offset += len(block)
        if self.offset > MOST_BYTES:
            raise TraceError(
                f"{self.name}: more than {MOST_BYTES:,} bytes when decompressed",
                "that is no trace of a profiler; if it is one, record fewer steps",
            )
        if self.offset > FOLD_FROM and self.offset > MOST_FOLD * self.consumed:
            raise TraceError(
                f"{self.name}: expands to more than {MOST_FOLD} times its size, as no trace does",
                "if it is one, decompress it first",
            )
        return block

    def _raw(self, n: int = _READ) -> bytes:
        try:
            data = self._stream.read(n)
        except OSError as error:
            raise TraceError(f"{self.name}: cannot be read: {error.strerror or error}") from error
        self.consumed += len(data)
        return data

    def _raw_blocks(self) -> Iterator[bytes]:
        head, self._head = self._head, b""
        if head:
            yield head
        while data := self._raw():
            yield data

    def _open(self) -> Iterator[bytes]:
        if self._head.startswith(_GZIP):
            return self._gzip()
        if self._head.startswith(_ZSTD) or _ZSTD_SKIPPABLE.match(self._head):
            return self._zstd()
        if (refusal := lookalikes.binary(self._head)) is not None:
            raise TraceError(f"{self.name}: {refusal.what}", refusal.hint)
        return self._raw_blocks()

    def _gzip(self) -> Iterator[bytes]:
        """Members one after another (pigz and bgzip write several); zero padding may follow."""
        inflate = _zlib()
        member = inflate.decompressobj(wbits=31)
        started = False
        for data in self._raw_blocks():
            while data:
                if not started:
                    data = data.lstrip(b"\0")
                    if not data:
                        break
                    started = True
                    if not _GZIP.startswith(data[:2]):
                        raise self._corrupt("gzip", "something else follows a member")
                try:
                    out = member.decompress(data, _READ)
                except (zlib.error, inflate.error) as error:
                    raise self._corrupt("gzip", error) from error
                data = member.unconsumed_tail
                if out:
                    yield out
                if member.eof:
                    data = member.unused_data
                    member = inflate.decompressobj(wbits=31)
                    started = False
        if started:
            if out := member.flush():  # what the last input gave beyond the block asked for
                yield out
            self.truncated = "the gzip data end early"

    def _zstd(self) -> Iterator[bytes]:
        try:
            import zstandard
        except ImportError as error:
            raise TraceError(
                f"{self.name}: reading .zst needs the zstandard package",
                "pip install 'hostgap[zstd]'",
            ) from error
        # stream_reader hands out at most what it is asked for, whatever a frame expands to
        reader = zstandard.ZstdDecompressor().stream_reader(
            cast(BinaryIO, _Joined(self._raw_blocks())), read_across_frames=True
        )
        while True:
            try:
                out = reader.read(_READ)
            except zstandard.ZstdError as error:
                raise self._corrupt("zstd", error) from error
            if not out:
                return
            yield out

    def _corrupt(self, format_name: str, reason: object) -> TraceError:
        return TraceError(
            f"{self.name}: corrupt {format_name} data near byte {self.consumed}: {reason}",
            "copy the file again, or record the trace again",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if sys.stdin is None or self._stream is not sys.stdin.buffer:
            self._stream.close()


class _Joined:
    """The raw blocks behind a `read(n)`, which is all a decompressor asks of its input."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks

    def read(self, _size: int = -1) -> bytes:
        return next(self._blocks, b"")


def _zlib() -> Any:
    """isal's faster inflate where it is installed, else the standard library's."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib


def open_source(path: str | os.PathLike[str]) -> Source:
    """Open a trace file for reading; "-" is standard input, `s3://...` and the like are URLs.

    Args:
        path: a plain, gzip or zstd file, here or elsewhere.

    Raises:
        TraceError: missing, unreadable, empty, a folder, or recognisably something else.
    """
    name = os.fspath(path)
    if name == "-":
        if sys.stdin is None or sys.stdin.isatty():
            raise TraceError("-: nothing is piped in", "for example: zcat T.gz | hostgap analyze -")
        source = Source(sys.stdin.buffer, "stdin")
    elif is_url(name):
        source = _open_stream(*open_url(name), name)
    else:
        source = _open_file(Path(name))
    if not source.head:
        source.__exit__(None, None, None)
        raise TraceError(
            f"{source.name}: the file is empty", "the profiler was killed before it wrote the trace"
        )
    return source


def _open_file(path: Path) -> Source:
    name = str(path)
    try:
        if path.is_dir():
            raise TraceError(f"{name}: is a folder", _inside(path))
        if not path.is_file() and path.exists():
            raise TraceError(f"{name}: is not a regular file", "use '-' to read a pipe")
        stream = path.open("rb")
    except FileNotFoundError as error:
        raise TraceError(f"{name}: no such file", _similar(path)) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TraceError(f"{name}: cannot be opened: {reason}") from error
    return _open_stream(stream, os.fstat(stream.fileno()).st_size, name)


def _open_stream(stream: BinaryIO, size: int, name: str) -> Source:
    with ExitStack() as opened:
        opened.enter_context(stream)
        source = Source(stream, name, size)
        opened.pop_all()  # it is the source's to close now
    return source


def _inside(folder: Path) -> str | None:
    """A hint that names a trace in `folder`, if there is one."""
    found = sorted(p for p in folder.iterdir() if p.name.endswith((".json", ".json.gz", ".zst")))
    if not found:
        return "give the trace file itself"
    more = f" ({len(found)} such files there)" if len(found) > 1 else ""
    return f"give one trace file, for example {found[0]}{more}"


def _similar(path: Path) -> str | None:
    """A hint that names a file with nearly the same name, if there is one."""
    import difflib

    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return None
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {path.with_name(near[0])}?" if near else None
