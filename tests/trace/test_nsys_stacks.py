"""Stacks of CUDA calls in Nsight exports: `--cudabacktrace` and `--python-backtrace`."""

from __future__ import annotations

import json
from pathlib import Path

from hostgap.analysis.analyze import analyze
from hostgap.diagnosis.model import Site
from hostgap.trace.model import HostKind
from tests.trace.nsys_build import COPY, LAUNCH, MARK, SYNC, Export, gid
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
        ("sum_dim_IntList", "to_dtype", "add__Tensor", "index_select", "copy_", "_to_copy")
    ):
        chain = f"at::_ops::{symbol}::call(at::Tensor const&)"
        stacked_call(export, LAUNCH, 100 + 50 * i, 120 + 50 * i, i + 1, chain)
        export.kernel(1000 + 50 * i, 1020 + 50 * i, i + 1)
    ops = [name for name, *_ in host(read(export, tmp_path))]
    named = ["aten::sum", "aten::to", "aten::add_", "aten::index_select", "aten::copy_"]
    assert ops == [*named, "aten::_to_copy"]


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
    export = reading_loop()
    trace = read(export, tmp_path, strings=False)
    assert len(trace.api_calls) == 4 * 3
    assert trace.names[trace.frames.name[0]].endswith("(3): " + str(export.text("<module>")))
