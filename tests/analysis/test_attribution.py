"""The rules of attribution, one small trace each: the GPU's own gaps, shadows, streams, devices.

What the host was doing is in test_host_causes.
"""

from __future__ import annotations

import pytest

from hostgap.analysis.analyze import analyze
from hostgap.analysis.causes import Cause
from hostgap.analysis.examine import Analysis, Options, examine
from hostgap.trace.model import Trace
from tests.analysis.build import (
    COPY_CALL,
    D2H,
    DEVICE_SYNC,
    GRAPH,
    H2D,
    LAUNCH,
    STREAM_SYNC,
    Event,
    build,
    call,
    copy,
    frame,
    kernel,
    memset,
    op,
    steps,
    whole_graph,
)

WHOLE = Options(window="trace")
Pieces = list[tuple[int, int, str]]


def pieces(*events: Event | list[Event], options: Options = WHOLE, device: int = 0) -> Pieces:
    """The device's idle pieces as (start, end, cause), neighbours of one cause joined."""
    return joined(examine(build(*events), options), device)


def joined(analysis: Analysis, device: int = 0) -> Pieces:
    parts = analysis.devices[device].parts
    out: Pieces = []
    for start, end, cause in zip(
        parts.start.tolist(), parts.end.tolist(), parts.cause.tolist(), strict=True
    ):
        label = Cause(cause).label
        if out and out[-1][1] == start and out[-1][2] == label:
            out[-1] = (out[-1][0], end, label)
        elif end > start:
            out.append((start, end, label))
    return out


def stream_causes(trace: Trace, stream: int) -> dict[str, int]:
    (device,) = analyze(trace, WHOLE).devices
    (found,) = [s for s in device.streams if s.stream == stream]
    return found.idle_by_cause


FIRST = [call(LAUNCH, 0, 10, 1), kernel(20, 100, 1)]  # the work before the gap


# --- rule 1: between the nodes of a graph ---------------------------------------------------------


def nodes(*starts: int, id: int = 2, length: int = 50) -> list[Event]:
    return [kernel(s, s + length, id, f"n{i}", node=i + 1) for i, s in enumerate(starts)]


def test_between_nodes_of_one_replay() -> None:
    assert pieces(call(GRAPH, 0, 10, 2), nodes(100, 200, 300)) == [
        (150, 200, "graph_internal"),
        (250, 300, "graph_internal"),
    ]


def test_before_the_first_node_the_graphs_launch_is_like_any_other() -> None:
    assert pieces(FIRST, call(GRAPH, 80, 140, 2), nodes(200, 300)) == [
        (100, 140, "launch_call"),
        (140, 200, "launch_latency"),
        (250, 300, "graph_internal"),
    ]


def stall(call_end: int) -> list[Event]:
    """Nodes 50 ns apart, but for one gap of 5,000 ns that ends at 5,350."""
    early = nodes(100, 200, 300)
    late = [kernel(5_350 + 100 * i, 5_400 + 100 * i, 2, f"m{i}", node=9 + i) for i in range(4)]
    return [call(GRAPH, 0, call_end, 2), *early, *late]


def test_nodes_that_wait_for_their_submission() -> None:
    stalled = pieces(stall(call_end=5_350))
    assert (350, 5_350, "launch_call") in stalled
    assert [cause for *_, cause in stalled].count("launch_call") == 1


def test_a_long_gap_after_the_call_returned_is_the_graphs_own() -> None:
    assert (350, 5_350, "graph_internal") in pieces(stall(call_end=5_349))


def test_a_gap_that_is_usual_for_the_graph_is_no_stall() -> None:
    every = nodes(100, 5_150, 10_200, 15_250, 20_300, 25_350, 30_400)
    assert {cause for *_, cause in pieces(call(GRAPH, 0, 40_000, 2), every)} == {"graph_internal"}


def test_a_stall_is_at_least_two_microseconds() -> None:
    """Twenty times the usual 10 ns, and still nothing to speak of."""
    usual = nodes(100, 160, 220, 280, 340, 600)
    assert {cause for *_, cause in pieces(call(GRAPH, 0, 9_000, 2), usual)} == {"graph_internal"}


