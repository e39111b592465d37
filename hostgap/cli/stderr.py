"""A stderr that loses what cannot be written: the exit code is to stay that of the command."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def unhindered(stream: TextIO) -> TextIO:
    """A stream to the same place that never raises: on a full disk, or where its reader has gone.

    Args:
        stream: stays in use: whoever holds it must not drop it.
    """
    # below the buffer: click takes that itself where the stream's encoding is ASCII
    raw = _Unhindered(getattr(stream.buffer, "raw", stream.buffer))
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=stream.encoding, errors=stream.errors, line_buffering=True
    )


class _Unhindered(io.RawIOBase):
    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return int(self._raw.fileno())

    def isatty(self) -> bool:
        return bool(self._raw.isatty())

    def write(self, data: ReadableBuffer, /) -> int:
        size = memoryview(data).nbytes
        try:
            written: int | None = self._raw.write(data)
        except OSError:
            return size
        return size if written is None else written
