"""The pandas edge."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hostgap.errors import HostgapError
from hostgap.trace.frames import TABLES
from hostgap.trace.load import load_trace
from hostgap.trace.model import Trace

START = 1706850122865498


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    def x(cat: str, name: str, ts: int, pid: int | str, **args: int | str) -> dict[str, object]:
        place = {"pid": pid, "tid": 7, "ts": START + ts, "dur": 2}
        return {"ph": "X", "cat": cat, "name": name, "args": args, **place}

    events = [
        x("cuda_runtime", "cudaLaunchKernel", 0, 1, correlation=1),
        x("kernel", "b", 5, 0, correlation=1, device=0, stream=7),
        x("kernel", "a", 9, 0, device="0", stream="x"),
        x("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 12, 0, device=1, stream=7, bytes=64),
        x("user_annotation", "step", 0, 1),
        x("python_function", "a.py(1): f", 0, 1),
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps(events))
    return load_trace(path)


def test_gpu_ops(trace: Trace) -> None:
    frame = trace.table("gpu_ops")
    assert list(frame) == [name for name, _ in trace.gpu_ops.columns()]
    assert frame["name"].tolist() == ["b", "a", "Memcpy HtoD (Pinned -> Device)"]
    assert frame["kind"].tolist() == ["kernel", "kernel", "copy"]
    assert frame["device"].tolist() == ["0", "0", "1"]  # 0 and "0" read alike
    assert frame["stream"].tolist() == ["7", "x", "7"]
    assert frame["copy_kind"].tolist() == ["none", "none", "h2d"]
    assert frame["src_mem"].tolist() == ["unknown", "unknown", "pinned"]
    assert frame["dst_mem"].tolist() == ["unknown", "unknown", "device"]
    assert frame["call"].tolist() == [0, -1, -1]
    assert frame["bytes"].tolist() == [-1, -1, 64]
    assert frame["start"].dtype == np.int64
    assert frame["start"].tolist() == [(START + ts) * 1000 for ts in (5, 9, 12)]
    assert isinstance(frame["name"].dtype, pd.CategoricalDtype)


def test_host_tables(trace: Trace) -> None:
    api = trace.table("api_calls")
    assert api["name"].tolist() == ["cudaLaunchKernel"]
    assert api["role"].tolist() == ["launch"]
    assert api["thread"].tolist() == ["1/7"]
    assert trace.table("host_ops")["kind"].tolist() == ["annotation"]
    assert trace.table("frames")["name"].tolist() == ["a.py(1): f"]


def test_a_code_of_none_is_missing(trace: Trace) -> None:
    names = trace.gpu_ops.name.copy()
    names[1] = -1
    changed = replace(trace, gpu_ops=replace(trace.gpu_ops, name=names))
    assert changed.table("gpu_ops")["name"].isna().tolist() == [False, True, False]


@pytest.mark.parametrize("table", TABLES)
def test_empty_tables_have_the_same_columns(trace: Trace, table: str) -> None:
    full = trace.table(table)
    rows = getattr(trace, table)
    nothing = type(rows)(*(column[:0] for _, column in rows.columns()))
    object.__setattr__(trace, table, nothing)
    for name in ("names", "threads", "devices", "streams"):
        object.__setattr__(trace, name, ())
    empty = trace.table(table)
    assert len(empty) == 0
    assert list(empty) == list(full)
    assert len(full) > 0


def test_no_such_table(trace: Trace) -> None:
    with pytest.raises(HostgapError, match="no table 'kernels'") as caught:
        trace.table("kernels")
    assert caught.value.hint == "tables: gpu_ops, api_calls, host_ops, frames"


def test_a_loaded_trace_cannot_be_changed(trace: Trace) -> None:
    with pytest.raises(ValueError, match="read-only"):
        trace.api_calls.start[0] = 0
