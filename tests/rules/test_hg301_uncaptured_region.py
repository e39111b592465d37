"""HG301: part of a steady step is launched outside any CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import (
    COPY_CALL,
    D2H,
    GRAPH,
    LAUNCH,
    STREAM_SYNC,
    Event,
    call,
    copy,
    frame,
    kernel,
    op,
)
from tests.rules.check import findings, repeated, sample

H2D_PINNED = "Memcpy HtoD (Pinned -> Device)"


def eager(t: int, i: int, count: int = 40) -> Iterator[Event]:
    """Launches of 10 us, of kernels of 1 us."""
    for k in range(count):
        at = t + k * 10_000
        yield op("aten::add", at, at + 9_500)
        yield call(LAUNCH, at + 4_000, at + 9_000, i + k)
        yield kernel(at + 9_500, at + 10_500, i + k)


def decode(t: int, i: int, sampled: int = 40) -> Iterator[Event]:
    """An upload, one graph, kernels behind it, a download and its wait."""
    yield frame("serve.py(3): run", t, t + 990_000)
    yield call(COPY_CALL, t + 1_000, t + 4_000, i)
    yield copy(t + 5_000, t + 6_000, i, H2D_PINNED)
    yield call(GRAPH, t + 10_000, t + 20_000, i + 1)
    yield kernel(t + 15_000, t + 115_000, i + 1)
    yield frame("serve.py(30): sample", t + 120_000, t + 800_000)
    yield from eager(t + 150_000, i + 10, sampled)
    yield call(COPY_CALL, t + 700_000, t + 704_000, i + 2)
    yield copy(t + 705_000, t + 706_000, i + 2, D2H)
    yield call(STREAM_SYNC, t + 704_500, t + 707_000, i + 3)


def test_fires_once_for_an_eager_step() -> None:
    (found,) = findings("HG301", repeated(eager, 400_000))
    assert found.count_per_step == 40
    assert found.severity == "error"
    assert found.title.startswith("40 launches a step outside any CUDA graph; the GPU idles 89 % ")
    # 400 us a step become one launch of 6 us and 40 nodes of 0.6 us
    assert found.predicted_saving_ns is not None
    assert 4 * 300_000 < found.predicted_saving_ns < 4 * 375_000
    assert found.advice == "Capture it in a CUDA graph."


def test_fires_on_what_stands_behind_the_graph_and_names_its_place() -> None:
    (found,) = findings("HG301", repeated(decode, 1_000_000))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("serve.py", "sample")
    assert (found.count_per_step, found.severity) == (40, "error")
    assert "behind the last graph" in found.title
    assert found.predicted_saving_ns is not None
    assert 4 * 300_000 < found.predicted_saving_ns < 4 * 400_000


def test_names_what_blocks_the_capture() -> None:
    def blocked(t: int, i: int) -> Iterator[Event]:
        yield from eager(t, i, 15)
        yield op("aten::item", t + 151_000, t + 155_000)
        yield call(STREAM_SYNC, t + 152_000, t + 154_000, i + 500)
        yield call("cudaMalloc", t + 156_000, t + 159_000, i + 501)
        yield from eager(t + 160_000, i + 100, 15 + (t // 400_000) % 2)

    (found,) = findings("HG301", repeated(blocked, 400_000))
    assert found.advice == (
        "Capture it in a CUDA graph; what blocks that: aten::item waits for the GPU (1 a step); "
        "cudaMalloc allocates (1 a step); launches change from step to step (30 to 31)."
    )


@pytest.mark.parametrize("name", ["eager.json.gz", "eager_item.sqlite", "compile.json.gz"])
def test_fires_once_on_real_eager_steps(name: str) -> None:
    (found,) = findings("HG301", sample(name))
    assert found.severity == "error"
    assert found.predicted_saving_share is not None
    assert 0.85 < found.predicted_saving_share < 0.95


def test_host_work_inside_is_no_part_of_the_saving() -> None:
    def paused(t: int, i: int) -> Iterator[Event]:
        yield from eager(t, i, 20)
        yield from eager(t + 5_000_000, i + 20, 20)

    (found,) = findings("HG301", repeated(paused, 5_400_000))
    assert found.predicted_saving_ns is not None
    assert found.predicted_saving_ns < 4 * 400_000


def test_its_threshold_can_be_set() -> None:
    assert findings("HG301", repeated(eager, 400_000), **{"min-launches": 41}) == []


def test_silent_on_uploads_and_downloads_around_a_graph() -> None:
    assert findings("HG301", repeated(lambda t, i: decode(t, i, 0), 1_000_000)) == []


@pytest.mark.parametrize(
    "name",
    [
        "gpu_bound.json.gz",
        "cuda_graph.json.gz",
        "compile_graphs.json.gz",
        "cuda_graph_graphs.sqlite",
    ],
)
def test_silent_on_real_steps_in_graphs_and_bound_by_the_gpu(name: str) -> None:
    assert findings("HG301", sample(name)) == []
