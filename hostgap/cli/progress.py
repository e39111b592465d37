"""A progress bar on stderr while a large trace is read."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LARGE = 8 << 20  # bytes on disk; smaller traces are read within about a second


@contextmanager
def reading(path: str) -> Iterator[Callable[[int], None] | None]:
    """A callback for `load_trace`, or None where no bar is wanted.

    None when the file is small, stderr is no terminal, or in CI.
    """
    try:
        size = Path(path).stat().st_size if path != "-" else 0
    except OSError:  # load_trace says what is wrong with the file
        size = 0
    if size < LARGE or not sys.stderr.isatty() or os.environ.get("CI"):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("reading"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        task = progress.add_task("reading", total=size)
        yield lambda done: progress.update(task, completed=done)
