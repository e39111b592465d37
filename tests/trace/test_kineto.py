"""Whole small traces: the tables equal a slow, independent reading of the same JSON."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostgap.trace import kineto
from hostgap.trace.load import load_trace
from hostgap.trace.model import CopyKind, GpuKind, HostKind, Memory, Role, Trace

PLACE = {"pid": 7, "tid": 7}
GPU = {"kernel": "KERNEL", "Kernel": "KERNEL", "gpu_memcpy": "COPY", "Memcpy": "COPY"}
GPU |= {"gpu_memset": "MEMSET", "Memset": "MEMSET"}
HOST = {"cpu_op": "OP", "Operator": "OP", "user_annotation": "ANNOTATION", "overhead": "OVERHEAD"}
API = ["cuda_runtime", "cuda_driver", "Runtime"]
IGNORED = ["gpu_user_annotation", "cuda_sync", "Trace", "ac2g"]
LAUNCHING = ["cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync"]
COPIES = ["Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pinned)", "CopyDeviceToHost"]

TIME = st.one_of(
    st.integers(0, 50),
    st.integers(0, 50_000).map(lambda n: Decimal(n) / 1000),
    st.integers(0, 50_000_000).map(lambda n: 1706850122865498 + Decimal(n) / 10**6),
    st.integers(0, 50_000).map(lambda n: str(Decimal(n) / 1000)),
    st.sampled_from([None, "", "x", True, Decimal("1e30")]),
)
DURATION = st.one_of(TIME, st.just(0), st.integers(-20, 0))
ID = st.sampled_from(
    [0, 1, 7, -1, 2**64 - 1, 2**70, 7.0, "stream 7", "stream 13", "Spans", "", None]
)
CORRELATION = st.sampled_from([0, 1, 2, 3, 4, 5, -1, 2**70, "3", 4.0, None])
ARGS = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {},
        optional={
            "correlation": CORRELATION,
            "device": st.sampled_from([0, 1, "x"]),
            "stream": ID,
            "bytes": st.sampled_from([0, 4096, 2**70, "12", None]),
            "graph node id": st.sampled_from([0, 5, None]),
            "kind": st.sampled_from(["HtoD", "", None]),
        },
    ),
)
EVENT = st.builds(
    lambda kind, ts, dur, pid, tid, args: {
        "ph": "X",
        **dict(zip(("cat", "name"), kind, strict=True)),
        "ts": ts,
        "dur": dur,
        "pid": pid,
        "tid": tid,
        "args": args,
    },
    kind=st.one_of(
        st.tuples(st.sampled_from([c for c in GPU if GPU[c] != "COPY"]), st.sampled_from("ab")),
        st.tuples(st.sampled_from(["gpu_memcpy", "Memcpy"]), st.sampled_from(COPIES)),
        st.tuples(st.sampled_from(list(HOST)), st.sampled_from(["aten::add", "step", ""])),
        st.tuples(
            st.sampled_from(API),
            st.sampled_from(
                [*LAUNCHING, "cudaLaunchKernel_v7000", "cudaFree", "cudaLaunchKernel_ptsz"]
            ),
        ),
        st.tuples(st.just("python_function"), st.sampled_from(["a.py(1): f", "C:\\b.py(2): g"])),
        st.tuples(st.sampled_from(IGNORED), st.just("ignored")),
    ),
    ts=TIME,
    dur=DURATION,
    pid=ID,
    tid=ID,
    args=ARGS,
)


class Encoder(json.JSONEncoder):
    """Decimals are written as numbers, digit by digit."""

    def default(self, o: Any) -> Any:
        return f"<{o}>" if isinstance(o, Decimal) else super().default(o)


def dump(events: list[dict[str, Any]]) -> bytes:
    text = json.dumps({"traceEvents": events}, cls=Encoder)
    return re.sub(r'"<([^"]*)>"', r"\1", text).encode()


def load(tmp_path: Path, data: bytes | list[dict[str, Any]]) -> Trace:
    path = tmp_path / "t.json"
    path.write_bytes(data if isinstance(data, bytes) else dump(data))
    return load_trace(path)


# --- the independent reading ----------------------------------------------------------------------


def ns(value: Any) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = Decimal(value) * 1000
    except ArithmeticError:
        return None
    return int(number.to_integral_value(ROUND_HALF_EVEN)) if abs(number) < 2**62 else None


def whole(value: Any) -> int | None:
    """An int of 64 bits, None for anything else."""
    if value is None or value == "":
        return None
    return int(value) if -(2**63) <= int(value) < 2**63 else None


def ident(value: Any) -> Any:
    """An id as it is shown: Decimal comes from json's parse_float."""
    if isinstance(value, Decimal):
        return int(value)
    return "None" if value is None else value