def test_whole_graphs_are_ended_by_their_launch() -> None:
    """A trace that shows no nodes: the gap before a graph is the host's, as before a kernel."""
    events = [*FIRST, call(GRAPH, 90, 120, 2), whole_graph(150, 300, 2)]
    assert pieces(events) == [(100, 120, "launch_call"), (120, 150, "launch_latency")]


# --- rule 2: orders in hand -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (30, 99, [(100, 300, "queue_gap")]),  # returned before the gap began
        (30, 100, [(100, 300, "launch_latency")]),  # just as it began
        (30, 160, [(100, 160, "launch_call"), (160, 300, "launch_latency")]),
        (30, 300, [(100, 300, "launch_call")]),
        (30, 400, [(100, 300, "launch_call")]),  # ops start before their launch returns
    ],
)
def test_queue_gap_or_launch_latency(start: int, end: int, expected: Pieces) -> None:
    assert pieces(FIRST, call(LAUNCH, start, end, 2), kernel(300, 400, 2)) == expected


def test_an_op_of_no_length_ends_a_gap() -> None:
    """The GPU was reached at 200: what follows waits for the next order."""
    assert pieces(
        FIRST,
        call(LAUNCH, 30, 40, 2),
        kernel(200, 200, 2),
        call(LAUNCH, 180, 220, 3),
        kernel(300, 400, 3),
    ) == [
        (100, 200, "queue_gap"),
        (200, 220, "launch_call"),
        (220, 300, "launch_latency"),
    ]


# --- which op ended the gap -----------------------------------------------------------------------


COMPUTE = [call(LAUNCH, 0, 10, 1), kernel(20, 100, 1)]
LATE_KERNEL = [call(LAUNCH, 250, 280, 3), kernel(300, 400, 3)]


def test_a_side_streams_copy_that_ends_a_gap_says_nothing() -> None:
    """The device idles because the next kernel was launched late, not because of the copy."""
    aside = [call(COPY_CALL, 30, 40, 2), copy(200, 210, 2, H2D, stream=9)]
    python = frame("user.py(1): step", 0, 500)
    assert pieces(COMPUTE, aside, LATE_KERNEL, python) == [
        (100, 200, "python"),
        (210, 250, "python"),
        (250, 280, "launch_call"),
        (280, 300, "launch_latency"),
    ]


def test_a_copy_on_the_compute_stream_ends_a_gap() -> None:
    own = [call(COPY_CALL, 30, 40, 2), copy(200, 210, 2, H2D, stream=7)]
    assert pieces(COMPUTE, own, LATE_KERNEL)[0] == (100, 200, "queue_gap")


def test_a_side_streams_kernel_ends_a_gap() -> None:
    aside = [call(LAUNCH, 30, 40, 2), kernel(200, 210, 2, stream=9)]
    assert pieces(COMPUTE, aside, LATE_KERNEL)[0] == (100, 200, "queue_gap")


def test_a_collective_that_ends_a_gap_says_nothing() -> None:
    aside = [call(LAUNCH, 30, 40, 2), kernel(200, 210, 2, "ncclDevKernel_AllReduce", stream=9)]
    assert pieces(COMPUTE, aside, LATE_KERNEL, frame("user.py(1): step", 0, 500))[0] == (
        100,
        200,
        "python",
    )


def test_a_side_copy_with_no_kernel_after_it_is_all_there_is() -> None:
    aside = [call(COPY_CALL, 30, 40, 2), copy(200, 210, 2, H2D, stream=9)]
    assert pieces(COMPUTE, aside) == [(100, 200, "queue_gap")]


# --- rule 4: no next op, no call ------------------------------------------------------------------


def test_a_gap_with_no_next_op_sweeps_the_steps_thread() -> None:
    """The device works on until 100 in step 1; the other device ends the window at 400."""
    trace = build(
        steps(0, 50, length=25),
        call(LAUNCH, 0, 10, 1),
        kernel(20, 100, 1, device=0),
        call(LAUNCH, 60, 70, 2),
        kernel(100, 400, 2, device=1),
        call(DEVICE_SYNC, 80, 390),
        call("cudaEventRecord", 390, 500),
    )
    assert joined(examine(trace)) == [
        (0, 10, "launch_call"),
        (10, 20, "launch_latency"),
        (100, 390, "sync"),
        (390, 400, "api_call"),
    ]


