"""Take out of a Kineto trace what tells whose it is, and leave every figure as it was.

`scrub` decides about one string, `rewrite` applies it to a text of any size; here the files.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hostgap.errors import TraceError
from hostgap.files import atomic_output, compressed
from hostgap.trace import lookalikes
from hostgap.trace.nsys_export import is_nsys
from hostgap.trace.rewrite import Rewriter
from hostgap.trace.scrub import Scrubber
from hostgap.trace.source import open_source

_SEARCHED = 16 << 20  # bytes without an event after which a text is not taken for a trace


@dataclass(frozen=True, slots=True)
class Redaction:
    """What a redaction did.

    Attributes:
        changed: strings rewritten, repeats counted.
        text_bytes: bytes of JSON text read, decompressed.
        notes: a line for each kind of damage that was met.
        what: what the bytes are.
    """

    changed: int
    text_bytes: int
    notes: tuple[str, ...]
    what: str = "JSON"


class _NamesCameLate(Exception):
    """The metadata after the events name a host or a person: the events must be read again."""


def redact(
    path: str | os.PathLike[str], out: Path, *, also: Iterable[str] = (), force: bool = False
) -> Redaction:
    """Write a copy of the trace at `path` without environment, command line, names and paths.

    Args:
        path: a Kineto trace, plain, .gz or .zst, or an SQLite export of Nsight Systems.
        out: where to write; its ending (.gz, .zst or neither) chooses the compression.
        also: further text to take out wherever it occurs.
        force: replace `out` if it exists.

    Raises:
        TraceError: `path` is not a Kineto trace, or cannot be read.
        HostgapError: `out` exists, or cannot be written.
    """
    if os.fspath(path) == "-":
        raise TraceError("redact cannot read a pipe", "it may have to read twice: give it a file")
    also = tuple(also)
    if is_nsys(Path(path)):
        from hostgap.trace.redact_nsys import redact_nsys  # which imports this module

        return redact_nsys(Path(path), out, also=also, force=force)
    words = set(own_names())
    while True:
        scrubber = Scrubber(words, also)
        try:
            return _attempt(path, out, scrubber, force=force)
        except _NamesCameLate:
            words |= scrubber.words


def _attempt(
    path: str | os.PathLike[str], out: Path, scrubber: Scrubber, *, force: bool
) -> Redaction:
    rewriter = Rewriter(scrubber)
    with atomic_output(out, force=force) as stream:
        with open_source(path) as source, compressed(stream, out.name) as text:
            for block in rewriter.run(iter(source.read, b"")):
                text.write(block)
                if not rewriter.is_trace and rewriter.text_bytes > _SEARCHED:
                    raise TraceError(
                        f"{source.name}: no trace events in the first {_SEARCHED >> 20} MiB",
                        lookalikes.RECORD,
                    )
        if not rewriter.is_trace:
            raise TraceError(
                f"{source.name}: this is JSON, but not a trace: it has no traceEvents",
                lookalikes.RECORD,
            )
        if rewriter.learned:
            raise _NamesCameLate
    notes = [f"{what} ({n} times)" if n > 1 else what for what, n in rewriter.damage.items()]
    if source.truncated:
        notes.insert(0, source.truncated)
    return Redaction(rewriter.changed, rewriter.text_bytes, tuple(notes))


def own_names() -> list[str]:
    """The names of this machine and of the user running, as far as the system tells."""
    names = [socket.gethostname()]
    try:
        names.append(getpass.getuser())
    except (OSError, KeyError, ImportError):
        return names  # a container may run as a number without a name
    return names
