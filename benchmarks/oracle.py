"""The exact answers for one trace, by brute force, to hold the tools' answers against.

    python benchmarks/oracle.py TRACE      # .json, .json.gz, or an Nsight Systems .sqlite

Shares no code with hostgap. JSON is read by Python's own json module with decimal times, which
become integer nanoseconds; exports by SQL. Then: all GPU operations (kernels, copies, memsets),
from the start of the first to the end of the last, and the union of their intervals.

`launches` are the host's calls that started kernels (a graph's launch is one call): calls whose
correlation some kernel bears. Files of more than `WHOLE` bytes are not parsed in one piece: their
events are told apart by the lines that Kineto writes around them, each is parsed by itself, and
those without a GPU or CUDA category in their text are not parsed.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

WHOLE = 120 << 20  # bytes; parsed with decimals a document takes about ten times its size
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
NSYS_KERNELS = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",  # whole graphs, where their kernels were not recorded
)
NSYS_COPIES = ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
_ASKED = tuple(f'"cat": "{category}"' for category in (*GPU, *CALLS))
_OPENS, _CLOSES = "  {\n", ("  },\n", "  }\n")


@dataclass
class Answers:
    """Times in ns. `kernel_*` leave copies and memsets out of union and window."""

    window_ns: int
    busy_ns: int
    idle_ns: int
    kernel_window_ns: int
    kernel_busy_ns: int
    gpu_ops: int
    kernels: int
    launches: int


class Collected:
    """GPU operations and calls, as they are met."""

    def __init__(self) -> None:
        self.kernels: list[tuple[int, int]] = []
        self.others: list[tuple[int, int]] = []
        self.launched: set[int] = set()  # correlations of kernels
        self.calls: set[int] = set()

    def add(self, event: dict[str, Any]) -> None:
        """One event of a torch.profiler trace."""
        category = event.get("cat")
        if event.get("ph") != "X" or category not in (*GPU, *CALLS):
            return
        correlation = int((event.get("args") or {}).get("correlation") or 0)
        if category in CALLS:
            self.calls.add(correlation)
            return
        start, duration = (Decimal(event[key]) * 1000 for key in ("ts", "dur"))
        interval = (exact(start), exact(start + duration))
        if category == "kernel":
            self.kernels.append(interval)
            self.launched.add(correlation)
        else:
            self.others.append(interval)

    def answers(self) -> Answers:
        """All figures."""
        window, busy = union([*self.kernels, *self.others])
        kernel_window, kernel_busy = union(self.kernels)
        return Answers(
            window_ns=window,
            busy_ns=busy,
            idle_ns=window - busy,
            kernel_window_ns=kernel_window,
            kernel_busy_ns=kernel_busy,
            gpu_ops=len(self.kernels) + len(self.others),
            kernels=len(self.kernels),
            launches=len((self.launched & self.calls) - {0}),
        )


def exact(ns: Decimal) -> int:
    """A whole number of ns.

    Raises:
        ValueError: it is none.
    """
    whole = int(ns)
    if whole != ns:
        raise ValueError(f"{ns} ns is no whole number")
    return whole


def union(intervals: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """From the first start to the last end, and how much of that some interval covers."""
    ordered = sorted(intervals)
    if not ordered:
        return 0, 0
    first = reach = ordered[0][0]
    covered = 0
    for start, end in ordered:
        if end > reach:
            covered += end - max(start, reach)
            reach = end
    return reach - first, covered


def events_of(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a torch.profiler trace, numbers with decimals as `Decimal`."""
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8") as file:
            yield from json.load(file, parse_float=Decimal)["traceEvents"]
    elif path.stat().st_size <= WHOLE:
        text = path.read_text(encoding="utf-8")
        yield from json.loads(text, parse_float=Decimal)["traceEvents"]
    else:
        yield from one_by_one(path)


def one_by_one(path: Path) -> Iterator[dict[str, Any]]:
    """The events that count, without holding the document."""
    with path.open(encoding="utf-8") as file:
        lines: list[str] = []
        for line in file:
            if line == _OPENS:
                lines = [line]
            elif line in _CLOSES and lines:
                text = "".join(lines) + "}"
                lines = []
                if any(category in text for category in _ASKED):
                    yield json.loads(text, parse_float=Decimal)
            elif lines:
                lines.append(line)


def of_export(path: Path) -> Answers:
    """The answers for an Nsight Systems export of one GPU."""
    database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    found = Collected()
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    for table in (*NSYS_KERNELS, *NSYS_COPIES):
        if table not in tables:
            continue
        rows = database.execute(f"SELECT start, end, correlationId FROM {table}").fetchall()
        intervals = [(start, end) for start, end, _ in rows]
        if table in NSYS_KERNELS:
            found.kernels += intervals
            found.launched.update(correlation for *_, correlation in rows)
        else:
            found.others += intervals
    calls = database.execute("SELECT correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME")
    found.calls.update(correlation for (correlation,) in calls)
    database.close()
    return found.answers()


def answers_of(path: Path, *, apart: bool = False) -> Answers:
    """The answers for a trace or an export.

    Args:
        apart: parse each event by itself, however small the file is.
    """
    if path.suffix == ".sqlite":
        return of_export(path)
    found = Collected()
    for event in one_by_one(path) if apart else events_of(path):
        found.add(event)
    return found.answers()


def main() -> None:
    path = Path(sys.argv[1])
    answers = answers_of(path)
    plain = path.suffix == ".json" and path.stat().st_size <= WHOLE
    if plain and answers_of(path, apart=True) != answers:
        raise SystemExit(f"{path}: its events are not laid out as Kineto does")
    if not answers.gpu_ops:
        raise SystemExit(f"{path}: no GPU operations, or another layout than Kineto's")
    print(json.dumps(asdict(answers)))


if __name__ == "__main__":
    main()