def test_orphans_before_the_first_launched_op_are_the_queues() -> None:
    assert pieces(kernel(0, 50), kernel(100, 150), call(LAUNCH, 180, 190, 1), kernel(200, 250, 1))[
        0
    ] == (50, 100, "queue_gap")


def test_orphans_after_it_cannot_be_told() -> None:
    assert pieces(FIRST, kernel(300, 400)) == [(100, 300, "unattributable")]


def test_orphans_alone_cannot_be_told() -> None:
    assert pieces(kernel(0, 50), kernel(100, 150)) == [(50, 100, "unattributable")]


# --- rule 5: shadows ------------------------------------------------------------------------------


def item_loop(*, sync: str = STREAM_SYNC) -> list[Event]:
    """Two steps of 1000 ns: kernel, download that the host waits for, then Python."""
    events = [*steps(0, 1_000)]
    for i in range(2):
        at = 1_000 * i
        events += [
            call(LAUNCH, at + 100, at + 110, 10 * i + 1),
            kernel(at + 120, at + 400, 10 * i + 1),
            op("aten::item", at + 200, at + 440),
            call(COPY_CALL, at + 210, at + 220, 10 * i + 2),
            copy(at + 410, at + 420, 10 * i + 2, D2H),
            call(sync, at + 230, at + 430),
        ]
    return events


def shadow(analysis: Analysis) -> Pieces:
    parts = analysis.devices[0].parts
    at = (parts.blame >= 0) & (parts.end > parts.start)
    columns = (parts.start[at].tolist(), parts.end[at].tolist(), parts.cause[at].tolist())
    return [(start, end, Cause(cause).label) for start, end, cause in zip(*columns, strict=True)]


def test_what_follows_a_wait_is_its_shadow() -> None:
    analysis = examine(build(item_loop()), WHOLE)
    parts = analysis.devices[0].parts
    # the gap from 420 to 1120: the wait itself, and then its shadow, until the launch returned
    assert shadow(analysis) == [
        (430, 440, "dispatch"),
        (440, 1_000, "python"),
        (1_000, 1_100, "python"),
        (1_100, 1_110, "launch_call"),
    ]
    assert joined(analysis)[1:] == [
        (420, 430, "sync"),
        (430, 440, "dispatch"),
        (440, 1_100, "python"),
        (1_100, 1_110, "launch_call"),
        (1_110, 1_120, "launch_latency"),
        (1_400, 1_410, "queue_gap"),
    ]
    blamed = {int(call) for call in parts.blame[parts.blame >= 0]}
    assert [analysis.trace.names[analysis.trace.api_calls.name[c]] for c in blamed] == [STREAM_SYNC]


def test_a_shadow_survives_the_windows_edge() -> None:
    """The gap and its wait begin at 420, the window at 1000: a gap is attributed whole."""
    analysis = examine(build(item_loop()), Options(step_marker="Step#1"))
    assert (analysis.devices[0].low, analysis.devices[0].high) == (1_000, 1_420)
    assert shadow(analysis) == [(1_000, 1_100, "python"), (1_100, 1_110, "launch_call")]


def test_a_wait_that_ended_before_the_gap_casts_no_shadow() -> None:
    trace = build(
        call(LAUNCH, 0, 10, 1),
        kernel(20, 100, 1),
        call("cudaEventSynchronize", 30, 90),
        call(LAUNCH, 200, 210, 2),
        kernel(220, 300, 2),
        frame("user.py(1): f", 0, 400),
    )
    assert shadow(examine(trace, WHOLE)) == []


def test_a_blocking_copy_casts_a_shadow() -> None:
    trace = build(
        FIRST,
        call("cudaMemcpy", 30, 130, 2),
        copy(100, 120, 2, D2H),
        call(LAUNCH, 200, 210, 3),
        kernel(220, 300, 3),
        frame("user.py(1): f", 0, 400),
    )
    assert shadow(examine(trace, WHOLE)) == [(130, 200, "python"), (200, 210, "launch_call")]


