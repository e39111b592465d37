"""The canary: the same trace with one `.item()` a step put in, which a gate must notice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from hostgap.analysis.analyze import analyze
from hostgap.analysis.examine import examine
from hostgap.errors import ConfigError
from hostgap.gate.subject import Subject
from hostgap.trace.model import (
    ApiCalls,
    CopyKind,
    GpuKind,
    GpuOps,
    HostKind,
    HostOps,
    Int64,
    Memory,
    Role,
    Trace,
)

OPS = ("aten::item", "aten::_local_scalar_dense")
_COPY_NS, _SYNC_NS, _AROUND_NS = 1_500, 10_000, 500
Table = TypeVar("Table", GpuOps, ApiCalls, HostOps)


def with_item(subject: Subject) -> Subject:
    """A subject whose every step also reads a number back from the GPU.

    Raises:
        ConfigError: a result, which holds no calls to put one among, or a trace without steps.
    """
    if subject.trace is None or subject.diagnosis is None:
        raise ConfigError(
            f"--canary: {subject.name} holds no trace to put an .item() into",
            "give the trace or the run directory",
        )
    analysis = examine(subject.trace, subject.options)
    if analysis.steps.marks.source == "whole":
        raise ConfigError("--canary: the trace has no steps", "name what begins one: --step-marker")
    calls = subject.trace.api_calls
    starts, threads = [], []
    for step in analysis.chosen:
        # right behind the last call of the step: a call belongs to the step of its thread's time
        mine = np.flatnonzero(analysis.steps.call_step == step)
        if len(mine):
            last = mine[int(np.argmax(calls.end[mine]))]
            starts.append(int(calls.end[last]) + 1)
            threads.append(int(calls.thread[last]))
    made = _inserted(subject.trace, np.array(starts, np.int64), np.array(threads, np.int32))
    diagnosis = analyze(made, subject.options, subject.judging)
    return replace(subject, trace=made, diagnosis=diagnosis)


def _inserted(trace: Trace, at: Int64, threads: Any) -> Trace:
    n = len(at)
    names = (*trace.names, "cudaMemcpyAsync", "cudaStreamSynchronize", *OPS)
    copy_name, sync_name, item, dense = range(len(trace.names), len(names))
    last_id = int(trace.api_calls.correlation.max(initial=0))
    begin = at + _AROUND_NS
    middle, end = begin + _COPY_NS, begin + _COPY_NS + _SYNC_NS
    ids = last_id + 1 + np.arange(2 * n, dtype=np.int64)

    both = np.concatenate
    old_rows = len(trace.api_calls)
    api = ApiCalls(
        start=both([trace.api_calls.start, begin, middle]),
        end=both([trace.api_calls.end, middle, end]),
        thread=both([trace.api_calls.thread, threads, threads]),
        name=both([trace.api_calls.name, np.repeat(np.array([copy_name, sync_name], np.int32), n)]),
        role=both([trace.api_calls.role, np.repeat(np.array([Role.COPY, Role.SYNC], np.int8), n)]),
        correlation=both([trace.api_calls.correlation, ids]),
    )
    order = np.argsort(api.start, kind="stable")
    place = np.empty(len(order), np.int32)  # old row -> new row
    place[order] = np.arange(len(order), dtype=np.int32)

    gpu = trace.gpu_ops
    device = int(gpu.device[0])
    fixed = {
        "device": device,
        "stream": int(gpu.stream[0]),
        "kind": int(GpuKind.COPY),
        "name": copy_name,
        "graph_node": 0,
        "bytes": 8,
        "copy_kind": int(CopyKind.D2H),
        "src_mem": int(Memory.DEVICE),
        "dst_mem": int(Memory.PAGEABLE),
    }
    called = np.where(gpu.call >= 0, place[np.maximum(gpu.call, 0)], np.int32(-1))
    more: dict[str, Any] = {
        "start": middle + _SYNC_NS // 2,
        "end": middle + _SYNC_NS // 2 + 1_000,
        "correlation": ids[:n],
        "call": place[old_rows : old_rows + n],
        **{name: np.full(n, value) for name, value in fixed.items()},
    }
    columns = dict(gpu.columns()) | {"call": called}
    ops = GpuOps(
        **{
            name: both([column, np.asarray(more[name])]).astype(column.dtype)
            for name, column in columns.items()
        }
    )
    host = HostOps(
        start=both([trace.host_ops.start, at, at + 1]),
        end=both([trace.host_ops.end, end + _AROUND_NS, end + _AROUND_NS - 1]),
        thread=both([trace.host_ops.thread, threads, threads]),
        name=both([trace.host_ops.name, np.repeat(np.array([item, dense], np.int32), n)]),
        kind=both([trace.host_ops.kind, np.full(2 * n, HostKind.OP, np.int8)]),
    )
    return replace(
        trace,
        names=names,
        api_calls=_rows(api, order),
        gpu_ops=_rows(ops, np.lexsort((ops.end, ops.start))),
        host_ops=_rows(host, np.argsort(host.start, kind="stable")),
    )


def _rows(table: Table, order: Any) -> Table:
    return type(table)(**{name: column[order] for name, column in table.columns()})
