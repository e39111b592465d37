"""HG602: copies from or to pageable memory far below the link's speed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from hostgap.trace.model import GpuKind, Trace
from tests.analysis.build import COPY_CALL, D2H, H2D, LAUNCH, Event, call, copy, frame, kernel
from tests.rules.check import findings, repeated, sample

MIB = 1 << 20


def sized(trace: Trace, size: int) -> Trace:
    """The same trace, with a size for its copies."""
    gpu = trace.gpu_ops
    sizes = np.where(gpu.kind == GpuKind.COPY, size, -1)
    return dataclasses.replace(trace, gpu_ops=dataclasses.replace(gpu, bytes=sizes))


def step(t: int, i: int, name: str = H2D, length: int = 1_000_000) -> Iterator[Event]:
    """A copy in which its call waits, and a kernel."""
    yield frame("data.py(3): load", t, t + length + 40_000)
    yield call(COPY_CALL, t + 1_000, t + length + 10_000, i)
    yield copy(t + 6_000, t + 6_000 + length, i, name)
    yield call(LAUNCH, t + length + 12_000, t + length + 20_000, i + 1)
    yield kernel(t + length + 24_000, t + length + 200_000, i + 1)


@pytest.mark.parametrize(("name", "word"), [(H2D, "up"), (D2H, "down")])
def test_fires_on_a_slow_copy_and_gives_it_the_links_speed(name: str, word: str) -> None:
    trace = sized(repeated(lambda t, i: step(t, i, name), 1_300_000), 4 * MIB)
    (found,) = findings("HG602", trace)
    assert found.site is not None
    assert (found.site.function, found.count_per_step) == ("load", 1.0)
    assert found.title == f"Copies {word} at 4.2 GB/s from pageable memory, 12 GB/s from pinned"
    assert found.severity == "error"
    # 4 MiB at 12 GB/s take 350 us of the 1,000
    assert found.predicted_saving_ns == pytest.approx(4 * 650_000, rel=0.05)


def test_takes_the_links_speed_from_pinned_copies_of_the_trace() -> None:
    def both(t: int, i: int) -> Iterator[Event]:
        yield from step(t, i)
        yield call(COPY_CALL, t + 1_030_000, t + 1_034_000, i + 2)
        yield copy(t + 1_201_000, t + 1_281_000, i + 2, "Memcpy HtoD (Pinned -> Device)")

    (found,) = findings("HG602", sized(repeated(both, 1_300_000), 4 * MIB))
    assert found.title.endswith("52 GB/s from pinned")


def test_silent_on_small_fast_unsized_and_pinned_copies() -> None:
    trace = repeated(lambda t, i: step(t, i), 1_300_000)
    assert findings("HG602", trace) == []
    assert findings("HG602", sized(trace, MIB // 2)) == []
    assert findings("HG602", sized(trace, 10 * MIB)) == []
    pinned = repeated(lambda t, i: step(t, i, "Memcpy HtoD (Pinned -> Device)"), 1_300_000)
    assert findings("HG602", sized(pinned, 4 * MIB)) == []


@pytest.mark.parametrize("name", ["eager_item.json.gz", "gpu_bound.json.gz", "eager_item.sqlite"])
def test_silent_on_real_steps_without_large_copies(name: str) -> None:
    assert findings("HG602", sample(name)) == []
