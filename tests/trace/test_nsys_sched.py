"""Threads off the CPU, from the scheduling events of Nsight exports."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hostgap.trace.model import HostKind
from tests.trace.nsys_build import LAUNCH, SYNC, Export, gid, step_loop
from tests.trace.test_nsys import causes, host, read


def away(export: Export, start: int, end: int, state: int = 0, tid: int = 100) -> None:
    """The thread leaves the CPU and comes back."""
    for time, scheduled_in in ((end, 1), (start, 0)):  # in no order
        export.add(
            "SCHED_EVENTS",
            start=time,
            cpu=3,
            isSchedIn=scheduled_in,
            globalTid=gid(100, tid),
            threadState=state,
        )


def late_launch() -> Export:
    """Two kernels; the second launch comes 5,000 ns after the first is done."""
    export = Export()
    export.call(LAUNCH, 0, 100, 1)
    export.kernel(200, 1_000, 1)
    export.call(LAUNCH, 6_000, 6_400, 2)
    export.kernel(6_500, 7_000, 2)
    return export


def test_off_the_cpu_is_preempted(tmp_path: Path) -> None:
    export = late_launch()
    away(export, 2_000, 5_000)
    assert causes(read(export, tmp_path)) == {
        "untraced": 2_000,
        "preempted": 3_000,
        "launch_call": 400 + 100,  # of both launches
        "launch_latency": 100 + 100,
    }


def test_inside_a_launch_too(tmp_path: Path) -> None:
    export = late_launch()
    away(export, 6_100, 6_300)
    assert causes(read(export, tmp_path))["preempted"] == 200


def test_asleep_is_waiting(tmp_path: Path) -> None:
    export = late_launch()
    away(export, 2_000, 5_000, state=2)
    found = causes(read(export, tmp_path))
    assert (found["input_wait"], "preempted" in found) == (3_000, False)


def test_waits_that_are_known_keep_their_cause(tmp_path: Path) -> None:
    export = late_launch()
    export.call(SYNC, 1_500, 3_000, 3)
    away(export, 1_600, 2_900)
    export.osrt("poll", 3_500, 4_500)
    away(export, 3_600, 4_400)
    found = causes(read(export, tmp_path))
    assert "preempted" not in found
    assert (found["sync"], found["input_wait"]) == (1_500, 1_000)


def test_a_thread_that_does_something_is_not_off_the_cpu(tmp_path: Path) -> None:
    export = late_launch()
    away(export, 2_000, 6_200)  # the launch begins meanwhile
    assert "preempted" not in causes(read(export, tmp_path))


def test_of_another_thread_says_nothing(tmp_path: Path) -> None:
    export = late_launch()
    away(export, 2_000, 5_000, tid=101)
    assert "preempted" not in causes(read(export, tmp_path))


@given(st.lists(st.tuples(st.integers(0, 600_000), st.integers(0, 50_000)), max_size=20))
def test_any_scheduling_events(tmp_path_factory, spans) -> None:  # type: ignore[no-untyped-def]
    """Whatever they are, the sum rule holds (analyze checks it), and no other cause grows."""
    export, plain = step_loop(), step_loop()
    for start, length in spans:
        away(export, start, start + length)
    before = causes(read(plain, tmp_path_factory.mktemp("a")))
    trace = read(export, tmp_path_factory.mktemp("b"))
    after = causes(trace)
    assert sum(after.values()) == sum(before.values())
    assert all(after[c] <= before[c] for c in after if c != "preempted")
    off = [(start, end) for _, start, end, kind in host(trace) if kind == HostKind.OFF_CPU]
    assert all(start < end for start, end in off)


def test_in_and_out_again_at_once_is_off_all_the_time(tmp_path: Path) -> None:
    export = late_launch()
    away(export, 2_000, 3_500)
    away(export, 3_500, 5_000)
    assert causes(read(export, tmp_path))["preempted"] == 3_000


def test_threads_that_do_nothing_here_are_left_out(tmp_path: Path) -> None:
    export = late_launch()
    away(export, 2_000, 5_000, tid=999)
    assert [thread.thread for thread in read(export, tmp_path).threads] == [100]
