"""What the launching thread did, without a profiler: from the kernel's own counters.

Linux: `/proc/thread-self/schedstat` (run delay), `getrusage(RUSAGE_THREAD)`, cgroup v2 `cpu.stat`.
Where one of them is missing the figure is None.
"""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from hostgap.cores import usable_cores
from hostgap.profiling.measurement import HostTimes

if os.name == "posix":
    import resource


class _Counters(NamedTuple):
    wall_ns: int
    cpu_ns: int
    run_delay_ns: int | None
    throttled_ns: int | None
    switches: int


class HostClock:
    """Sums up what the thread did while it goes; use as a context manager, paused at first."""

    def __init__(self) -> None:
        self._total = _Counters(0, 0, 0, 0, 0)
        self._since: _Counters | None = None
        self._gc_ns = self._collections = 0
        self._threads = 1
        self._gc_began = 0

    def __enter__(self) -> HostClock:
        gc.callbacks.append(self._collected)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.pause()
        gc.callbacks.remove(self._collected)

    def go_on(self) -> None:
        """Count from here on."""
        # the thread's times last: reading the other counters takes milliseconds where /proc is slow
        self._since = _read()._replace(cpu_ns=time.thread_time_ns(), wall_ns=time.perf_counter_ns())

    def pause(self) -> None:
        """Count no further."""
        if self._since is None:
            return
        now, total, since = _read(), self._total, self._since
        self._total = _Counters(
            total.wall_ns + now.wall_ns - since.wall_ns,
            total.cpu_ns + now.cpu_ns - since.cpu_ns,
            _sum(total.run_delay_ns, now.run_delay_ns, since.run_delay_ns),
            _sum(total.throttled_ns, now.throttled_ns, since.throttled_ns),
            total.switches + now.switches - since.switches,
        )
        self._since = None
        self._threads = max(self._threads, _running_threads())  # a file each: no part of the time

    def per_step(self, steps: int) -> HostTimes:
        """The sums, by `steps`."""
        self.pause()
        total = self._total
        return HostTimes(
            wall_ns=total.wall_ns / steps,
            cpu_ns=total.cpu_ns / steps,
            run_delay_ns=None if total.run_delay_ns is None else total.run_delay_ns / steps,
            throttled_ns=None if total.throttled_ns is None else total.throttled_ns / steps,
            involuntary_switches=total.switches / steps,
            gc_ns=self._gc_ns / steps,
            gc_collections=self._collections / steps,
            threads=self._threads,
            cores=usable_cores(),
        )

    def _collected(self, phase: str, _: dict[str, Any]) -> None:
        if self._since is None:
            return
        if phase == "start":
            self._gc_began = time.perf_counter_ns()
        else:
            self._gc_ns += time.perf_counter_ns() - self._gc_began
            self._collections += 1


def _sum(total: int | None, now: int | None, since: int | None) -> int | None:
    return None if total is None or now is None or since is None else total + now - since


def _read() -> _Counters:
    switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw if os.name == "posix" else 0
    return _Counters(
        time.perf_counter_ns(), time.thread_time_ns(), _run_delay(), _throttled(), switches
    )


def _run_delay() -> int | None:
    try:
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return None  # not Linux, or built without schedstats


def _throttled() -> int | None:
    try:
        text = Path("/sys/fs/cgroup/cpu.stat").read_text(encoding="ascii")
    except OSError:
        return None
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == "throttled_usec":
            return int(value) * 1_000
    return None


def _running_threads() -> int:
    """Threads of this process that are running or ready at this moment; 1 where unknown."""
    running = 0
    for status in Path("/proc/self/task").glob("*/stat"):
        try:
            text = status.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # the thread ended meanwhile
        # the state follows the name, which may hold anything, in parentheses
        running += text.rpartition(")")[2].startswith(" R")
    return max(1, running)