def test_an_asynchronous_copy_casts_none() -> None:
    trace = build(
        FIRST,
        call(COPY_CALL, 30, 130, 2),
        copy(100, 120, 2, D2H),
        call(LAUNCH, 200, 210, 3),
        kernel(220, 300, 3),
    )
    assert shadow(examine(trace, WHOLE)) == []


def test_a_gap_that_begins_in_the_copy_call_is_the_waits_too() -> None:
    """A pageable download blocks in cudaMemcpyAsync: the wait behind it only confirms."""
    trace = build(
        FIRST,
        call(COPY_CALL, 30, 130, 2),
        copy(100, 120, 2, D2H),
        call(STREAM_SYNC, 132, 140),
        call(LAUNCH, 200, 210, 3),
        kernel(220, 300, 3),
        frame("user.py(1): f", 0, 400),
    )
    assert shadow(examine(trace, WHOLE)) == [(140, 200, "python"), (200, 210, "launch_call")]


# --- several streams and devices ------------------------------------------------------------------


def test_a_stream_that_waits_while_the_device_works() -> None:
    """Both launched at once; the second stream's kernel runs when the first one's is done."""
    trace = build(
        call(LAUNCH, 0, 5, 1),
        call(LAUNCH, 6, 8, 2),
        call(LAUNCH, 9, 10, 3),
        kernel(20, 30, 1, stream=9),
        kernel(20, 200, 2, stream=7),
        kernel(220, 300, 3, stream=9),
    )
    assert stream_causes(trace, 9) == {"dependency": 170, "queue_gap": 20}
    assert joined(examine(trace, WHOLE)) == [(200, 220, "queue_gap")]


def test_while_the_device_works_elsewhere_a_late_launch_costs_the_stream_alone() -> None:
    trace = build(
        call(LAUNCH, 0, 5, 1),
        call(LAUNCH, 6, 8, 2),
        kernel(20, 30, 1, stream=9),
        kernel(20, 150, 2, stream=7),
        call(LAUNCH, 100, 160, 3),
        kernel(170, 200, 3, stream=9),
    )
    idle = {"launch_call": 10, "launch_latency": 10}  # the device's, from 150 to 170
    assert stream_causes(trace, 9) == {"dependency": 120, **idle}
    assert stream_causes(trace, 7) == {"dependency": 30, **idle}


def test_a_graphs_node_on_another_device_is_no_node_started_by_then() -> None:
    """Rule 1 asks for a node that had started when the gap began."""
    spread = [
        call(GRAPH, 150, 160, 2),
        kernel(170, 180, 2, "n1", device=1, node=1),
        kernel(200, 210, 2, "n2", node=2),
    ]
    assert pieces(FIRST, spread, frame("user.py(1): f", 0, 400)) == [
        (100, 150, "python"),
        (150, 160, "launch_call"),
        (160, 200, "launch_latency"),
    ]


def test_two_devices_with_the_same_stream_id() -> None:
    trace = build(
        call(LAUNCH, 0, 10, 1),
        call(LAUNCH, 10, 20, 2),
        kernel(20, 100, 1, device=0, stream=7),
        kernel(30, 60, 2, device=1, stream=7),
        call(LAUNCH, 130, 140, 3),
        kernel(150, 200, 3, device=1, stream=7),
    )
    analysis = examine(trace, WHOLE)
    assert {code: (d.low, d.high, d.gaps.total) for code, d in analysis.devices.items()} == {
        0: (20, 100, 0),
        1: (30, 200, 90),
    }
    assert [list(d.streams) for d in analysis.devices.values()] == [[0], [0]]
    assert list(examine(trace, Options(window="trace", device="1")).devices) == [1]


def test_memsets_and_copies_are_work() -> None:
    trace = build(
        call("cudaMemsetAsync", 0, 10, 1),
        memset(20, 100, 1),
        call(COPY_CALL, 20, 30, 2),
        copy(100, 150, 2),
    )
    assert joined(examine(trace, WHOLE)) == []
