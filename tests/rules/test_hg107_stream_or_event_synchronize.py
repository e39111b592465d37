"""HG107: the user's code waits for a stream or an event."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import LAUNCH, STREAM_SYNC, Event, call, frame, kernel
from tests.rules.check import findings, repeated, sample
from tests.rules.waits import PINNED_UP, STEP, TO, copying, synchronizing

EVENT_SYNC = "cudaEventSynchronize"


@pytest.mark.parametrize("name", [STREAM_SYNC, EVENT_SYNC, "hipStreamSynchronize"])
def test_fires_on_the_users_own(name: str) -> None:
    (found,) = findings("HG107", repeated(lambda t, i: synchronizing(t, i, name), STEP))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("decode.py", "step")
    assert (found.count_per_step, found.severity) == (1.0, "error")
    assert found.blocked_ns == 4 * 50_000
    assert found.predicted_saving_ns is not None
    assert 4 * 25_000 < found.predicted_saving_ns < 4 * 50_000


def test_waiting_for_the_step_before_costs_nothing() -> None:
    def step(t: int, i: int) -> Iterator[Event]:
        # the GPU is a step behind: the host waits for what it launched a step ago
        yield frame("decode.py(7): step", t, t + 99_000)
        yield call(LAUNCH, t + 1_000, t + 8_000, i)
        yield kernel(t + 103_000, t + 202_500, i)
        yield call(EVENT_SYNC, t + 9_000, t + 90_000, i + 1)

    (found,) = findings("HG107", repeated(step, STEP, 8))
    assert (found.count_per_step, found.severity) == (1.0, "info")


def test_silent_inside_an_op_and_behind_its_copy() -> None:
    inside = repeated(lambda t, i: synchronizing(t, i, STREAM_SYNC, "aten::linalg_eigh"), STEP)
    assert findings("HG107", inside) == []
    behind = repeated(lambda t, i: copying(t, i, TO, PINNED_UP), STEP)
    assert findings("HG107", behind) == []


@pytest.mark.parametrize("name", ["eager_item.json.gz", "eager_item.sqlite", "gpu_bound.json.gz"])
def test_silent_on_real_steps(name: str) -> None:
    assert findings("HG107", sample(name)) == []
