"""The GPU's side of an Nsight export: kernels, copies, memsets, whole graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostgap.trace import nsys_tables as tables
from hostgap.trace.columns import distinct
from hostgap.trace.model import CopyKind, GpuKind, Int32, Int64, Memory
from hostgap.trace.nsys_base import Reader, only, process, translated
from hostgap.trace.nsys_tables import GRAPH, KERNEL, MEMCPY, MEMSET
from hostgap.trace.sqlite import NULL


def gpu_ops(reader: Reader) -> tuple[dict[str, NDArray[Any]], Int64]:
    """Columns of GpuOps (unsorted), and the process of each op."""
    blocks: list[dict[str, NDArray[Any]]] = []
    gpus = _gpu_numbers(reader)
    for table, kind in (
        (KERNEL, GpuKind.KERNEL),
        (MEMCPY, GpuKind.COPY),
        (MEMSET, GpuKind.MEMSET),
        (GRAPH, GpuKind.GRAPH),
    ):
        blocks.append(_gpu_table(reader, gpus, table, kind))
    columns = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    owner = columns.pop("process")
    columns["stream"] = _stream_codes(reader, columns["stream"], owner)
    return columns, owner


def _stream_codes(reader: Reader, stream: Int64, owner: Int64) -> Int32:
    """Codes of streams: each process numbers its own."""
    owners, of_owner = distinct(owner)
    ids, of_id = distinct(stream)
    pairs, which = distinct((of_owner * max(1, len(ids)) + of_id).astype(np.int64))
    codes = [
        reader.streams[(int(owners[pair // len(ids)]), int(ids[pair % len(ids)]))]
        for pair in pairs.tolist()
    ]
    return np.array(codes, np.int32)[which]


def _gpu_table(
    reader: Reader, gpus: dict[tuple[int, int], int], table: str, kind: GpuKind
) -> dict[str, NDArray[Any]]:
    name_column = _kernel_name(reader) if kind is GpuKind.KERNEL else "graphId"
    rows = reader.read(
        table,
        "start",
        "end",
        "deviceId",
        "streamId",
        "correlationId",
        "globalPid",
        "graphNodeId",
        "bytes",
        "copyKind",
        "srcKind",
        "dstKind",
        name_column,
    )
    keep = reader.kept(rows["start"], rows["end"], host=False)
    rows = only(rows, keep)
    n = len(rows["start"])
    copied = rows if kind is GpuKind.COPY else dict.fromkeys(rows, np.full(n, NULL, np.int64))
    source = translated(copied["srcKind"], tables.MEMORIES, Memory.UNKNOWN)
    target = translated(copied["dstKind"], tables.MEMORIES, Memory.UNKNOWN)
    return {
        "start": rows["start"],
        "end": rows["end"],
        "device": _device_codes(reader, gpus, rows["deviceId"], rows["globalPid"]),
        "stream": np.maximum(rows["streamId"], 0),
        "kind": np.full(n, kind, np.int8),
        "name": _gpu_names(reader, kind, rows, name_column, source, target),
        "correlation": np.where(rows["correlationId"] == NULL, -1, rows["correlationId"]),
        "graph_node": np.where(rows["graphNodeId"] == NULL, 0, rows["graphNodeId"]),
        "bytes": np.where(rows["bytes"] == NULL, -1, rows["bytes"]),
        "copy_kind": translated(copied["copyKind"], tables.COPY_KINDS, CopyKind.NONE),
        "src_mem": source,
        "dst_mem": target,
        "process": process(rows["globalPid"]),
    }


def _kernel_name(reader: Reader) -> str:
    for column in ("demangledName", "shortName", "mangledName", "name"):
        if reader.db.has(KERNEL, column):
            return column
    return "demangledName"


def _gpu_names(
    reader: Reader,
    kind: GpuKind,
    rows: dict[str, Int64],
    column: str,
    source: NDArray[np.int8],
    target: NDArray[np.int8],
) -> Int32:
    if kind is GpuKind.KERNEL:
        return reader.named(rows[column])
    if kind is GpuKind.GRAPH:
        return np.array([reader.names[f"CUDA graph {g}"] for g in rows[column].tolist()], np.int32)
    if kind is GpuKind.MEMSET:
        return np.full(len(rows["start"]), reader.names["Memset"], np.int32)
    texts = [
        f"Memcpy {tables.COPY_TEXT.get(code, '')} "
        f"({Memory(a).name.title()} -> {Memory(b).name.title()})"
        for code, a, b in zip(
            rows["copyKind"].tolist(), source.tolist(), target.tolist(), strict=True
        )
    ]
    return np.array([reader.names[text] for text in texts], np.int32)


def _gpu_numbers(reader: Reader) -> dict[tuple[int, int], int]:
    """The target's number of a GPU, by process and its number there."""
    if not reader.db.has("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid"):
        return {}
    rows = reader.read("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid")
    return {
        (pid, cuda): gpu
        for gpu, cuda, pid in zip(*(c.tolist() for c in rows.values()), strict=True)
        if gpu != NULL
    }


def _device_codes(
    reader: Reader, gpus: dict[tuple[int, int], int], device: Int64, owner: Int64
) -> Int32:
    """Codes of devices: a process numbers its GPUs itself, the target's table says which."""
    pids, of_pid = distinct(process(owner) & 0xFFFFFF)
    ids, of_id = distinct(np.where(device == NULL, 0, device))
    pairs, which = distinct((of_pid * max(1, len(ids)) + of_id).astype(np.int64))
    codes = []
    for pair in pairs.tolist():
        pid, own = int(pids[pair // len(ids)]), int(ids[pair % len(ids)])
        codes.append(reader.devices[gpus.get((pid, own), own)])
    return np.array(codes, np.int32)[which]
