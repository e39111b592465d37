"""HG404: the allocator's cache is emptied in every step, and filled again."""

from __future__ import annotations

from collections.abc import Iterator

from tests.analysis.build import LAUNCH, Event, call, frame, kernel
from tests.rules.check import findings, repeated, sample

FRAME = "torch/cuda/memory.py(205): empty_cache"


def step(
    t: int, i: int, calls: str = "FFFLAALA", named: bool = False, gap: int = 11_000
) -> Iterator[Event]:
    """Frees (F), allocations (A) and launches (L) of 10 us each, one after another."""
    yield frame("train.py(7): loop", t, t + 95_000)
    if named:
        yield frame(FRAME, t + 100, t + 100 + gap * calls.rfind("F") + 10_800)
    names = {"F": "cudaFree", "A": "cudaMalloc", "L": LAUNCH}
    for k, kind in enumerate(calls):
        at = t + 500 + gap * k
        yield call(names[kind], at, at + 10_000, i + k)
        if kind == "L":
            yield kernel(at + 10_000, at + 12_000, i + k)


def test_fires_on_a_row_of_frees_and_allocations_behind_it() -> None:
    (found,) = findings("HG404", repeated(step, 100_000))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("train.py", "loop")
    assert (found.count_per_step, found.severity) == (1, "error")
    assert found.title == (
        "The allocator's cache is emptied inside steps: 3 frees each time, "
        "and 3 allocations behind them"
    )
    # six calls of 10 us, the last of them hidden or not
    assert found.predicted_saving_ns is not None
    assert 4 * 45_000 < found.predicted_saving_ns < 4 * 65_000


def test_fires_on_one_free_inside_empty_cache() -> None:
    trace = repeated(lambda t, i: step(t, i, "FLALL", named=True), 100_000)
    (found,) = findings("HG404", trace)
    assert "1 frees each time, and 1 allocations" in found.title


def test_tells_an_allocator_that_ran_out_of_memory() -> None:
    (found,) = findings("HG404", repeated(lambda t, i: step(t, i, "LAFFFALL"), 100_000))
    assert found.title.startswith("Memory runs out")
    assert "expandable_segments" in found.advice


def test_silent_on_buffers_that_a_library_takes_and_gives_back() -> None:
    for calls in ("ALFALFAL", "AALFFALL", "LFFFLLLL"):
        trace = repeated(lambda t, i, c=calls: step(t, i, c), 100_000)
        assert findings("HG404", trace) == []


def test_silent_on_real_steps() -> None:
    for name in ("eager.json.gz", "eager_item.sqlite", "gpu_bound.json.gz"):
        assert findings("HG404", sample(name)) == []
