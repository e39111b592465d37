"""Writing files: whole or not at all, and never over something by accident. Reading small ones.

Every command that writes goes through `atomic_output`, so a failure, a full disk or Ctrl-C leaves
neither half a file nor a temporary one behind.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from hostgap.errors import HostgapError

_WRITE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}


@contextmanager
def atomic_output(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """Open `path` for writing; it appears, complete, when the block ends without an error.

    The bytes go to a temporary file in the same folder, which is renamed at the end. A device or a
    pipe (`/dev/stdout`) is written directly, a symlink's target is replaced and not the link.

    Args:
        path: the file to write.
        force: replace the file if it exists.

    Raises:
        HostgapError: it exists and `force` is not given, it is a folder, or it cannot be written.
    """
    refuse_existing(path, force=force)
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        try:
            with target.open("wb") as device:
                yield device
        except OSError as error:
            if error.errno in _WRITE_ERRORS:
                raise _unwritable(path, error) from error
            raise
        return
    name = os.fsencode(target.name)[:200].decode("utf-8", "ignore")  # the limit is on bytes
    part = target.with_name(f".{name}.{os.urandom(4).hex()}.part")
    try:  # from here on, so that no moment is left at which a signal leaves the file behind
        with _opened(part, path) as stream:
            yield stream
        refuse_existing(path, force=force)  # it may have appeared meanwhile
        part.replace(target)
    except OSError as error:
        if error.errno in _WRITE_ERRORS or error.filename == str(part):
            raise _unwritable(path, error) from error
        raise
    finally:
        part.unlink(missing_ok=True)


def _opened(part: Path, path: Path) -> BinaryIO:
    """A new file `part`, to become `path`."""
    try:
        return part.open("xb")
    except FileNotFoundError:
        raise _no_folder(path) from None
    except OSError as error:
        raise _unwritable(path, error) from error


def refuse_existing(path: Path, *, force: bool) -> None:
    """Say no before any work is done, when `path` cannot be the output.

    Raises:
        HostgapError: `path` is a folder, or a file and `force` is not given.
    """
    if path.is_dir():
        raise HostgapError(f"{path} is a folder", "give the name of a file")
    if not force and path.is_file():
        raise HostgapError(f"{path} exists", "use --force to overwrite it")


def refuse_output(path: Path, *, force: bool) -> None:
    """As `refuse_existing`, and where its folder does not exist: before work that takes long.

    Raises:
        HostgapError: there is no such folder, `path` is one, or a file and `force` is not given.
    """
    refuse_existing(path, force=force)
    if not Path(os.path.realpath(path)).parent.is_dir():
        raise _no_folder(path)


def _no_folder(path: Path) -> HostgapError:
    """The error for an output whose folder does not exist."""
    folder = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
    return HostgapError(f"{folder}: no such folder", "create it first")


@contextmanager
def compressed(stream: BinaryIO, name: str) -> Iterator[BinaryIO]:
    """Wrap `stream` in the compression that the ending of `name` asks for (.gz, .zst, else none).

    The gzip header holds neither the file's name nor the time.

    Raises:
        HostgapError: .zst without the zstandard package.
    """
    if name.endswith(".gz"):
        with _gzip(stream) as out:
            yield out
    elif name.endswith(".zst"):
        with _zstd(stream) as out:
            yield out
    else:
        yield stream


def _gzip(stream: BinaryIO) -> BinaryIO:
    """isal's writer where it is installed (several times faster), else the standard library's."""
    try:
        from isal import igzip
    except ImportError:
        import gzip

        plain = gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=stream, mtime=0)
        return cast(BinaryIO, plain)
    writer: Any = igzip.IGzipFile  # its constructor has no type hints
    return cast(BinaryIO, writer("", "wb", compresslevel=2, fileobj=stream, mtime=0))


def _zstd(stream: BinaryIO) -> BinaryIO:
    try:
        import zstandard
    except ImportError:
        raise HostgapError(
            "writing .zst needs the zstandard package", "pip install 'hostgap[zstd]'"
        ) from None
    return cast(BinaryIO, zstandard.ZstdCompressor(level=6).stream_writer(stream, closefd=False))


def read_whole(path: Path, largest: int) -> bytes:
    """All of a file of hostgap's own, which is never large.

    A pipe would be waited for, and a device read for ever: neither is opened.

    Args:
        path: the file.
        largest: bytes that it may have.

    Raises:
        OSError: it cannot be read, is no regular file, or is too large; `strerror` says which.
    """
    data = read_head(path, largest + 1)
    if len(data) > largest:
        raise OSError(errno.EFBIG, f"more than {largest:,} bytes", str(path))
    return data


def read_head(path: Path, size: int) -> bytes:
    """The first `size` bytes of a regular file.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # opening a folder says that it is one
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with path.open("rb") as stream:
        return stream.read(size)


def _unwritable(path: Path, error: OSError) -> HostgapError:
    return HostgapError(f"{path}: cannot be written: {error.strerror or error}")
