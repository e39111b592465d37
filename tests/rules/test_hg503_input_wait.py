"""HG503: the launching thread waits for input, a lock or a queue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hostgap.trace.load import load_trace
from tests.analysis.build import LAUNCH, Event, call, frame, kernel, op
from tests.rules.check import findings, repeated, sample

SHARED = Path(__file__).parents[3] / "shared" / "cases" / "kineto"
PUBLIC = SHARED / "nv_v100_2021_resnet50_strtid_w0.pt.trace.json.gz"
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKER = (1, 2)


def queued(t: int, i: int, helper: bool = False) -> Iterator[Event]:
    """A wait of 300 us for the next batch, and a kernel of 100 us."""
    yield frame("train.py(3): loop", t, t + 490_000)
    yield frame("queue.py(154): get", t + 10_000, t + 310_000)
    if helper:
        yield op("aten::stack", t + 20_000, t + 300_000, thread=WORKER)
    yield call(LAUNCH, t + 320_000, t + 328_000, i)
    yield kernel(t + 330_000, t + 430_000, i)


@pytest.mark.parametrize("helper", [False, True])
def test_fires_on_a_queue_whoever_fills_it(helper: bool) -> None:
    (found,) = findings("HG503", repeated(lambda t, i: queued(t, i, helper), 500_000))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("train.py", "loop")
    assert (found.count_per_step, found.severity) == (1.0, "error")
    assert found.predicted_saving_ns is not None
    assert 4 * 270_000 < found.predicted_saving_ns <= 4 * 301_000


def test_fires_once_on_a_loader_and_what_runs_inside_it() -> None:
    def step(t: int, i: int) -> Iterator[Event]:
        yield op(LOADER, t, t + 300_000)
        for k in range(5):
            yield op("aten::div", t + 10_000 + k * 50_000, t + 40_000 + k * 50_000)
        yield call(LAUNCH, t + 320_000, t + 328_000, i)
        yield kernel(t + 330_000, t + 430_000, i)

    (found,) = findings("HG503", repeated(step, 500_000))
    assert found.site is not None
    assert (found.site.op, found.count_per_step, found.severity) == (LOADER, 1.0, "error")


def test_silent_where_another_thread_that_launches_is_busy() -> None:
    def step(t: int, i: int) -> Iterator[Event]:
        yield frame("threading.py(1115): join", t, t + 490_000)
        yield op("aten::mul", t + 10_000, t + 310_000, thread=WORKER)
        yield call(LAUNCH, t + 300_000, t + 308_000, i, thread=WORKER)
        yield kernel(t + 310_000, t + 410_000, i)

    found = findings("HG503", repeated(step, 500_000))
    assert all(one.severity == "info" or one.predicted_saving_share < 0.4 for one in found)


def test_silent_where_nothing_waits() -> None:
    for name in ("eager.json.gz", "gpu_bound.json.gz", "cuda_graph.json.gz", "eager_item.sqlite"):
        assert findings("HG503", sample(name)) == []


@pytest.mark.skipif(not PUBLIC.exists(), reason="needs the public traces")
def test_fires_on_a_public_training_loop() -> None:
    (found,) = findings("HG503", load_trace(PUBLIC))
    assert found.site is not None
    assert found.site.op == LOADER
    assert found.count_per_step == 1.0
    assert found.predicted_saving_share is not None
    assert found.predicted_saving_share > 0.15
