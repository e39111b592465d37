"""Stacks of CUDA calls in Nsight exports: `--cudabacktrace` and `--python-backtrace`."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from hostgap.analysis.analyze import analyze
from hostgap.diagnosis.model import Site
from hostgap.trace.load import load_trace
from hostgap.trace.model import HostKind
from tests.trace.nsys_build import COPY, DRIVER, LAUNCH, MARK, SYNC, Export, gid
from tests.trace.test_nsys import causes, host, launchers, read

CHAINS = "CUDA_CALLCHAINS"


def stacked_call(export: Export, name: str, start: int, end: int, id: int, *native: str) -> int:
    """A call as nsys writes it with a stack: the call, and around it a copy with a chain."""
    chain = len(export.tables.get(CHAINS, ()))
    export.call(name, start, end, id, callchainId=None)
    export.call(name.split("_v")[0], start - 3, end + 2, id, callchainId=chain)
    for depth, symbol in enumerate(native):
        module = export.text("libtorch_cpu.so")
        export.add(CHAINS, id=chain, symbol=export.text(symbol), module=module, stackDepth=depth)
    return start - 3


def python_stack(export: Export, start: int, *frames: tuple[str, str, int]) -> None:
    """A mark with Python frames, innermost first."""
    listed = [
        {"Function": export.text(function), "File": export.text(file), "Line": line}
        for function, file, line in frames
    ]
    payload = {"Python Backtrace on CUDA": {"Frames count": len(frames), "Frames": listed}}
    export.nvtx("", start, None, kind=MARK, jsonText=json.dumps(payload))


def reading_loop() -> Export:
    """Steps of a launch, and of an `.item()` two functions deep."""
    export = Export()
    for step in range(4):
        t, i = 1000 + step * 10_000, 1 + step * 10
        export.nvtx(f"step#{step}", t, t + 9_000)
        at = stacked_call(export, LAUNCH, t + 100, t + 500, i, "cudaLaunchKernel", "PyEval")
        python_stack(export, at, ("step", "/w/decode.py", 12), ("<module>", "/w/run.py", 3))
        export.kernel(t + 600, t + 1_000, i)
        native = (
            "at::native::_local_scalar_dense_cuda(at::Tensor const&)",
            "at::_ops::_local_scalar_dense::call(at::Tensor const&)",
            "at::_ops::item::call(at::Tensor const&)",
        )
        at = stacked_call(export, COPY, t + 1_100, t + 1_200, i + 1, *native)
        python_stack(export, at, ("item_of", "/w/decode.py", 30), ("step", "/w/decode.py", 14))
        export.copy(t + 1_300, t + 1_400, i + 1, 2, 2, 1)
        at = stacked_call(export, SYNC, t + 1_250, t + 2_000, i + 2, *native)
        python_stack(export, at, ("item_of", "/w/decode.py", 30), ("step", "/w/decode.py", 14))
    return export


def test_a_call_recorded_twice_counts_once(tmp_path: Path) -> None:
    trace = read(reading_loop(), tmp_path)
    assert len(trace.api_calls) == 4 * 3
    assert launchers(trace)[:2] == ["cudaLaunchKernel", "cudaMemcpyAsync"]
    assert trace.report.ambiguous_correlations == 0
    # the call itself, without the time that taking its stack took
    assert (trace.api_calls.end - trace.api_calls.start)[:2].tolist() == [400, 100]


def test_a_stack_on_the_call_itself_is_its_own(tmp_path: Path) -> None:
    export = Export()
    export.call(LAUNCH, 10, 20, 1, callchainId=7)
    export.call(LAUNCH, 30, 40, 2, callchainId=None)
    symbol = export.text("at::_ops::add_Tensor::call(at::Tensor const&)")
    export.add(CHAINS, id=7, symbol=symbol, module=symbol, stackDepth=0)
    export.kernel(50, 60, 1)
    export.kernel(70, 80, 2)
    trace = read(export, tmp_path)
    assert len(trace.api_calls) == 2
    assert host(trace) == [("aten::add", 10, 20, HostKind.OP)]


def test_equal_ids_of_two_threads_stay_two_calls(tmp_path: Path) -> None:
    export = Export()
    stacked_call(export, LAUNCH, 100, 200, 1)
    export.call(LAUNCH, 120, 180, 1, pid=200, tid=200, callchainId=None)
    export.add(CHAINS, id=9, symbol=0, module=0, stackDepth=0)
    export.kernel(300, 400, 1)
    assert len(read(export, tmp_path).api_calls) == 2


def test_lines_and_ops_of_a_wait(tmp_path: Path) -> None:
    diagnosis = analyze(read(reading_loop(), tmp_path))
    (wait,) = diagnosis.syncs
    where = Site(
        file="/w/decode.py", line=30, function="item_of", op=None, precision="call"
    )  # the innermost function
    assert (wait.site, wait.copy, wait.count) == (where, "d2h", 3)


def test_without_the_payload_ops_say_where(tmp_path: Path) -> None:
    export = reading_loop()
    for row in export.tables["NVTX_EVENTS"]:
        row["jsonText"] = None
    (wait,) = analyze(read(export, tmp_path)).syncs
    assert wait.site is not None
    assert wait.site.op == "aten::item > aten::_local_scalar_dense"


def test_stacks_of_calls_say_nothing_of_the_time_between(tmp_path: Path) -> None:
    found = causes(read(reading_loop(), tmp_path))
    assert "python" not in found
    assert "dispatch" not in found
    assert found["untraced"] > 0


def test_overloads_are_left_off(tmp_path: Path) -> None:
    export = Export()
    for i, symbol in enumerate(
        (
            "sum_dim_IntList",
            "to_dtype",
            "add__Tensor",
            "index_select",
            "copy_",
            "_to_copy",
            "std_correction",
        )
    ):
        chain = f"at::_ops::{symbol}::call(at::Tensor const&)"
        stacked_call(export, LAUNCH, 100 + 50 * i, 120 + 50 * i, i + 1, chain)
        export.kernel(1000 + 50 * i, 1020 + 50 * i, i + 1)
    ops = [name for name, *_ in host(read(export, tmp_path))]
    named = ["aten::sum", "aten::to", "aten::add_", "aten::index_select", "aten::copy_"]
    assert ops == [*named, "aten::_to_copy", "aten::std"]


def test_payloads_of_other_marks_are_left_alone(tmp_path: Path) -> None:
    export = reading_loop()
    start = export.tables["NVTX_EVENTS"][1]["start"]
    for text in ("{", "[1]", '{"Frames": 3}', '{"Python Backtrace on CUDA": null}', "\udcff"[:0]):
        export.add(
            "NVTX_EVENTS",
            start=start + 1,
            eventType=MARK,
            globalTid=gid(100, 100),
            jsonText=text,
        )
    assert len(read(export, tmp_path).frames) == 4 * (2 + 2 + 2)


def test_strings_that_are_missing_do_not_stop_it(tmp_path: Path) -> None:
    """Without names nothing says which calls are one; the stacks stay with their copies."""
    export = reading_loop()
    trace = read(export, tmp_path, strings=False)
    assert trace.names[trace.frames.name[0]].endswith("(3): " + str(export.text("<module>")))


def test_twins_need_no_table_of_chains(tmp_path: Path) -> None:
    export = reading_loop()
    del export.tables[CHAINS]
    assert len(read(export, tmp_path).api_calls) == 4 * 3


def test_twins_of_driver_calls(tmp_path: Path) -> None:
    export = Export()
    for i in range(3):
        t = 1_000 * i
        export.call("cuLaunchKernel", t + 100, t + 300, i + 1, table=DRIVER, callchainId=None)
        export.call("cuLaunchKernel", t + 97, t + 302, i + 1, table=DRIVER, callchainId=i)
        export.kernel(t + 400, t + 500, i + 1)
    assert len(read(export, tmp_path).api_calls) == 3


def test_a_process_that_died_inside_a_call(tmp_path: Path) -> None:
    export = Export()
    export.call(LAUNCH, 0, 10, 1, callchainId=None)
    export.kernel(20, 30, 1)
    export.call("cudaDeviceSynchronize", 40, None, 2, callchainId=0)
    export.call("cudaDeviceSynchronize_v3020", 43, None, 2, callchainId=None)
    assert len(read(export, tmp_path).api_calls) == 2


def test_a_call_inside_another_is_no_twin(tmp_path: Path) -> None:
    export = Export()
    export.call("cudaLaunchKernel_v7000", 100, 300, 1, callchainId=0)
    export.call("cuLaunchKernel", 110, 290, 1, callchainId=None)
    export.kernel(400, 500, 1)
    trace = read(export, tmp_path)
    names = [trace.names[name] for name in trace.api_calls.name]
    assert names == ["cudaLaunchKernel", "cuLaunchKernel"]


@pytest.mark.parametrize("id", [0, None])
def test_twins_without_an_id(tmp_path: Path, id: int | None) -> None:
    export = Export()
    for i in range(3):
        t = 1_000 * i
        export.call("cudaEventQuery", t + 97, t + 302, id, callchainId=i)
        export.call("cudaEventQuery_v3020", t + 100, t + 300, id, callchainId=None)
    export.call(LAUNCH, 5_000, 5_100, 9, callchainId=None)
    export.kernel(5_200, 5_300, 9)
    assert len(read(export, tmp_path).api_calls) == 4


def test_payloads_among_the_strings(tmp_path: Path) -> None:
    export = reading_loop()
    for row in export.tables["NVTX_EVENTS"]:
        if row.get("jsonText"):
            row["jsonTextId"] = export.text(row["jsonText"])
            row["jsonText"] = None
    assert len(read(export, tmp_path).frames) == 4 * 6


def test_a_payload_nested_without_end_is_left_alone(tmp_path: Path) -> None:
    export = reading_loop()
    mark = next(row for row in export.tables["NVTX_EVENTS"] if row.get("jsonText"))
    mark["jsonText"] = '{"x":' * 100_000 + "1" + "}" * 100_000
    assert len(read(export, tmp_path).frames) == 4 * 6 - 2


def test_a_frame_without_a_line_keeps_its_stack(tmp_path: Path) -> None:
    export = reading_loop()
    for row in export.tables["NVTX_EVENTS"]:
        if row.get("jsonText"):
            row["jsonText"] = row["jsonText"].replace('"Line": 14', '"Line": null')
    assert len(read(export, tmp_path).frames) == 4 * 6


def test_string_ids_that_are_no_integers(tmp_path: Path) -> None:
    export = reading_loop()
    for i in range(60):
        export.text(f"at::_ops::op{i}::call(x)")
    path = export.write(tmp_path / "x.sqlite")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("ALTER TABLE StringIds RENAME TO old")
        database.execute("CREATE TABLE StringIds (id, value TEXT)")
        database.execute("INSERT INTO StringIds SELECT * FROM old")
        database.execute("UPDATE StringIds SET id = CAST(id AS TEXT) WHERE value GLOB 'at::*item*'")
    assert len(load_trace(path).api_calls) == 4 * 3
