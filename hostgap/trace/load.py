"""`load_trace`: the public way to read a trace, whatever its format."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

from hostgap.trace.kineto import read_kineto
from hostgap.trace.model import Trace
from hostgap.trace.nsys_export import REPORTS, exported, is_nsys
from hostgap.trace.part import Keep
from hostgap.trace.remote import downloaded, is_url
from hostgap.trace.source import MOST_BYTES, open_source


def load_trace(
    path: str | os.PathLike[str],
    *,
    progress: Callable[[int], None] | None = None,
    keep: Keep | None = None,
) -> Trace:
    """Read a trace file into tables.

    Args:
        path: a torch.profiler trace (`.json`, gzip or zstd), an Nsight Systems SQLite export, or a
            `.nsys-rep`, which is exported through `nsys` first; told by content, not by name. "-"
            reads a torch.profiler trace from standard input. A URL (`s3://`, `https://`) is read
            through fsspec; one of an Nsight export, told by its ending, is copied first.
        progress: called now and then with the number of (compressed) bytes read so far.
        keep: which events of a torch.profiler trace to keep; all by default.

    Returns:
        The trace; see `hostgap.trace.model` for its tables. Times are int64 nanoseconds.

    Raises:
        TraceError: the file is missing, damaged beyond reading, or not such a trace.
    """
    # The reader makes millions of short-lived objects and no cycles: collecting would cost half
    # its time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        name = os.fspath(path)
        if is_url(name):
            if name.endswith((".sqlite", *REPORTS)):
                with downloaded(name, MOST_BYTES) as copy:
                    if is_nsys(copy) or name.endswith(REPORTS):  # else a server's own page
                        with exported(copy, name) as export:
                            return _sealed(_read_export(export, progress, name))
        elif name != "-" and is_nsys(Path(path)):
            with exported(Path(path), name) as export:
                return _sealed(_read_export(export, progress, name))
        with open_source(path) as source:
            return _sealed(read_kineto(source, progress, keep))
    finally:
        if collecting:
            gc.enable()


def _read_export(export: Path, progress: Callable[[int], None] | None, name: str) -> Trace:
    from hostgap.trace.nsys import read_nsys  # SQLite and all: other traces do without

    return read_nsys(export, progress, name=name)


def _sealed(trace: Trace) -> Trace:
    """The trace with its columns read-only: analyses share it, and a user's own rules read it."""
    for table in (trace.gpu_ops, trace.api_calls, trace.host_ops, trace.frames):
        for _, column in table.columns():
            column.flags.writeable = False
    return trace
