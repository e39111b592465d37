"""A trace per reason, which gives that reason and no other, and the documented table."""

from __future__ import annotations

from pathlib import Path

import pytest

from hostgap.analysis.analyze import analyze
from hostgap.analysis.integrity import REASONS, Integrity, Note, Verdict, captured
from hostgap.trace.model import ReadReport, Thread, Trace
from tests.analysis.build import (
    DEVICE_SYNC,
    GRAPH,
    LAUNCH,
    MAIN,
    Event,
    build,
    call,
    kernel,
    op,
    overhead,
    steps,
    whole_graph,
)

DOCS = Path(__file__).parents[2] / "docs" / "integrity.md"
WORK = [call(LAUNCH, 0, 10, 1), kernel(20, 100, 1), call(LAUNCH, 110, 120, 2), kernel(130, 200, 2)]
MS = 1_000_000


def launches(*at: int) -> list[Event]:
    """Launches whose kernels are not in the trace."""
    return [call(LAUNCH, start, start + 5, 900 + i) for i, start in enumerate(at)]


def server() -> dict[tuple[int, int], Thread]:
    return {MAIN: Thread(*MAIN, name="APIServer", process_name="vllm")}


def wait_for_a_graph() -> list[Event]:
    return [
        call(GRAPH, 0, 10, 1),
        kernel(20, 60, 1, node=1),
        kernel(300_000, 300_010, 1, node=2),
        call(DEVICE_SYNC, 20, 300_020),
    ]


def one_op_hides_steps() -> list[Event]:
    return [*steps(0, 100, 200), call(LAUNCH, 10, 20, 1), kernel(30, 300, 1)]


def long_in_hand(returned: int = 15) -> list[Event]:
    return [
        call(LAUNCH, 0, 10, 1),
        call(LAUNCH, 11, returned, 2),
        kernel(20, 1_000, 1),
        kernel(2 * MS, 2 * MS + 1_000, 2),
    ]


def late_by_turns(gap: int) -> list[Event]:
    """Four kernels whose orders the GPU has in hand, with such gaps between them."""
    calls = [call(LAUNCH, 10 * i, 10 * i + 9, i + 1) for i in range(4)]
    return [*calls, *(kernel(50 + i * gap, 1_050 + i * gap, i + 1) for i in range(4))]


TRACES: dict[str, list[tuple[set[str], Trace]]] = {
    "HG903": [
        ({"HG903"}, build(WORK, launches(400))),  # recording ended
        ({"HG903"}, build(WORK, launches(50))),  # one in the middle
        (
            {"HG903"},
            build(call(GRAPH, 0, 5, 7), kernel(10, 20, 7, node=1), call(GRAPH, 30, 35, 8)),
        ),
    ],
    "HG904": [({"HG904"}, build(call(LAUNCH, 50, 60, 1), kernel(20, 100, 1)))],
    "HG905": [({"HG905"}, build(call(GRAPH, 0, 10, 1), whole_graph(20, 90, 1)))],
    "HG910": [
        ({"HG910"}, build(op("aten::mm", 0, 10))),
        ({"HG910"}, build(launches(0, 10, 20))),
        ({"HG910"}, build(call(DEVICE_SYNC, 0, 10))),
        ({"HG910"}, build(op("a", 0, 1), report=ReadReport(unread_backend="MTIA"))),
        ({"HG910"}, build(call(DEVICE_SYNC, 0, 10), report=ReadReport(missing="no KERNEL table"))),
    ],
    "HG911": [
        ({"HG911"}, build(kernel(0, 10), launches(0, 20))),
        ({"HG911"}, build(kernel(0, 10), call(LAUNCH, 0, 5), call(LAUNCH, 20, 25))),  # without ids
        ({"HG911"}, build(WORK, launches(30, 40, 50))),  # three of five, between the others
    ],
    "HG912": [({"HG912"}, build(kernel(0, 10), call(GRAPH, 20, 30, 1)))],
    "HG913": [
        ({"HG913"}, build(kernel(10, 10), kernel(10, 10))),
        ({"HG913", "HG926"}, build(kernel(10, 10), kernel(50, 50))),
        ({"HG913", "HG923"}, build(launches(0), report=ReadReport(unset=3))),
        ({"HG913", "HG923"}, build(launches(0), report=ReadReport(negative=3))),
    ],
    "HG914": [({"HG910", "HG914"}, build(op("a", 0, 1), threads=server()))],
    "HG920": [({"HG920"}, build(WORK, report=ReadReport(truncated="cut off at byte 7")))],
    "HG921": [({"HG921"}, build(WORK, report=ReadReport(damaged=2, first_damage="line 3")))],
    "HG922": [({"HG922"}, build(WORK, report=ReadReport(repaired={"bare inf": 4})))],
    "HG923": [
        ({"HG923"}, build(WORK, report=ReadReport(unset=3))),
        ({"HG923"}, build(WORK, report=ReadReport(negative=3))),
        ({"HG923"}, build(WORK, report=ReadReport(unreadable_times=3))),
    ],
    "HG924": [({"HG924"}, build(WORK, report=ReadReport(negative_host=1)))],
    "HG925": [({"HG925"}, build(WORK, report=ReadReport(ambiguous_correlations=1)))],
    "HG926": [({"HG926"}, build(WORK, kernel(300, 400)))],
    "HG927": [
        ({"HG927"}, build(WORK, report=ReadReport(losses=("some events might be missing",))))
    ],
    "HG928": [({"HG928"}, build(WORK, report=ReadReport(missing="no RUNTIME table")))],
    "HG930": [({"HG930"}, build(WORK, overhead("Buffer Flush", 105, 108)))],
    "HG931": [
        (
            {"HG931"},
            build(
                steps(0, 100, 200),
                *([call(LAUNCH, s, s + 5, s + 1), kernel(s + 10, s + 50, s + 1)] for s in (0, 200)),
            ),
        )
    ],
    "HG932": [({"HG932"}, build(WORK, report=ReadReport(profiler_cycles=2)))],
    "HG933": [({"HG931", "HG933"}, build(one_op_hides_steps()))],
    "HG934": [({"HG934"}, build(wait_for_a_graph()))],
    "HG935": [
        ({"HG935"}, build(long_in_hand())),
        ({"HG935"}, build(long_in_hand(returned=1_000))),
        ({"HG935"}, build(late_by_turns(300_000))),  # of a step of a millisecond
    ],
}


