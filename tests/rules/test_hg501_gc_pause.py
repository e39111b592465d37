"""HG501: Python's garbage collector runs inside the step."""

from __future__ import annotations

from collections.abc import Iterator

from tests.analysis.build import LAUNCH, Event, call, frame, kernel, note
from tests.rules.check import findings, not_applicable, repeated, sample

COLLECT = "<built-in method collect of module object at 0x7f>"


def collecting(t: int, i: int, busy_until: int = 60_000) -> Iterator[Event]:
    """A kernel, a collection of 300 us, and another kernel."""
    yield frame("serve.py(7): step", t, t + 490_000)
    yield call(LAUNCH, t + 2_000, t + 8_000, i)
    yield kernel(t + 10_000, t + busy_until, i)
    yield frame(COLLECT, t + 100_000, t + 400_000)
    yield call(LAUNCH, t + 402_000, t + 408_000, i + 1)
    yield kernel(max(t + 410_000, t + busy_until), t + 480_000, i + 1)


def test_fires_on_a_collection_that_the_gpu_waits_for() -> None:
    (found,) = findings("HG501", repeated(collecting, 500_000))
    assert (found.count_per_step, found.severity) == (1.0, "error")
    assert found.site is not None
    assert found.site.function == "step"
    assert found.predicted_saving_ns is not None
    assert 4 * 250_000 < found.predicted_saving_ns <= 4 * 301_000


def test_fires_on_ranges_without_stacks() -> None:
    def step(t: int, i: int) -> Iterator[Event]:
        for event in collecting(t, i):
            if event.name == COLLECT:
                yield note("gc", event.start, event.end)
            elif event.table != "frame":
                yield event

    (found,) = findings("HG501", repeated(step, 500_000))
    assert (found.count_per_step, found.severity, found.site) == (1.0, "error", None)


def test_harmless_where_the_gpu_has_work_meanwhile() -> None:
    (found,) = findings("HG501", repeated(lambda t, i: collecting(t, i, 440_000), 500_000))
    assert found.severity == "info"


def test_silent_without_a_collection() -> None:
    plain = repeated(lambda t, i: (e for e in collecting(t, i) if e.name != COLLECT), 500_000)
    assert findings("HG501", plain) == []
    for name in ("eager.json.gz", "gpu_bound.json.gz", "cuda_graph.json.gz"):
        assert findings("HG501", sample(name)) == []


def test_silent_where_nothing_could_show_it() -> None:
    assert "gc ranges" in not_applicable("HG501", sample("eager_item.sqlite"))
