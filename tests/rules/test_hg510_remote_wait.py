"""HG510: the launching thread waits for another process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import LAUNCH, Event, call, frame, kernel
from tests.rules.check import findings, repeated, sample

ZMQ = "zmq/sugar/socket.py(771): recv_multipart"
PIPE = "multiprocessing/connection.py(246): recv"


def remote(t: int, i: int, name: str = ZMQ, busy_until: int = 430_000) -> Iterator[Event]:
    """A wait of 300 us for another process, and a kernel."""
    yield frame("worker.py(3): loop", t, t + 490_000)
    yield frame(name, t + 10_000, t + 310_000)
    yield call(LAUNCH, t + 320_000, t + 328_000, i)
    yield kernel(t + 330_000, t + busy_until, i)


@pytest.mark.parametrize("name", [ZMQ, PIPE])
def test_fires_on_a_wait_for_another_process(name: str) -> None:
    (found,) = findings("HG510", repeated(lambda t, i: remote(t, i, name), 500_000))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("worker.py", "loop")
    assert (found.count_per_step, found.severity) == (1.0, "error")
    assert found.predicted_saving_ns is not None
    assert 4 * 270_000 < found.predicted_saving_ns <= 4 * 301_000


def test_silent_where_the_gpu_works_meanwhile() -> None:
    assert findings("HG510", repeated(lambda t, i: remote(t, i, ZMQ, 825_000), 500_000)) == []


def test_silent_without_another_process() -> None:
    assert findings("HG510", repeated(lambda t, i: remote(t, i, "x.py(1): f"), 500_000)) == []
    for name in ("eager.json.gz", "gpu_bound.json.gz", "cuda_graph.json.gz"):
        assert findings("HG510", sample(name)) == []