def codes(trace: Trace) -> list[str]:
    return [reason.code for reason in analyze(trace).trace.integrity.reasons]


def test_every_reason_has_a_trace() -> None:
    assert set(TRACES) == set(REASONS)


@pytest.mark.parametrize("code", REASONS)
def test_reasons(code: str) -> None:
    for expected, trace in TRACES[code]:
        diagnosis = analyze(trace)
        assert code in expected
        assert set(codes(trace)) == expected
        worst = max(REASONS[found].verdict for found in expected)
        assert diagnosis.trace.integrity.verdict == worst.label
        if worst is Verdict.UNMEASURABLE:
            assert diagnosis.cost_factor is None
            assert all(d.kernel_utilization is None and d.reason for d in diagnosis.devices)
        else:
            assert all(d.kernel_utilization is not None for d in diagnosis.devices)


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(WORK, id="nothing to say"),
        pytest.param(
            [
                call("cudaStreamBeginCapture", 0, 1),
                *launches(2, 10),
                call("cudaStreamEndCapture", 20, 21),
                call(GRAPH, 30, 40, 1),
                kernel(50, 60, 1, node=1),
            ],
            id="captured launches run nothing",
        ),
        pytest.param([*WORK, overhead("Buffer Flush", 300, 400)], id="flushed after the window"),
        pytest.param([*WORK, overhead("Lazy Function Loading", 105, 108)], id="kernels loaded"),
        pytest.param(
            [call(LAUNCH, 0, 5, 1), kernel(10, 20, 1), call(DEVICE_SYNC, 20, 500_000)],
            id="a wait with no graph before it",
        ),
        pytest.param(
            [
                call(LAUNCH, 0, 10, 1),
                call(LAUNCH, 11, 15, 2),
                kernel(20, 1_000, 1),
                kernel(100_000, 101_000, 2),
            ],
            id="less than a tenth of a millisecond in hand",
        ),
        pytest.param(late_by_turns(50_000), id="four times so"),
    ],
)
def test_no_reason(events: list[Event]) -> None:
    assert codes(build(events)) == []


def test_capture_is_per_thread() -> None:
    trace = build(
        call("cudaStreamBeginCapture", 0, 1),
        call(LAUNCH, 2, 3, 1),
        call(LAUNCH, 2, 3, 2, thread=(1, 2)),
        call("cudaStreamEndCapture", 4, 5),
        call(LAUNCH, 6, 7, 3),
    )
    api = trace.api_calls
    rows = [int(r) for r in (api.correlation > 0).nonzero()[0]]
    inside = captured(trace, api.correlation.nonzero()[0])
    found = {int(api.correlation[r]): bool(i) for r, i in zip(rows, inside, strict=True)}
    assert found == {1: True, 2: False, 3: False}


def test_the_worst_reason_decides() -> None:
    integrity = Integrity((Note("HG922", ""), Note("HG903", "")))
    assert integrity.verdict is Verdict.PARTIAL
    assert integrity.plus([Note("HG910", "")]).verdict is Verdict.UNMEASURABLE
    assert Integrity(()).verdict is Verdict.OK


def test_the_documentation_has_the_same_table() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in DOCS.read_text(encoding="utf-8").splitlines()
        if line.startswith("| HG")
    ]
    assert [row[:3] for row in rows] == [
        [reason.code, f"`{reason.verdict.label}`", reason.meaning] for reason in REASONS.values()
    ]
    assert all(len(row) == 4 and len(row[3]) > 10 for row in rows)
