"""The host's own clock: what it counts, and that its looking around is no part of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from hostgap.profiling import hosttime
from hostgap.profiling.hosttime import HostClock


def busy(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def test_the_clock_does_not_measure_its_own_look_at_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow() -> int:
        busy(0.3)
        return 7

    for looks in ("_running_threads", "_run_delay", "_throttled"):
        monkeypatch.setattr(hosttime, looks, slow)
    with HostClock() as host:
        for _ in range(2):
            host.go_on()
            busy(0.01)
            host.pause()
    times = host.per_step(2)
    assert times.threads == 7
    assert 10e6 <= times.wall_ns < 150e6
    assert 5e6 < times.cpu_ns < 150e6
    assert times.run_delay_ns == times.throttled_ns == 0


def test_a_thread_that_ends_meanwhile_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Path, "glob", lambda *_: (Path(f"/proc/self/task/{i}/stat") for i in range(4))
    )

    def read_text(self: Path, **_: Any) -> str:
        if self.parent.name == "1":
            raise ProcessLookupError
        return f"{self.parent.name} (a (S) b) {'S' if self.parent.name == '2' else 'R'} 1 2 3"

    monkeypatch.setattr(Path, "read_text", read_text)
    assert hosttime._running_threads() == 2
