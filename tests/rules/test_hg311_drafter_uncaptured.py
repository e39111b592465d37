"""HG311: the draft phase of speculative decoding runs without a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import GRAPH, LAUNCH, STREAM_SYNC, Event, call, frame, kernel
from tests.rules.check import findings, repeated, sample

VLLM = "/opt/vllm/v1/spec_decode/eagle.py(120): propose"


def step(t: int, i: int, name: str = VLLM, launch: str = LAUNCH) -> Iterator[Event]:
    """A verification as one graph, and a draft phase of 20 launches with a wait."""
    yield call(GRAPH, t + 1_000, t + 9_000, i)
    yield kernel(t + 9_000, t + 59_000, i)
    yield frame("engine.py(50): speculate", t + 60_000, t + 390_000)
    yield frame(name, t + 70_000, t + 380_000)
    count = 20 if launch == LAUNCH else 1
    for k in range(count):
        at = t + 80_000 + 14_000 * k
        yield call(launch, at, at + 9_000, i + 1 + k)
        yield kernel(at + 9_000, at + 12_000, i + 1 + k)
    yield call(STREAM_SYNC, t + 365_000, t + 375_000, i + 50)


@pytest.mark.parametrize(
    ("name", "place"),
    [(VLLM, "/opt/vllm/v1/spec_decode/eagle.py"), ("worker.py(9): draft_tokens", "worker.py")],
)
def test_fires_on_an_eager_drafter(name: str, place: str) -> None:
    (found,) = findings("HG311", repeated(lambda t, i: step(t, i, name), 400_000))
    assert found.site is not None
    assert (found.site.file, found.count_per_step, found.severity) == (place, 1, "error")
    assert found.title == (
        "The draft phase makes 20 launches outside graphs and waits for the GPU 1 times"
    )
    assert found.predicted_saving_ns is not None
    assert 4 * 180_000 < found.predicted_saving_ns < 4 * 290_000


def test_silent_where_the_drafter_is_a_graph() -> None:
    assert findings("HG311", repeated(lambda t, i: step(t, i, VLLM, GRAPH), 400_000)) == []


def test_silent_on_the_verification_and_without_a_drafter() -> None:
    for name in ("worker.py(9): verify_draft", "worker.py(9): forward"):
        assert findings("HG311", repeated(lambda t, i, n=name: step(t, i, n), 400_000)) == []
    assert findings("HG311", sample("eager.json.gz")) == []
