"""What the launching thread was doing while the GPU had nothing to do, one cause at a time."""

from __future__ import annotations

import pytest

from hostgap.analysis.examine import Options, examine
from hostgap.trace.model import Trace
from tests.analysis.build import (
    BLOCKING_COPY,
    COPY_CALL,
    DEVICE_SYNC,
    LAUNCH,
    STREAM_SYNC,
    Event,
    build,
    call,
    frame,
    kernel,
    note,
    op,
    overhead,
    steps,
)

WHOLE = Options(window="trace")
OTHER = (1, 2)
# The gap is [100, 900): its kernel is launched at 850 by a call that returns at 860.
BEFORE = [call(LAUNCH, 0, 10, 1), kernel(20, 100, 1)]
AFTER = [call(LAUNCH, 850, 860, 2), kernel(900, 950, 2)]
STEP = frame("user.py(1): step", 0, 1_000)
SETTLED = {"launch_call": 10, "launch_latency": 40}
HOST = 750  # [100, 850), the host's own time


def causes(trace: Trace) -> dict[str, int]:
    by_cause = examine(trace, WHOLE).devices[0].pieces.by_cause()
    return {cause.label: ns for cause, ns in by_cause.items()}


def late(*events: Event) -> dict[str, int]:
    """Causes of the host's 750 ns before the launch, given what the main thread did in them."""
    found = causes(build(BEFORE, AFTER, *events))
    for cause, ns in SETTLED.items():
        found[cause] -= ns
    return {cause: ns for cause, ns in found.items() if ns}


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        (DEVICE_SYNC, "sync"),
        (STREAM_SYNC, "sync"),
        ("cudaEventSynchronize", "sync"),
        (COPY_CALL, "copy_call"),
        (BLOCKING_COPY, "copy_call"),
        ("cudaMemsetAsync", "copy_call"),
        ("cudaMalloc", "alloc"),
        ("cuMemCreate", "alloc"),
        ("cudaHostAlloc", "host_alloc"),
        ("cudaFree", "free"),
        ("cuModuleLoadData", "compile"),
        ("cudaGraphInstantiate", "capture"),
        (LAUNCH, "launch_call"),
        ("cudaEventRecord", "api_call"),
        ("cudaStreamQuery", "api_call"),
        ("cudaOccupancyMaxActiveBlocksPerMultiprocessor", "api_call"),
    ],
)
def test_inside_a_call(name: str, cause: str) -> None:
    assert late(STEP, call(name, 200, 300)) == {cause: 100, "python": HOST - 100}


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("user.py(7): decode", "python"),
        ("torch/_dynamo/convert_frame.py(900): _compile", "compile"),
        ("torch/_inductor/compile_fx.py(500): compile_fx_inner", "compile"),
        ("triton/compiler/compiler.py(220): compile", "compile"),
        ("<built-in function collect>", "gc"),
        ("queue.py(154): get", "input_wait"),
        ("<built-in method acquire of _thread.lock object at 0x7f00>", "input_wait"),
        ("<built-in function sleep>", "input_wait"),
        ("torch/utils/data/dataloader.py(700): __next__", "input_wait"),
        ("zmq/sugar/socket.py(700): recv", "remote_wait"),
        ("multiprocessing/connection.py(250): recv_bytes", "remote_wait"),
    ],
)
def test_inside_a_frame(name: str, cause: str) -> None:
    expected = {cause: 100, "python": HOST - 100} if cause != "python" else {"python": HOST}
    assert late(STEP, frame(name, 200, 300)) == expected


@pytest.mark.parametrize(
    "name",
    ["<built-in method item of Tensor object at 0x7f00>", "<built-in method get of dict object>"],
)
def test_other_built_ins_are_python(name: str) -> None:
    assert late(STEP, frame(name, 200, 300)) == {"python": HOST}


def test_a_framework_op_outside_its_calls() -> None:
    events = [op("aten::mm", 200, 400), call("cudaEventRecord", 250, 300)]
    assert late(STEP, *events) == {"dispatch": 150, "api_call": 50, "python": HOST - 200}


