"""What is being done, on stderr, while it takes more than a moment."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ANALYSIS = 0.8  # of the time of reading that analyzing takes, as measured on a trace of 2.5 GB
LARGE = 8 << 20  # bytes on disk; smaller traces are read within about a second


@contextmanager
def reading(
    path: str, *, passes: int = 1, analyzing: bool = False
) -> Iterator[Callable[[int], None] | None]:
    """A callback for `load_trace`, or None where no bar is wanted.

    None when the file is small, stderr is no terminal, or in CI.

    Args:
        passes: how often the file is read.
        analyzing: the block goes on to analyze what it read, which counts in the estimate of the
            time that is left as `ANALYSIS` of the reading.
    """
    try:
        size = Path(path).stat().st_size if path != "-" else 0
    except OSError:  # load_trace says what is wrong with the file
        size = 0
    if size < LARGE or not sys.stderr.isatty() or os.environ.get("CI"):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    # of several passes the last keeps only a part, of which little is left to analyze
    rest = round(size * ANALYSIS) if analyzing and passes == 1 else 0
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        task = progress.add_task("reading", total=size * passes + rest)

        def read(done: int) -> None:
            what = "analyzing" if analyzing and done >= size * passes else "reading"
            progress.update(task, completed=done, description=what)

        yield read


@contextmanager
def doing() -> Iterator[Callable[[str], None]]:
    """A function to tell what is being done: a spinner in a terminal, else a line each."""
    if not sys.stderr.isatty() or os.environ.get("CI"):
        yield lambda what: print(f"hostgap: {what}", file=sys.stderr, flush=True)  # noqa: T201
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status("") as status:
        yield lambda what: status.update(Text(what))