def stream(value: Any) -> Any:
    numbered = re.fullmatch(r"stream (\d+)", value) if isinstance(value, str) else None
    return int(numbered[1]) if numbered else ident(value)


def slow(data: bytes) -> dict[str, Any]:
    events = json.loads(data, parse_float=Decimal)["traceEvents"]
    tables: dict[str, list[Any]] = {"gpu": [], "api": [], "host": [], "frames": []}
    counts: Counter[str] = Counter()
    for e in events:
        start, length, args, cat = ns(e["ts"]), ns(e["dur"]), e["args"] or {}, e["cat"]
        if cat in IGNORED:
            continue
        if start is None or length is None or length >= 2**50:  # 13 days
            counts["unreadable"] += 1
            continue
        end = start + length
        name = re.sub(r"_(v\d{4,5}|ptsz)$", "", e["name"])
        row = [start, end, (ident(e["pid"]), ident(e["tid"])), name]
        if cat in GPU:
            if start == end == 0:
                counts["unset"] += 1
            elif length < 0:
                counts["negative"] += 1
            else:
                device = args.get("device")
                lane = args.get("stream")
                row[2] = (
                    ident(e["pid"] if device is None else device),
                    stream(e["tid"] if lane is None else lane),
                )
                node = whole(args.get("graph node id")) or 0
                size = whole(args.get("bytes"))
                correlation = whole(args.get("correlation"))
                extra = [GPU[cat], -1 if correlation is None else correlation, node]
                tables["gpu"].append([*row, *extra, -1 if size is None else size])
        elif cat in API:
            correlation = whole(args.get("correlation"))
            row[1] = max(start, end)
            tables["api"].append([*row, -1 if correlation is None else correlation])
        elif length < 0:
            counts["negative_host"] += 1
        elif cat in HOST:
            tables["host"].append([*row, HOST[cat]])
        else:
            tables["frames"].append(row)
    return {**tables, "counts": counts}


def launcher(correlation: int, calls: list[Any]) -> Any:
    """The call that a GPU op's correlation id names, if it names exactly one."""
    if correlation <= 0:
        return None
    for launching in (True, False):
        same = [c for c in calls if c[4] == correlation and (c[3] in LAUNCHING) is launching]
        if same:
            return same[0] if len(same) == 1 else None
    return None


def canonical(rows: Any) -> list[str]:
    return sorted(map(repr, rows))


@settings(max_examples=250, deadline=None)
@given(st.lists(EVENT, max_size=14))
def test_tables_equal_a_slow_reading(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, Any]]
) -> None:
    anchor = {"ph": "X", "cat": "cpu_op", "name": "anchor", "ts": 0, "dur": 9, "args": {}, **PLACE}
    data = dump([*events, anchor])  # at least one event that makes it a trace
    expected = slow(data)
    trace = load(tmp_path_factory.mktemp("t"), data)
    threads = [(t.process, t.thread) for t in trace.threads]
    names = trace.names

    host = trace.host_ops
    rows = [
        [s, e, threads[t], names[n], HostKind(k).name]
        for s, e, t, n, k in zip(*(c.tolist() for _, c in host.columns()), strict=True)
    ]
    assert canonical(rows) == canonical(expected["host"])
    rows = [
        [s, e, threads[t], names[n]]
        for s, e, t, n in zip(*(c.tolist() for _, c in trace.frames.columns()), strict=True)
    ]
    assert canonical(rows) == canonical(expected["frames"])
    api = [
        [s, e, threads[t], names[n], c]
        for s, e, t, n, _, c in zip(
            *(c.tolist() for _, c in trace.api_calls.columns()), strict=True
        )
    ]
    assert canonical(api) == canonical(expected["api"])

    gpu = trace.gpu_ops
    rows = []
    for i in range(len(gpu)):
        place = (trace.devices[gpu.device[i]].id, trace.streams[gpu.stream[i]])
        row = [int(gpu.start[i]), int(gpu.end[i]), place, names[gpu.name[i]]]
        row += [GpuKind(gpu.kind[i]).name, int(gpu.correlation[i]), int(gpu.graph_node[i])]
        rows.append([*row, int(gpu.bytes[i])])
        want = launcher(int(gpu.correlation[i]), expected["api"])
        got = api[gpu.call[i]] if gpu.call[i] >= 0 else None
        assert got == want
    assert canonical(rows) == canonical(expected["gpu"])

    for table in (trace.api_calls, host, trace.frames):
        order = list(zip(table.start.tolist(), (-table.end).tolist(), strict=True))
        assert order == sorted(order)
    order = list(zip(gpu.start.tolist(), gpu.end.tolist(), strict=True))
    assert order == sorted(order)
    report = trace.report
    assert report.events == len(events) + 1
    assert report.unreadable_times == expected["counts"]["unreadable"]
    assert report.unset == expected["counts"]["unset"]
    assert report.negative == expected["counts"]["negative"]
    assert report.negative_host == expected["counts"]["negative_host"]


