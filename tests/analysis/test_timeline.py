"""Lanes: what covers a device or a stream, and where it is idle."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hostgap.analysis.timeline import (
    Lane,
    collectives,
    device_lanes,
    kernels,
    lane,
    streams,
)
from tests.analysis.build import build, copy, kernel, memset, whole_graph

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), min_size=1, max_size=8)


def only(*spans: tuple[int, int]) -> Lane:
    return device_lanes(build([kernel(start, end) for start, end in spans]))[0]


def idle(lane: Lane, low: int, high: int) -> list[tuple[int, int]]:
    gaps = lane.gaps(low, high)
    return list(zip(gaps.start.tolist(), gaps.end.tolist(), strict=True))


@settings(deadline=None)
@given(SPANS, st.integers(0, 40), st.integers(0, 40))
def test_gaps_are_what_no_op_covers(spans: list[tuple[int, int]], low: int, high: int) -> None:
    made = [(start, start + length) for start, length in spans]
    found = idle(only(*made), low, high)
    busy = {t for start, end in made for t in range(start, end)}
    assert {t for start, end in found for t in range(start, end)} == set(range(low, high)) - busy
    # they end where an op begins or the window does, and are as long as can be otherwise
    starts = {start for start, _ in made} | {high}
    points = {start for start, end in made if start == end}
    assert all(start < end for start, end in found)
    assert all(end in starts for _, end in found)
    assert all(not points & set(range(start + 1, end)) for start, end in found)
    assert [start for start, _ in found] == sorted(start for start, _ in found)


def test_ops_of_no_length_cut_gaps_and_bound_the_lane() -> None:
    made = only((0, 0), (10, 20), (30, 30), (40, 40))
    assert (made.first, made.last) == (0, 40)
    assert idle(made, 0, 50) == [(0, 10), (20, 30), (30, 40), (40, 50)]


def test_overlapping_ops_count_once() -> None:
    made = only((0, 10), (5, 20), (7, 9), (20, 30))
    assert made.busy.total == 30
    assert idle(made, 0, 30) == []


def test_kernels_apart_from_copies() -> None:
    trace = build(kernel(0, 10), copy(5, 20), memset(25, 30), whole_graph(40, 60))
    made = device_lanes(trace)[0]
    assert made.busy.total == 45
    assert kernels(trace.gpu_ops, made.rows).total == 30
    assert made.rows.tolist() == [0, 1, 2, 3]


def test_lanes_of_devices_and_ops_of_streams() -> None:
    trace = build(
        kernel(0, 10, stream=7), kernel(5, 30, stream=9), kernel(50, 60, device=3, stream=7)
    )
    lanes = device_lanes(trace)
    assert [trace.devices[code].id for code in lanes] == [0, 3]
    found = [streams(trace.gpu_ops, made.rows) for made in lanes.values()]
    assert [{trace.streams[c]: r.tolist() for c, r in each.items()} for each in found] == [
        {7: [0], 9: [1]},
        {7: [2]},
    ]


def test_a_lane_of_some_rows() -> None:
    trace = build(kernel(0, 10), kernel(20, 30), kernel(40, 50))
    made = lane(trace.gpu_ops, np.array([0, 2]))
    assert idle(made, 0, 50) == [(10, 40)]


def test_collectives_are_kernels() -> None:
    trace = build(
        kernel(0, 1, name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
        kernel(2, 3, name="gemm"),
        kernel(4, 5, name="void cross_device_reduce_1stage<half>"),
        copy(6, 7, name="nccl copy (Device -> Device)"),
    )
    assert collectives(trace).tolist() == [True, False, True, False]


def test_no_ops_no_lanes() -> None:
    assert device_lanes(build()) == {}
    assert collectives(build()).tolist() == []
