"""Exports of Nsight Systems: every table and column they may have, joined as a dict would."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hostgap.analysis.analyze import analyze
from hostgap.trace.load import load_trace
from hostgap.trace.model import CopyKind, GpuKind, HostKind, Memory, Role, Trace
from tests.trace.nsys_build import (
    DRIVER,
    GRAPH_LAUNCH,
    KERNEL,
    LAUNCH,
    MARK,
    START_END,
    SYNC,
    Export,
    gid,
    step_loop,
    untouched,
)


def read(export: Export, folder: Path, **how: Any) -> Trace:
    path = export.write(folder / "x.sqlite", **how)
    with untouched(path):
        return load_trace(path)


def causes(trace: Trace) -> dict[str, int]:
    """Idle time of all devices by cause, without those of none."""
    total: dict[str, int] = defaultdict(int)
    for device in analyze(trace).devices:
        for cause, ns in device.idle_by_cause.items():
            total[cause] += ns
    return {cause: ns for cause, ns in total.items() if ns}


def host(trace: Trace) -> list[tuple[str, int, int, HostKind]]:
    ops = trace.host_ops
    rows = zip(ops.name, ops.start.tolist(), ops.end.tolist(), ops.kind, strict=True)
    return [(trace.names[name], start, end, HostKind(kind)) for name, start, end, kind in rows]


def launchers(trace: Trace) -> list[str | None]:
    return [trace.names[trace.api_calls.name[c]] if c >= 0 else None for c in trace.gpu_ops.call]


def test_a_launch_and_its_kernel(tmp_path: Path) -> None:
    export = Export()
    export.call(LAUNCH, -50, -40, 1)  # the clock's zero is nowhere in particular
    export.kernel(-20, 30, 1, "gemm")
    trace = read(export, tmp_path)
    assert trace.source == "nsys"
    assert launchers(trace) == ["cudaLaunchKernel"]
    assert (trace.gpu_ops.start.tolist(), trace.gpu_ops.end.tolist()) == ([-20], [30])
    assert trace.names[trace.gpu_ops.name[0]] == "gemm"
    assert (trace.threads[0].process, trace.threads[0].thread) == (100, 100)
    assert trace.devices[0].id == 0
    assert trace.streams == (7,)


@pytest.mark.parametrize(
    ("recorded", "name", "role"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel", Role.LAUNCH),
        ("cudaLaunchKernelExC_v11060", "cudaLaunchKernelExC", Role.LAUNCH),
        ("cuLaunchKernel", "cuLaunchKernel", Role.LAUNCH),
        ("cuMemcpyDtoH_v2", "cuMemcpyDtoH_v2", Role.COPY),
        ("cudaMemcpyAsync_ptsz_v7000", "cudaMemcpyAsync", Role.COPY),
        ("cudaGraphLaunch_v10000", "cudaGraphLaunch", Role.GRAPH_LAUNCH),
        ("cudaEventQuery_v3020", "cudaEventQuery", Role.QUERY),
        ("cudaStreamWaitEvent_v3020", "cudaStreamWaitEvent", Role.EVENT),
    ],
)
def test_names_lose_their_versions(tmp_path: Path, recorded: str, name: str, role: Role) -> None:
    export = Export()
    export.call(recorded, 0, 1, 1)
    trace = read(export, tmp_path)
    assert [trace.names[code] for code in trace.api_calls.name] == [name]
    assert trace.api_calls.role.tolist() == [role]


def test_numbering_of_memories_and_directions(tmp_path: Path) -> None:
    memories = [Memory.PAGEABLE, Memory.PINNED, Memory.DEVICE, Memory.ARRAY, Memory.MANAGED]
    memories += [Memory.DEVICE, Memory.MANAGED, Memory.UNKNOWN, Memory.UNKNOWN]
    directions = {1: CopyKind.H2D, 2: CopyKind.D2H, 8: CopyKind.D2D, 9: CopyKind.H2H}
    directions |= {3: CopyKind.H2D, 4: CopyKind.D2H, 10: CopyKind.P2P, 12: CopyKind.D2H}
    directions |= {0: CopyKind.NONE}
    export = Export()
    for i, kind in enumerate(directions):
        export.copy(10 * i, 10 * i + 5, 0, kind, i, 8 - i)
    gpu = read(export, tmp_path).gpu_ops
    assert gpu.copy_kind.tolist() == list(directions.values())
    assert gpu.src_mem.tolist() == memories
    assert gpu.dst_mem.tolist() == memories[::-1]
    assert (gpu.kind == GpuKind.COPY).all()


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    """Schemas before 2021 lack some, and every nullable one may be null."""
    export = Export()
    for i in (1, 2):
        export.add(KERNEL, start=100 * i, end=100 * i + 50, correlationId=i, shortName=None)
        export.call(LAUNCH, 100 * i - 20, 100 * i - 10, i)
    trace = read(export, tmp_path)
    assert launchers(trace) == ["cudaLaunchKernel"] * 2  # of the only process there is
    assert [device.id for device in trace.devices] == [0]
    assert trace.streams == (0,)
    assert trace.gpu_ops.graph_node.tolist() == [0, 0]
    assert trace.gpu_ops.bytes.tolist() == [-1, -1]
    assert analyze(trace).devices[0].kernels == 2


@pytest.mark.parametrize("column", ["demangledName", "shortName", "mangledName"])
def test_the_best_name_there_is(tmp_path: Path, column: str) -> None:
    export = Export()
    row = {"start": 0, "end": 5, "correlationId": 0, "deviceId": 0, "streamId": 0}
    export.add(KERNEL, **row, **{column: export.text("gemm<int>")})
    trace = read(export, tmp_path)
    assert trace.names[trace.gpu_ops.name[0]] == "gemm<int>"


def test_many_strings_are_found_like_few(tmp_path: Path) -> None:
    export = Export()
    for i in range(700):
        export.kernel(10 * i, 10 * i + 5, 0, f"k{i}")
    trace = read(export, tmp_path)
    assert [trace.names[code] for code in trace.gpu_ops.name] == [f"k{i}" for i in range(700)]


def test_devices_of_several_processes(tmp_path: Path) -> None:
    """Two ranks call their GPU 0; the target's table says which one that is."""
    export = Export()
    for pid, gpu in ((100, 0), (200, 5)):
        export.add("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=0, pid=pid)
        export.add("TARGET_INFO_GPU", id=gpu, name=f"H{gpu}")
        export.call(LAUNCH, pid, pid + 5, 1, pid=pid)
        export.kernel(pid + 10, pid + 50, 1, pid=pid)
    export.add("TARGET_INFO_CUDA_DEVICE", gpuId=None, cudaId=3, pid=100)
    export.add("TARGET_INFO_GPU", id=3, name=None)
    export.kernel(900, 950, 0, deviceId=3)
    trace = read(export, tmp_path)
    assert {(d.id, d.name) for d in trace.devices} == {(0, "H0"), (5, "H5"), (3, "")}
    devices = [trace.devices[code].id for code in trace.gpu_ops.device]
    assert devices == [0, 5, 3]
    assert trace.gpu_ops.call.tolist() == [0, 1, -1]
    assert {thread.process for thread in trace.threads} == {100, 200}


def test_threads_have_names(tmp_path: Path) -> None:
    export = Export()
    export.call(LAUNCH, 0, 1, 1, tid=7)
    export.add("ThreadNames", nameId=export.text("python"), priority=20, globalTid=gid(100, 7))
    thread = read(export, tmp_path).threads[0]
    assert (thread.process, thread.thread, thread.name) == (100, 7, "python")


def test_graph_level(tmp_path: Path) -> None:
    export = Export()
    for i in (1, 2):
        export.call(GRAPH_LAUNCH, 1000 * i, 1000 * i + 50, i)
        export.graph(1000 * i + 100, 1000 * i + 600, i)
    trace = read(export, tmp_path)
    diagnosis = analyze(trace)
    assert trace.gpu_ops.kind.tolist() == [GpuKind.GRAPH] * 2
    assert launchers(trace) == ["cudaGraphLaunch"] * 2
    assert diagnosis.devices[0].active_ns == 1000
    assert [reason.code for reason in diagnosis.trace.integrity.reasons] == ["HG905"]


def test_node_level(tmp_path: Path) -> None:
    export = Export()
    export.call(GRAPH_LAUNCH, 0, 50, 1)
    export.kernel(100, 200, 1, graphNodeId=11)
    export.memset(250, 300, 1, graphNodeId=12)
    export.copy(320, 400, 1, 8, 2, 2, graphNodeId=13)
    trace = read(export, tmp_path)
    assert trace.gpu_ops.call.tolist() == [0, 0, 0]
    assert trace.gpu_ops.graph_node.tolist() == [11, 12, 13]
    assert causes(trace)["graph_internal"] == 70


def test_runtime_and_driver_calls(tmp_path: Path) -> None:
    """A library launches through the driver; a runtime call wraps a driver call of another id."""
    export = Export()
    export.call(LAUNCH, 0, 50, 1)
    export.call("cuLaunchKernelEx", 100, 150, 2, table=DRIVER)
    export.call("cudaFuncGetAttributes_v3020", 100, 160, 3)
    export.kernel(60, 70, 1)
    export.kernel(160, 170, 2)
    assert launchers(read(export, tmp_path)) == ["cudaLaunchKernel", "cuLaunchKernelEx"]


def test_an_id_of_several_launches_joins_nothing(tmp_path: Path) -> None:
    export = Export()
    for at, name in enumerate([LAUNCH, LAUNCH, SYNC]):
        export.call(name, 10 * at, 10 * at + 5, 1)
    export.call(LAUNCH, 50, 55, 2)
    export.kernel(60, 70, 1)
    export.kernel(80, 90, 2)
    trace = read(export, tmp_path)
    assert trace.gpu_ops.call.tolist() == [-1, 3]
    assert trace.report.ambiguous_correlations == 1


def test_nvtx_ranges(tmp_path: Path) -> None:
    export = Export()
    export.nvtx("outer", 0, 100)
    export.nvtx("inner", 10, 50, registered=True)
    export.nvtx("aten::add, seq = 12, op_id = 34", 12, 20)
    export.nvtx("aten::mul, op_id = 35, sizes = [[2]]", 22, 30)
    export.nvtx("AddBackward0, seq = 12, op_id = 36", 31, 33)
    export.nvtx("FSDP::pre_forward (blocks.15), op_id = 37", 34, 36)
    export.nvtx("elsewhere", 15, 60, tid=200)  # overlaps those of the other thread
    export.nvtx("mark", 40, 41, MARK)
    export.nvtx("domain", 40, 41, 75)
    export.nvtx("never closed", 40, None)
    export.nvtx("never opened", None, 90)  # type: ignore[arg-type]
    trace = read(export, tmp_path)
    assert host(trace) == [
        ("outer", 0, 100, HostKind.ANNOTATION),
        ("inner", 10, 50, HostKind.ANNOTATION),
        ("aten::add", 12, 20, HostKind.OP),
        ("elsewhere", 15, 60, HostKind.ANNOTATION),
        ("aten::mul", 22, 30, HostKind.OP),
        ("AddBackward0", 31, 33, HostKind.OP),
        ("FSDP::pre_forward (blocks.15)", 34, 36, HostKind.ANNOTATION),
    ]
    threads = [trace.threads[code].thread for code in trace.host_ops.thread]
    assert threads == [100, 100, 100, 200, 100, 100, 100]
    assert not [name for name in trace.names if "op_id" in name or "mark" in name]


def test_texts_stay_with_their_rows_whatever_index_there_is(tmp_path: Path) -> None:
    export = Export()
    for i, text in enumerate(["c", "a", "b"]):
        export.nvtx(text, 10 * i, 10 * i + 5)
    path = export.write(tmp_path / "x.sqlite")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE INDEX mine ON NVTX_EVENTS (text)")
    with untouched(path):
        assert [name for name, *_ in host(load_trace(path))] == ["c", "a", "b"]


def test_start_end_ranges_stack_only_where_they_nest(tmp_path: Path) -> None:
    export = Export()
    export.nvtx("push", 0, 100)
    export.nvtx("nests", 10, 90, START_END)
    export.nvtx("crosses", 50, 150, START_END)
    export.nvtx("around", -50, 120, START_END)  # crosses only another free one
    export.nvtx("crossed", -80, 20, START_END)
    export.nvtx("ends elsewhere", 20, 30, START_END, endGlobalTid=gid(100, 200))
    export.nvtx("ends here", 40, 45, START_END, endGlobalTid=gid(100, 100))
    trace = read(export, tmp_path)
    loose = {t for t, thread in enumerate(trace.threads) if "start/end" in thread.name}
    rows = zip(host(trace), trace.host_ops.thread.tolist(), strict=True)
    nested = {name for (name, *_), thread in rows if thread not in loose}
    assert {"push", "nests", "ends here"} <= nested
    assert not nested & {"crosses", "ends elsewhere", "crossed"}
    assert len(trace.host_ops) == 7  # none is lost
    assert {(trace.threads[t].process, trace.threads[t].thread) for t in loose} == {(100, 100)}


def test_steps_from_ranges(tmp_path: Path) -> None:
    steps = analyze(read(step_loop(6), tmp_path)).steps
    assert (steps.source, steps.total, steps.count) == ("nvtx", 6, 5)


def test_steps_from_ranges_of_several_processes(tmp_path: Path) -> None:
    """Ranks launch alike: the ranges of none of them surround most launches of all."""
    export = step_loop(6)
    for pid in (101, 102):
        for table, rows in step_loop(6).tables.items():
            for row in rows:
                moved = {k: v + (pid - 100 << 24) for k, v in row.items() if k.startswith("global")}
                export.add(table, **row | moved)
    steps = analyze(read(export, tmp_path)).steps
    assert (steps.source, steps.total) == ("nvtx", 6)


def test_steps_whose_backward_pass_another_thread_launches(tmp_path: Path) -> None:
    export = step_loop(6)
    for step in range(6):
        for n in range(6):
            start = 52_000 + step * 100_000 + n * 1_000
            export.call(LAUNCH, start, start + 500, 1000 + 10 * step + n, tid=200)
            export.kernel(start + 600, start + 900, 1000 + 10 * step + n)
    steps = analyze(read(export, tmp_path)).steps
    assert (steps.source, steps.total) == ("nvtx", 6)


def test_steps_from_ranges_that_end_on_another_thread(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    plain = read(step_loop(6), tmp_path / "plain")
    export = step_loop(6)
    for row in export.tables["NVTX_EVENTS"]:
        row |= {"eventType": START_END, "endGlobalTid": gid(100, 200)}
    trace = read(export, tmp_path)
    steps = analyze(trace).steps
    assert (steps.source, steps.total) == ("nvtx", 6)
    assert causes(trace) == causes(plain)


def test_a_name_may_be_an_operator_here_and_a_range_there(tmp_path: Path) -> None:
    export = Export()
    export.nvtx("fwd", 0, 100)
    export.nvtx("fwd, seq = 1, op_id = 2", 10, 20)
    kinds = [kind for *_, kind in host(read(export, tmp_path))]
    assert kinds == [HostKind.ANNOTATION, HostKind.OP]


def test_progress_ends_with_the_file(tmp_path: Path) -> None:
    path = step_loop(6).write(tmp_path / "x.sqlite")
    told: list[int] = []
    load_trace(path, progress=told.append)
    assert told == sorted(told)
    assert told[-1] == path.stat().st_size


def test_blocking_calls_refine_the_idle_time(tmp_path: Path) -> None:
    plain = step_loop()
    waiting = step_loop()
    for step in range(5):
        t = 1000 + step * 100_000
        waiting.osrt("poll", t + 50_000, t + 75_000)
        waiting.osrt("write", t + 91_000, t + 95_000)  # work
        waiting.osrt("futex", t + 45_000, t + 48_000)  # what a synchronize call waits with
        waiting.osrt("poll", t, t + 99_000, tid=300)  # a thread that launches nothing
    (tmp_path / "a").mkdir()
    without, trace = causes(read(plain, tmp_path / "a")), read(waiting, tmp_path)
    waits = [row for row in host(trace) if row[3] == HostKind.WAIT]
    assert {name for name, *_ in waits} == {"poll"}
    refined = causes(trace)
    assert "input_wait" not in without
    assert refined.pop("input_wait") == 4 * 25_000
    assert refined["sync"] == without["sync"]
    assert sum(refined.values()) + 4 * 25_000 == sum(without.values())


def test_profiler_overhead(tmp_path: Path) -> None:
    export = step_loop()
    t = 1000 + 2 * 100_000
    export.overhead("CUPTI Buffer flush", t + 60_000, t + 70_000)
    export.add(
        "CUPTI_ACTIVITY_KIND_OVERHEAD",
        start=t + 80_000,
        end=t + 85_000,
        globalTid=gid(100, 100),
        nameId=export.text("Lazy Function Loading"),
    )
    trace = read(export, tmp_path)
    found = causes(trace)
    assert found["profiler"] == 10_000
    assert found["compile"] == 5_000
    assert "HG930" in [reason.code for reason in analyze(trace).trace.integrity.reasons]


def test_diagnostics(tmp_path: Path) -> None:
    export = step_loop()
    lost = "Some CUPTI events might be missing."
    for text in ("Profiling has started.", lost, lost, "Number of CUDA events collected: 12."):
        export.add("DIAGNOSTIC_EVENT", timestamp=1, severity=1, text=text)
    for i in range(9):
        export.add("DIAGNOSTIC_EVENT", timestamp=1, severity=1, text=f"{i} events lost " * 40)
    trace = read(export, tmp_path)
    assert trace.report.losses[0] == lost
    assert len(trace.report.losses) == 5
    assert max(map(len, trace.report.losses)) <= 201
    codes = [reason.code for reason in analyze(trace).trace.integrity.reasons]
    assert codes.count("HG927") == 5


@pytest.mark.parametrize("table", ["META_DATA_EXPORT", "EXPORT_META_DATA", None])
def test_versions_and_no_environment(tmp_path: Path, table: str | None) -> None:
    export = step_loop()
    if table:
        export.add(table, name="EXPORT_SCHEMA_VERSION", value="3.20.4")
        export.add(table, name="EXPORT_HOST", value="secret")
    export.add("META_DATA_CAPTURE", name="ENVIRONMENT", value="TOKEN=secret")
    export.text("HOME=/root\0TOKEN=secret")
    trace = read(export, tmp_path)
    assert trace.metadata == ({"EXPORT_SCHEMA_VERSION": "3.20.4"} if table else {})
    assert "secret" not in repr((trace.names, trace.metadata, trace.threads))


def test_processes_on_one_gpu_have_streams_of_their_own(tmp_path: Path) -> None:
    export = Export()
    for pid in (100, 200):
        for i in range(3):
            t = 1_000 * i + pid
            export.call(LAUNCH, t, t + 10, i + 1, pid=pid, tid=pid)
            export.kernel(t + 20, t + 400, i + 1, pid=pid)
    (device,) = analyze(read(export, tmp_path)).devices
    assert [stream.stream for stream in device.streams] == ["100/7", "200/7"]
    assert [stream.active_ns for stream in device.streams] == [3 * 380] * 2
    assert device.active_ns == 3 * 480


def test_processes_on_gpus_of_their_own_keep_plain_streams(tmp_path: Path) -> None:
    export = Export()
    for pid in (100, 200):
        export.add("TARGET_INFO_CUDA_DEVICE", gpuId=pid // 100, cudaId=0, pid=pid)
        export.call(LAUNCH, 0, 10, 1, pid=pid, tid=pid)
        export.kernel(20, 400, 1, pid=pid)
    devices = analyze(read(export, tmp_path)).devices
    assert [stream.stream for device in devices for stream in device.streams] == [7, 7]