# --- by example -----------------------------------------------------------------------------------


def x(cat: str, name: str, ts: Any = 1, dur: Any = 2, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args, **PLACE}


def calls(trace: Trace) -> list[str | None]:
    """The name of the call behind each GPU op."""
    api = trace.api_calls
    return [trace.names[api.name[c]] if c >= 0 else None for c in trace.gpu_ops.call]


def test_a_launch_is_preferred_to_another_call(tmp_path: Path) -> None:
    events = [x("cuda_runtime", "cudaStreamIsCapturing", correlation=3)]
    events += [
        x("cuda_runtime", "cudaLaunchKernel", correlation=3),
        x("kernel", "k", correlation=3),
    ]
    assert calls(load(tmp_path, events)) == ["cudaLaunchKernel"]
    assert calls(load(tmp_path, [events[0], events[2]])) == ["cudaStreamIsCapturing"]


def test_one_graph_launch_owns_many_kernels(tmp_path: Path) -> None:
    events = [x("cuda_runtime", "cudaGraphLaunch", correlation=9)]
    events += [x("kernel", "k", n, correlation=9, **{"graph node id": n}) for n in range(1, 5)]
    trace = load(tmp_path, events)
    assert calls(trace) == ["cudaGraphLaunch"] * 4
    assert trace.gpu_ops.graph_node.tolist() == [1, 2, 3, 4]
    assert trace.report.ambiguous_correlations == 0


def test_an_id_of_two_launches_joins_nothing(tmp_path: Path) -> None:
    events = [x("cuda_runtime", "cudaLaunchKernel", n, correlation=3) for n in range(2)]
    events += [x("cuda_runtime", "cudaFree", correlation=3)]
    events += [x("cuda_runtime", "cudaLaunchKernel", correlation=0)]  # 0 is no id
    events += [x("kernel", "k", n, correlation=c) for n, c in enumerate((3, 3, 0, 0, 4))]
    trace = load(tmp_path, events)
    assert calls(trace) == [None] * 5
    assert trace.report.ambiguous_correlations == 1


def test_copies(tmp_path: Path) -> None:
    events = [x("gpu_memcpy", name, n, bytes=8) for n, name in enumerate(COPIES)]
    events.append(x("gpu_memcpy", "", 3, kind="PtoP"))
    gpu = load(tmp_path, events).gpu_ops
    H2D, D2H, P2P = CopyKind.H2D, CopyKind.D2H, CopyKind.P2P  # noqa: N806
    assert gpu.copy_kind.tolist() == [H2D, D2H, D2H, P2P]
    device, unknown = Memory.DEVICE, Memory.UNKNOWN
    assert gpu.src_mem.tolist() == [Memory.PAGEABLE, device, device, device]
    assert gpu.dst_mem.tolist() == [device, Memory.PINNED, unknown, device]
    assert gpu.bytes.tolist() == [8, 8, 8, -1]


def test_names_of_threads_and_devices(tmp_path: Path) -> None:
    meta = [("thread_name", 7, {"name": "main"}), ("process_name", 7, {"name": "python"})]
    events = [{"ph": "M", "name": n, "pid": 7, "tid": t, "args": a} for n, t, a in meta]
    events += [x("cpu_op", "aten::add"), x("kernel", "k", device=1, stream=2**64 - 1)]
    top = {
        "deviceProperties": [{"id": 1, "name": "H200"}, "odd", {"id": "x"}],
        "traceEvents": events,
    }
    trace = load(tmp_path, json.dumps(top).encode())
    assert [str(thread) for thread in trace.threads] == ["7/7 main"]
    assert trace.threads[0].process_name == "python"
    assert [(d.id, d.name) for d in trace.devices] == [(1, "H200")]
    assert trace.streams == (2**64 - 1,)
    assert trace.metadata["deviceProperties"] == top["deviceProperties"]