def test_the_innermost_event_counts() -> None:
    nested = [
        op("aten::to", 200, 700),
        op("aten::copy_", 300, 600),
        call(COPY_CALL, 400, 500),
        frame("user.py(9): hook", 310, 320),
    ]
    assert late(STEP, *nested) == {
        "copy_call": 100,
        "dispatch": 400 - 10,
        "python": HOST - 500 + 10,
    }


def test_of_equal_intervals_the_call_is_the_innermost_and_the_frame_the_outermost() -> None:
    tied = [
        call("cudaMalloc", 200, 300),
        op("aten::empty", 200, 300),
        op("aten::mm", 400, 500),
        frame("user.py(9): mm", 400, 500),
    ]
    assert late(STEP, *tied) == {"alloc": 100, "dispatch": 100, "python": HOST - 200}


def test_an_annotation_is_no_framework_op() -> None:
    assert late(STEP, note("forward", 200, 600)) == {"python": HOST}


def test_all_of_compiling_is_compiling_but_for_cuda_calls() -> None:
    events = [
        frame("torch/_inductor/compile_fx.py(500): compile_fx_inner", 200, 600),
        frame("user.py(9): helper", 250, 300),
        op("aten::empty", 350, 400),
        call("cudaMalloc", 450, 500),
    ]
    assert late(STEP, *events) == {"compile": 350, "alloc": 50, "python": HOST - 400}


def test_while_a_thread_captures_its_launches_run_nothing() -> None:
    events = [
        call("cudaStreamBeginCapture", 200, 210),
        op("aten::mm", 220, 300),
        call(LAUNCH, 230, 240, 7),
        call("cudaMalloc", 310, 350),
        call("cudaStreamEndCapture", 390, 400),
        op("aten::mm", 450, 500),
    ]
    assert late(STEP, *events) == {
        "capture": 160,
        "alloc": 40,  # a call that takes effect at once is what it is
        "dispatch": 50,
        "python": HOST - 250,
    }


def test_a_data_loader_in_the_process_is_a_wait_with_all_it_runs() -> None:
    events = [
        op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 200, 600),
        frame("user.py(9): __getitem__", 250, 300),
        op("aten::stack", 350, 400),
    ]
    assert late(STEP, *events) == {"input_wait": 400, "python": HOST - 400}


# --- without stacks, outside everything -----------------------------------------------------------


def test_outside_every_frame_step_and_call() -> None:
    """The trace has stacks, so silence is silence."""
    assert late(frame("user.py(1): warmup", 0, 150)) == {"python": 50, "untraced": HOST - 50}


def test_without_stacks_a_step_is_python() -> None:
    trace = build(BEFORE, AFTER, note("ProfilerStep#0", 300, 310))
    found = causes(trace)
    # the step began at 300: before that nothing is known
    assert found == {"untraced": 200, "python": 550, **SETTLED}


# --- the profiler, kernels being loaded -----------------------------------------------------------


def test_the_profilers_own_work_stops_every_thread() -> None:
    assert late(STEP, overhead("Buffer Flush", 200, 300)) == {"profiler": 100, "python": HOST - 100}


@pytest.mark.parametrize(("process", "stops"), [(1, True), (-1, True), (2, False)])
def test_of_which_process_the_profiler_stops_the_threads(process: int, stops: bool) -> None:
    found = late(STEP, overhead("Buffer Flush", 200, 300, thread=(process, 9)))
    assert found == ({"profiler": 100, "python": HOST - 100} if stops else {"python": HOST})


def test_loading_kernels_is_compiling_whatever_encloses_it() -> None:
    events = [call("cudaFuncSetAttribute", 150, 350), overhead("Lazy Function Loading", 200, 300)]
    assert late(STEP, *events) == {"compile": 100, "api_call": 100, "python": HOST - 200}


def test_overhead_between_nodes_or_in_the_queue_stops_nothing() -> None:
    """With the orders in hand the host may do what it likes."""
    trace = build(
        call(LAUNCH, 0, 1, 1),
        call(LAUNCH, 3, 4, 2),
        kernel(5, 12, 1),
        kernel(100, 120, 2),
        overhead("Buffer Flush", 20, 50),
    )
    assert causes(trace) == {"queue_gap": 88}


