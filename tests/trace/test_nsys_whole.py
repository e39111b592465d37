"""Whole exports: joins as a dict makes them, figures as of the same Kineto trace, real exports."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostgap.analysis.analyze import analyze
from hostgap.analysis.examine import Options
from hostgap.trace.load import load_trace
from hostgap.trace.model import GpuKind, Role
from tests.trace.nsys_build import (
    COPY,
    GRAPH_LAUNCH,
    LAUNCH,
    START_END,
    SYNC,
    Export,
    gid,
    step_loop,
    untouched,
)

ID = st.sampled_from([0, 1, 2, 3, 2**32 - 1, 2**41, 2**41 + 1, None])
CALL = st.tuples(ID, st.sampled_from([LAUNCH, COPY, SYNC, GRAPH_LAUNCH]), st.integers(1, 3))
OP = st.tuples(ID, st.integers(1, 3), st.integers(0, 20))


@settings(max_examples=80, deadline=None)
@given(st.lists(CALL, max_size=10), st.lists(OP, max_size=10), st.randoms(use_true_random=False))
def test_joins_equal_a_dicts(
    tmp_path_factory: pytest.TempPathFactory,
    calls: list[tuple[int | None, str, int]],
    ops: list[tuple[int | None, int, int]],
    random: Any,
) -> None:
    export = Export()
    by_id: dict[tuple[int, int], list[tuple[str, int]]] = defaultdict(list)
    for at, (key, name, pid) in enumerate(calls):
        export.call(name, 100 * at, 100 * at + 5, key, pid=pid)  # type: ignore[arg-type]
        if key:
            by_id[pid, key].append((name, 100 * at))
    expected = []
    for at, (key, pid, length) in enumerate(ops):
        start = 7 + 1000 * at
        export.kernel(start, start + length, key, pid=pid)  # type: ignore[arg-type]
        candidates = by_id[pid, key] if key else []
        first = [start for name, start in candidates if name != SYNC]
        if not first:
            first = [start for _, start in candidates]
        expected.append(first[0] if len(first) == 1 else None)
    for rows in export.tables.values():
        random.shuffle(rows)
    trace = load_trace(export.write(tmp_path_factory.mktemp("join") / "x.sqlite"))
    starts = [int(trace.api_calls.start[c]) if c >= 0 else None for c in trace.gpu_ops.call]
    assert starts == expected
    assert (np.diff(trace.api_calls.start) > 0).all()


RANGE = st.tuples(st.integers(0, 30), st.integers(0, 20), st.booleans())


@settings(max_examples=80, deadline=None)
@given(st.lists(RANGE, max_size=12))
def test_ranges_of_a_thread_nest(
    tmp_path_factory: pytest.TempPathFactory, ranges: list[tuple[int, int, bool]]
) -> None:
    """Whatever start/end ranges there are, push/pop ranges stay whole and nothing crosses."""
    export = Export()
    for depth in range(4):
        export.nvtx(f"push {depth}", 4 * depth, 40 - 3 * depth)
    for i, (start, length, away) in enumerate(ranges):
        end = gid(100, 200 if away else 100)
        export.nvtx(f"free {i}", start, start + length, START_END, endGlobalTid=end)
    trace = load_trace(export.write(tmp_path_factory.mktemp("ranges") / "x.sqlite"))
    ops = trace.host_ops
    assert len(ops) == 4 + len(ranges)
    own = [i for i in range(len(ops)) if not trace.threads[ops.thread[i]].name]
    kept = {trace.names[ops.name[i]] for i in own}
    assert kept >= {f"push {depth}" for depth in range(4)}
    assert not kept & {f"free {i}" for i, (_, _, away) in enumerate(ranges) if away}
    for i, j in itertools.combinations(own, 2):
        (a, b), (c, d) = sorted([(ops.start[i], ops.end[i]), (ops.start[j], ops.end[j])])
        assert not (a < c < b < d)


def kineto_of(export: Export, path: Path) -> Path:
    """The same rows as a torch.profiler trace."""
    text = {key: name for name, key in export.strings.items()}
    events: list[dict[str, Any]] = []
    for table, rows in export.tables.items():
        for row in rows:
            event = {
                "ph": "X",
                "ts": row["start"] / 1000,
                "dur": (row["end"] - row["start"]) / 1000,
            }
            gpu = {"device": 0, "stream": 7, "correlation": row.get("correlationId")}
            place = {"pid": 100, "tid": 100}
            if table == "NVTX_EVENTS":
                name, *emitted = row["text"].split(", seq")
                event |= {"cat": "cpu_op" if emitted else "user_annotation", "name": name, **place}
            elif "nameId" in row:
                name = text[row["nameId"]].rsplit("_v", 1)[0]
                args = {"correlation": row["correlationId"]}
                event |= {"cat": "cuda_runtime", "name": name, **place, "args": args}
            elif "copyKind" in row:
                name = "Memcpy DtoH (Device -> Pinned)"
                event |= {"cat": "gpu_memcpy", "name": name, "pid": 0, "tid": 7, "args": gpu}
            else:
                name = text[row["demangledName"]]
                event |= {"cat": "kernel", "name": name, "pid": 0, "tid": 7, "args": gpu}
            events.append(event)
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def test_same_as_kineto(tmp_path: Path) -> None:
    export = step_loop()
    for row in export.tables["NVTX_EVENTS"]:
        row["text"] = row["text"].replace("step", "ProfilerStep")
    for step in range(5):  # what emit_nvtx writes: without ops an export says less of Python
        t = 1000 + step * 100_000
        export.nvtx(f"aten::mm, seq = {step}, op_id = 7", t + 500, t + 6_000)
    nsys = analyze(load_trace(export.write(tmp_path / "x.sqlite")))
    kineto = analyze(load_trace(kineto_of(export, tmp_path / "x.json")))
    assert (nsys.trace.source, kineto.trace.source) == ("nsys", "kineto")
    assert nsys.counts == kineto.counts
    assert nsys.devices == kineto.devices
    assert nsys.steps == kineto.steps
    assert nsys.counts.launches == 8  # of the four steps that count
    assert nsys.counts.copies.d2h == 4
    assert nsys.devices[0].kernel_busy_ns == 4 * 20_000


FOLDER = Path(__file__).parents[3] / "shared" / "cases" / "nsys"
REFERENCE: dict[str, Any] = {}
if (FOLDER / "reference.json").is_file():
    REFERENCE = json.loads((FOLDER / "reference.json").read_text())


@pytest.mark.skipif(not REFERENCE, reason="the collection of real exports is not here")
@pytest.mark.parametrize("name", REFERENCE)
def test_real_exports(name: str) -> None:
    case = REFERENCE[name]
    with untouched(FOLDER / name):
        trace = load_trace(FOLDER / name)
    roles = [Role(role) for role in trace.api_calls.role]
    assert roles.count(Role.LAUNCH) == case["launches"]
    assert roles.count(Role.GRAPH_LAUNCH) == case["graph_launches"]
    assert roles.count(Role.SYNC) == case["syncs"]
    measured = {str(d.device): d for d in analyze(trace, Options(window="trace")).devices}
    assert set(measured) == set(case["devices"])
    for device, figures in case["devices"].items():
        found = measured[device]
        gpu = trace.gpu_ops
        mine = gpu.device == [str(d.id) for d in trace.devices].index(device)
        kernels = np.isin(gpu.kind, (GpuKind.KERNEL, GpuKind.GRAPH))
        assert np.count_nonzero(mine & kernels) == figures["kernels"]
        assert np.count_nonzero(mine & (gpu.kind == GpuKind.COPY)) == figures["copies"]
        assert found.kernel_busy_ns == figures["kernel_ns"]
        assert found.active_ns == figures["active_ns"]
        # ours begins at the first op's launch, where that is known
        assert gpu.end[mine].max() - gpu.start[mine].min() == figures["window_ns"]
