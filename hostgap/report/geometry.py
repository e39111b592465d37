"""Grid, block and estimated occupancy of kernels, which the trace's tables do not hold.

Only the kernels' table of the report shows them, so they are read from the file once more, and only
where that is cheap. Nothing depends on them: what cannot be read is left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hostgap.errors import HostgapError
from hostgap.trace.nsys_export import is_nsys
from hostgap.trace.source import open_source

LARGEST = 320 << 20  # bytes of decompressed text that are worth it

_Numbers = list[float] | None


@dataclass(frozen=True, slots=True)
class Geometry:
    """How kernels of one name are launched: their commonest shape, and how many others.

    `occupancy` is the mean of the profiler's estimates, from 0 to 1; None where there are none.
    """

    grid: tuple[int, ...]
    block: tuple[int, ...]
    other_shapes: int
    occupancy: float | None


class _Args(msgspec.Struct, gc=False):
    grid: _Numbers = None
    block: _Numbers = None
    occupancy: float | None = msgspec.field(default=None, name="est. achieved occupancy %")


class _Event(msgspec.Struct, gc=False):
    cat: str | None = None
    name: str = ""
    args: _Args | None = None


class _Document(msgspec.Struct):
    traceEvents: list[_Event] = []  # noqa: N815


_Shape = tuple[str, tuple[int, ...], tuple[int, ...], float | None]


def geometry(path: Path) -> dict[str, Geometry]:
    """Kernel name -> how it is launched; empty where the file does not say or is too large."""
    try:
        return _summed(_of_nsys(path) if is_nsys(path) else _of_kineto(path))
    except (HostgapError, msgspec.MsgspecError, OSError, ValueError, RecursionError):
        return {}


def _of_kineto(path: Path) -> Iterable[_Shape]:
    chunks, size = [], 0
    with open_source(path) as source:
        while block := source.read():
            chunks.append(block)
            size += len(block)
            if size > LARGEST:
                return
    document = msgspec.json.decode(b"".join(chunks), type=_Document, strict=False)
    for event in document.traceEvents:
        args = event.args
        if event.cat == "kernel" and args is not None and args.grid and args.block:
            share = None if args.occupancy is None else args.occupancy / 100
            yield event.name, _whole(args.grid), _whole(args.block), share


def _whole(values: list[float]) -> tuple[int, ...]:
    return tuple(int(value) for value in values[:3])


_NSYS = """
SELECT s.value, k.gridX, k.gridY, k.gridZ, k.blockX, k.blockY, k.blockZ
FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName
"""


def _of_nsys(path: Path) -> Iterable[_Shape]:
    import sqlite3

    if path.suffix == ".nsys-rep":
        return  # its export is gone by now
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        for name, *shape in connection.execute(_NSYS):
            yield str(name), tuple(shape[:3]), tuple(shape[3:]), None
    except sqlite3.Error:
        return
    finally:
        connection.close()


def _summed(shapes: Iterable[_Shape]) -> dict[str, Geometry]:
    counts: dict[str, Counter[tuple[tuple[int, ...], tuple[int, ...]]]] = defaultdict(Counter)
    occupancies: dict[str, list[float]] = defaultdict(list)
    for name, grid, block, occupancy in shapes:
        counts[name][grid, block] += 1
        if occupancy is not None:
            occupancies[name].append(occupancy)
    result = {}
    for name, found in counts.items():
        ((grid, block), _), *_ = found.most_common(1)
        known = occupancies.get(name)
        mean = sum(known) / len(known) if known else None
        result[name] = Geometry(grid, block, len(found) - 1, mean)
    return result
