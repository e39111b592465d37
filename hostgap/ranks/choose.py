"""One rank out of many, found without reading the traces of the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hostgap.diagnosis.run import run_trace
from hostgap.errors import HostgapError, TraceError
from hostgap.profiling.rundir import is_run_dir, read_measurement
from hostgap.ranks.inputs import Input, Inputs
from hostgap.ranks.names import recorded_rank, resolved
from hostgap.trace.document import Document
from hostgap.trace.lookalikes import OtherDocument
from hostgap.trace.nsys_export import REPORTS, is_nsys
from hostgap.trace.remote import is_url
from hostgap.trace.source import open_source

_NAMED = 3  # traces of one rank that a message lists


def choose(inputs: Inputs, rank: int) -> Input:
    """The trace of one rank: the same that `diagnose_set` gives this number.

    Of the others only the beginning is read, where torch.profiler says which rank it is.

    Raises:
        TraceError: there is no such rank, or several traces are of it.
    """
    workers: list[Input] = []
    recorded: list[int | None] = []
    for one in inputs.traces:
        if one.said.role == "frontend":
            continue
        try:
            said = _said_by(one)
        except OtherDocument:
            if one.listed and one.said.rank is None:
                continue  # what else lies in the folder
            said = None
        except HostgapError:  # damaged: if it is the one that is asked for, its reader says how
            said = None
        workers.append(one)
        recorded.append(said)
    numbers, _ = resolved(recorded, [one.said.rank for one in workers])
    found = [one for one, number in zip(workers, numbers, strict=True) if number == rank]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(one.name for one in found[:_NAMED])
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise TraceError(f"--rank {rank}: several traces are of it: {names}{more}", "name the file")
    known = sorted({number for number in numbers if number is not None})
    if not known:
        for one in workers:
            if not is_url(one.name) and not Path(one.name).exists():
                raise TraceError(f"{one.name}: no such file")
        raise TraceError(
            f"--rank {rank}: neither the traces nor their names tell the ranks", "name the file"
        )
    raise TraceError(f"--rank {rank}: there is no such rank, but {_ranges(known)}")


def _said_by(one: Input) -> int | None:
    """The rank that a trace's metadata name; only those before its events are read.

    Raises:
        OtherDocument: it holds no events.
        HostgapError: it cannot be read.
    """
    path: str | Path = one.name
    if is_url(one.name):
        if one.name.endswith((".sqlite", *REPORTS)):
            return None
    else:
        path = Path(one.name)
        if is_run_dir(path):
            path = run_trace(path, read_measurement(path))
        if is_nsys(path) or not path.is_file():  # what a pipe gives is not there a second time
            return None
    with open_source(path) as source:
        document = Document(source)
        next(document.blocks(), None)
        if not document.has_events or (document.not_events and not document.events):
            raise OtherDocument(f"{one.name}: holds no events")
        return recorded_rank(document.metadata)


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in order, in words: 0 to 3, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join(" to ".join(map(str, run)) for run in runs)