# --- hand-offs ------------------------------------------------------------------------------------


def test_a_wait_takes_the_cause_of_the_thread_that_held_it_up() -> None:
    wait = frame("queue.py(154): get", 200, 600)
    producer = [
        frame("user.py(50): tokenize", 180, 400, thread=OTHER),
        op("aten::stack", 400, 500, thread=OTHER),
        frame("<built-in function sleep>", 500, 600, thread=OTHER),
    ]
    assert late(STEP, wait, *producer) == {
        "python": HOST - 400 + 200,
        "dispatch": 100,
        "input_wait": 100,
    }


def test_the_busiest_thread_is_the_helper() -> None:
    wait = frame("queue.py(154): get", 200, 600)
    idle = frame("user.py(60): poll", 200, 210, thread=(1, 3))
    busy = op("aten::stack", 300, 500, thread=OTHER)
    assert late(STEP, wait, idle, busy) == {
        "python": HOST - 400,
        "dispatch": 200,
        "input_wait": 200,
    }


def test_another_processs_thread_is_no_helper() -> None:
    wait = frame("queue.py(154): get", 200, 600)
    stranger = op("aten::stack", 200, 600, thread=(2, 1))
    assert late(STEP, wait, stranger) == {"python": HOST - 400, "input_wait": 400}


def test_a_silent_thread_is_held_up_by_the_steps_thread() -> None:
    """Backward: autograd's thread launches, the main thread's Python decides when."""
    trace = build(
        steps(0, length=1_000),
        frame("user.py(1): train", 0, 1_000),
        call(LAUNCH, 0, 10, 1, thread=OTHER),
        kernel(20, 100, 1),
        op("autograd::engine", 800, 860, thread=OTHER),
        call(LAUNCH, 850, 860, 2, thread=OTHER),
        kernel(900, 950, 2),
    )
    assert causes(trace) == {"python": 700, "dispatch": 50, **SETTLED}


def test_a_silent_thread_waits_with_the_steps_thread() -> None:
    trace = build(
        steps(0, length=1_000),
        frame("queue.py(154): get", 0, 1_000),
        call(LAUNCH, 0, 10, 1, thread=OTHER),
        kernel(20, 100, 1),
        call(LAUNCH, 850, 860, 2, thread=OTHER),
        kernel(900, 950, 2),
    )
    assert causes(trace) == {"input_wait": HOST, **SETTLED}


def test_not_by_that_of_another_process() -> None:
    trace = build(
        steps(0, length=1_000, thread=(2, 1)),
        frame("user.py(1): other", 0, 1_000, thread=(2, 1)),
        BEFORE,
        AFTER,
    )
    assert causes(trace) == {"untraced": HOST, **SETTLED}


def test_the_launching_thread_is_the_one_that_is_swept() -> None:
    """The main thread waits in a sync; the kernel comes from another thread's Python."""
    trace = build(
        BEFORE,
        call(DEVICE_SYNC, 20, 990),
        frame("user.py(3): worker", 0, 1_000, thread=OTHER),
        call(LAUNCH, 850, 860, 2, thread=OTHER),
        kernel(900, 950, 2),
    )
    assert causes(trace) == {"python": HOST, **SETTLED}


# --- sites ----------------------------------------------------------------------------------------


def test_pieces_carry_the_innermost_user_frame_and_the_outermost_op() -> None:
    trace = build(
        BEFORE,
        AFTER,
        STEP,
        frame("user.py(40): sample", 200, 700),
        frame("torch/nn/functional.py(9): softmax", 250, 650),
        op("aten::softmax", 300, 600),
        op("aten::_softmax", 350, 550),
    )
    parts = examine(trace, WHOLE).devices[0].parts
    at = int((parts.start <= 400).sum()) - 1
    assert trace.names[parts.site[at]] == "user.py(40): sample"
    assert trace.names[parts.op[at]] == "aten::softmax"
