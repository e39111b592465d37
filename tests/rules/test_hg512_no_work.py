"""HG512: no request was running."""

from __future__ import annotations

from collections.abc import Iterator

from tests.analysis.build import LAUNCH, Event, call, frame, kernel
from tests.rules.check import findings, repeated, sample

IDLE = "vllm/v1/engine/core.py(912): _process_input_queue"


def waiting(t: int, i: int, engine: str = IDLE) -> Iterator[Event]:
    """An engine without requests for 300 us, and a kernel."""
    yield frame(engine, t + 5_000, t + 315_000)
    yield frame("queue.py(154): get", t + 10_000, t + 310_000)
    yield call(LAUNCH, t + 320_000, t + 328_000, i)
    yield kernel(t + 330_000, t + 430_000, i)


def test_fires_and_is_no_defect() -> None:
    (found,) = findings("HG512", repeated(waiting, 500_000))
    assert (found.count_per_step, found.severity) == (1.0, "info")
    assert "1.24 ms, 62% of the window" in found.title


def test_what_is_no_work_is_no_wait_for_input() -> None:
    assert findings("HG503", repeated(waiting, 500_000)) == []
    busy = repeated(lambda t, i: waiting(t, i, "train.py(3): loop"), 500_000)
    assert findings("HG503", busy) != []


def test_silent_where_there_is_work() -> None:
    busy = repeated(lambda t, i: waiting(t, i, "train.py(3): loop"), 500_000)
    assert findings("HG512", busy) == []
    assert findings("HG512", sample("eager.json.gz")) == []
