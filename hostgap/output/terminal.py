"""Where every text report goes: a console as wide as its stream, and what the stream can show."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from rich.console import Console

WIDTH = 80
MOST = 10_000  # columns that COLUMNS may ask for
_ASCII = str.maketrans({"█": "#", "·": "-", **dict.fromkeys("▏▎▍▌▋▊▉", "#")})


def width_of(stream: IO[str], otherwise: int = WIDTH) -> int:
    """Columns of the terminal that a stream goes to; where it is none COLUMNS, or `otherwise`."""
    if stream.isatty():
        return os.get_terminal_size(stream.fileno()).columns
    asked = os.environ.get("COLUMNS", "")
    return (
        int(asked) if asked.isascii() and asked.isdigit() and 0 < int(asked) < MOST else otherwise
    )


@contextmanager
def console_on(
    stream: IO[str], *, color: bool | None = None, width: int = WIDTH
) -> Iterator[Console]:
    """A console whose report is written to `stream` when the block ends.

    Args:
        stream: where to; on a terminal its width is used. What its encoding lacks is replaced.
        color: force colour on or off; None decides by the terminal, NO_COLOR and FORCE_COLOR.
        width: in columns, where the stream is no terminal.
    """
    terminal = stream.isatty()
    if color is None and not terminal and not os.environ.get("FORCE_COLOR"):
        color = False
    text = io.StringIO()
    yield Console(
        file=text,
        width=width_of(stream, width),
        force_terminal=color is not False,
        no_color=True if color is False or os.environ.get("NO_COLOR") else None,
        highlight=False,
        markup=False,
        emoji=False,
    )
    shown = text.getvalue()
    if color is False:
        shown = "".join(line.rstrip() + "\n" for line in shown.splitlines())
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        shown.encode(encoding)
    except UnicodeEncodeError:
        shown = shown.translate(_ASCII).encode(encoding, "replace").decode(encoding)
    stream.write(shown)