def test_many_devices(tmp_path: Path) -> None:
    events = [x("kernel", "k", n, device=f"GPU {n}") for n in range(40_000)]
    trace = load(tmp_path, events)
    assert len(trace.devices) == 40_000
    assert trace.devices[trace.gpu_ops.device[-1]].id == "GPU 39999"


@pytest.mark.parametrize("key", ["device", "stream"])
@pytest.mark.parametrize("digits", [19, 20, 1000, 5000])
def test_numbers_too_long_for_an_int(tmp_path: Path, key: str, digits: int) -> None:
    number = "9" * digits
    events = [
        {**x("kernel", "k", **{key: number}), "tid": "stream " + number},
        {**x("cpu_op", "a"), "pid": number, "tid": number},
    ]
    trace = load(tmp_path, events)
    kept = int(number) if digits == 19 else number[:1024]
    assert kept == (trace.streams[0] if key == "stream" else trace.devices[0].id)
    assert (trace.threads[0].process, trace.threads[0].thread) == (kept, kept)
    if key == "device":
        text = ("stream " + number)[:1024]
        assert trace.streams == (int(number) if digits == 19 else text,)


def test_long_names_are_cut(tmp_path: Path) -> None:
    long, other = "n" * (64 << 10), "\u00e9" * 5000
    events = [
        *[x("cpu_op", long + str(n), n) for n in range(5)],
        x("cpu_op", long),
        {**x("cpu_op", "short"), "pid": other, "tid": other},
        {"ph": "M", "name": "process_name", "pid": other, "args": {"name": other}},
        {"ph": "M", "name": "thread_name", "pid": other, "tid": other, "args": {"name": other}},
        x("kernel", "k", device=other, stream=other),
    ]
    trace = load(tmp_path, events)
    row = other[:1024]
    assert trace.names == (long, "short", "k")
    assert dataclasses.astuple(trace.threads[1]) == (row,) * 4
    assert (trace.devices[0].id, trace.streams[0]) == (row, row)
    assert trace.report.repaired == {
        "names over 64 KiB": 5,
        "names of threads or processes over 1 KiB": 2,
    }


def test_long_names_do_not_wait_for_a_full_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    add = kineto._Reader.add

    def watch(reader: Any, events: list[Any]) -> None:
        held.append(sum(len(event.name) for event in events))
        add(reader, events)

    monkeypatch.setattr(kineto._Reader, "add", watch)
    trace = load(tmp_path, [x("cpu_op", str(n) + "n" * 1_000_000) for n in range(40)])
    assert len(trace.host_ops) == 40
    assert max(held) < 16 << 20


def test_a_later_list_of_events_replaces_the_first(tmp_path: Path) -> None:
    first, second = (dump([x("kernel", name)]).decode()[1:-1] for name in ("first", "second"))
    trace = load(tmp_path, f"{{{first},{second}}}".encode())
    assert trace.names == ("second",)
    assert len(trace.gpu_ops) == trace.report.events == 1


def test_what_the_report_says(tmp_path: Path) -> None:
    mark = {"ph": "i", "name": "Record Window End", "ts": 9, **PLACE}
    events = [x("cpu_op", "a"), x("Trace", "PyTorch Profiler (0)"), mark, mark]
    events.append(x("mtia_ccp_events", "m"))
    data = dump(events)[:-2] + b', {"ph":"X" oops}, {"ph": "X", "cat": "cpu_op", "x": NaN}, {"ph'
    report = load(tmp_path, data).report
    assert report.events == 6
    assert report.profiler_cycles == 2
    assert report.unread_backend == "MTIA"
    assert report.damaged == 1
    assert report.first_damage.startswith("line 1 column ")
    assert report.repaired == {"non-finite numbers": 1}
    assert report.truncated == "the file ends in the middle of an event"
    assert report.unreadable_times == 1


def test_progress_counts_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(dump([x("cpu_op", "a", n) for n in range(5000)]))
    seen: list[int] = []
    load_trace(path, progress=seen.append)
    assert seen == sorted(seen)
    assert path.stat().st_size // 2 < seen[-1] <= path.stat().st_size


def test_roles_follow_the_stripped_name(tmp_path: Path) -> None:
    names = ["cudaLaunchKernel_v7000", "cudaStreamSynchronize", "cuMemcpyDtoH_v2", "cudaMalloc"]
    trace = load(tmp_path, [x("cuda_runtime", name, n) for n, name in enumerate(names)])
    assert trace.names == ("cudaLaunchKernel", *names[1:])
    assert trace.api_calls.role.tolist() == [Role.LAUNCH, Role.SYNC, Role.COPY, Role.ALLOC]
    assert trace.api_calls.role.dtype == np.int8
