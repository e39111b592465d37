"""The tables of an analysis as Parquet files, for pandas, Polars, DuckDB and whatever reads those.

The columns, their types and what they mean stand here once: they are the files' schema (each field
carries its meaning), and a test holds docs/tables.md against them.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hostgap.errors import HostgapError

if TYPE_CHECKING:
    from hostgap.analysis.examine import Analysis

SCHEMA = "hostgap.tables/1"

_TIMES = {"start": ("int64", "ns"), "end": ("int64", "ns, not before the start")}
_HOST = {
    "row": ("int32", "number of the row, from 0: what other tables refer to"),
    **_TIMES,
    "thread": ("name", "process/thread and its name"),
    "name": ("name", "as recorded"),
}
# table -> column -> type and meaning; a "name" is a string, dictionary-encoded
COLUMNS: dict[str, dict[str, tuple[str, str]]] = {
    "gpu_ops": {
        "row": ("int32", "number of the row, from 0: what other tables refer to"),
        **_TIMES,
        "device": ("name", "GPU, as the trace numbers it"),
        "stream": ("name", "stream, as the trace numbers it"),
        "kind": ("name", "kernel, copy, memset, graph (a whole one, its nodes not shown)"),
        "name": ("name", "of the kernel or copy"),
        "correlation": ("int64", "the trace's own id of the launching call, -1 without"),
        "call": ("int32", "row of api_calls that launched it, -1 for an orphan"),
        "graph_node": ("int64", "id of the graph's node, 0 outside of graphs"),
        "bytes": ("int64", "of a copy or memset, -1 where not recorded"),
        "copy_kind": ("name", "none, h2d, d2h, d2d, h2h, p2p"),
        "src_mem": ("name", "unknown, pageable, pinned, device, array, managed"),
        "dst_mem": ("name", "the same"),
        "step": ("int32", "row of steps whose work it is, -1 for none"),
    },
    "api_calls": {
        **_HOST,
        "role": ("name", "launch, graph_launch, copy, sync, event, alloc, free, ..., other"),
        "correlation": ("int64", "id that its GPU ops carry, -1 without"),
        "step": ("int32", "row of steps in which it starts, -1 for none"),
    },
    "host_ops": {
        **_HOST,
        "kind": ("name", "op, annotation, overhead, wait, off_cpu"),
        "depth": ("int32", "ops around it on its thread"),
        "parent": ("int32", "row of host_ops around it, -1 for none"),
    },
    "frames": {
        **_HOST,
        "depth": ("int32", "frames around it on its thread"),
        "parent": ("int32", "row of frames around it, -1 for none"),
    },
    "syncs": {
        "call": ("int32", "row of api_calls in which the host waits for the GPU"),
        "kind": ("name", "name of the call"),
        "copy": ("name", "none, or the direction of the copy it waits for"),
        "site": ("int32", "site in sites, -1 for none"),
        "blocked_ns": ("int64", "time inside the call"),
        "shadow_ns": ("int64", "idle time of the GPU that its return was followed by"),
    },
    "steps": {
        "row": ("int32", "number of the step, from 0"),
        "start": ("int64", "ns, GPU clock: the end of the last GPU op of the step before"),
        "end": ("int64", "ns, GPU clock: the end of its own last GPU op"),
        "host_start": ("int64", "ns, GPU clock: where it begins on the host"),
        "label": ("name", "its annotation"),
        "source": ("name", "annotation, nvtx, cycle, whole"),
        "chosen": ("bool", "whether it lies in the window"),
    },
    "gaps": {
        "row": ("int32", "number of the gap, from 0"),
        "device": ("name", "GPU, as the trace numbers it"),
        "start": ("int64", "ns, GPU clock"),
        "end": ("int64", "ns, GPU clock"),
        "next_op": ("int32", "row of gpu_ops that ends it, -1 for none"),
        "step": ("int32", "row of steps in which it begins, -1 for none"),
    },
    "gap_parts": {
        "gap": ("int32", "row of gaps it is a piece of"),
        "start": ("int64", "ns, GPU clock"),
        "end": ("int64", "ns, GPU clock"),
        "cause": ("name", "the one cause of the idle time, see causes.md"),
        "detail": ("name", "innermost host event it lies under, null without"),
        "site": ("int32", "site in sites, -1 for none"),
        "blame": ("int32", "row of api_calls in whose shadow it lies, -1 for none"),
    },
    "sites": {
        "site": ("int32", "what other tables refer to"),
        "file": ("name", "of the user's source"),
        "line": ("int32", "first line of the function, or the line being run (Nsight)"),
        "function": ("name", "innermost user function"),
    },
}


def write_tables(analysis: Analysis, folder: Path, *, force: bool = False) -> dict[str, int]:
    """Write every table of an analysis to `folder/NAME.parquet`, all or none.

    Args:
        analysis: what `hostgap.examine` gives.
        folder: made if it is not there.
        force: replace files of those names.

    Returns:
        Table -> rows.

    Raises:
        HostgapError: pyarrow is missing, a file exists, or the folder cannot be written.
    """
    arrow, parquet = _pyarrow()
    refuse_existing_tables(folder, force=force)
    rows = {}
    about = {
        b"hostgap.schema": SCHEMA.encode(),
        b"hostgap.trace": analysis.trace.file.encode("utf-8", "replace"),
        b"hostgap.integrity": analysis.integrity.verdict.label.encode(),
    }
    with _filled(folder) as part:
        for name in COLUMNS:
            table = _table(arrow, analysis, name)
            rows[name] = table.num_rows
            table = table.replace_schema_metadata({**(table.schema.metadata or {}), **about})
            # opened here: pyarrow takes no path that is not UTF-8
            with (part / f"{name}.parquet").open("wb") as file:
                parquet.write_table(table, file, compression="zstd")
    return rows


def refuse_existing_tables(folder: Path, *, force: bool) -> None:
    """Say no before any work is done.

    Raises:
        HostgapError: `folder` is a file, or has such tables and `force` is not given.
    """
    if folder.exists() and not folder.is_dir():
        raise HostgapError(f"{folder} is a file", "give the name of a folder")
    for name in COLUMNS:
        path = folder / f"{name}.parquet"
        if path.is_dir():
            raise HostgapError(f"{path} is a folder", "give another folder")
        if not force and os.path.lexists(path):
            raise HostgapError(f"{path} exists", "use --force to overwrite it")


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise HostgapError(
            "writing Parquet needs the pyarrow package", "pip install 'hostgap[tables]'"
        ) from error
    return pyarrow, pyarrow.parquet


def _table(arrow: Any, analysis: Analysis, name: str) -> Any:
    """One table with its types, whatever a table without rows would have made of them."""
    frame = analysis.table(name)
    if name == "sites":
        frame = frame.reset_index()
    if "row" in COLUMNS[name]:
        frame = frame.reset_index(drop=True)
        frame.insert(0, "row", frame.index)
    types = {
        "int32": arrow.int32(),
        "int64": arrow.int64(),
        "bool": arrow.bool_(),
        "name": arrow.dictionary(arrow.int32(), arrow.string()),
    }
    arrays, fields = [], []
    for column, (kind, meaning) in COLUMNS[name].items():
        array = arrow.Array.from_pandas(frame[column])
        if kind == "name" and not arrow.types.is_dictionary(array.type):
            array = array.cast(arrow.string()).dictionary_encode()
        arrays.append(array.cast(types[kind]))
        fields.append(arrow.field(column, types[kind], metadata={"meaning": meaning}))
    return arrow.Table.from_arrays(arrays, schema=arrow.schema(fields))


@contextmanager
def _filled(folder: Path) -> Iterator[Path]:
    """A folder to fill beside `folder`; its files go there when the block ends without an error."""
    target = Path(os.path.realpath(folder))
    part = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.part")
    try:
        try:
            part.mkdir(parents=True)
            yield part
            target.mkdir(exist_ok=True)
            for path in sorted(part.iterdir()):
                path.replace(target / path.name)
        except OSError as error:
            reason = error.strerror or error
            raise HostgapError(f"{folder}: cannot be written: {reason}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
