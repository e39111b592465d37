"""HG104: data is copied to the GPU from pageable memory."""

from __future__ import annotations

from tests.analysis.build import BLOCKING_COPY, H2D, Event, call, copy
from tests.rules.check import findings, repeated, sample
from tests.rules.waits import PINNED_UP, STEP, TO, copying, work


def test_fires_on_an_upload_and_names_its_place() -> None:
    (found,) = findings("HG104", repeated(lambda t, i: copying(t, i, TO, H2D), STEP))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("decode.py", "step")
    assert (found.count_per_step, found.severity) == (1.0, "error")
    assert found.blocked_ns == 4 * (4_000 + 49_000)  # in the copy, and behind it
    assert found.predicted_saving_ns is not None
    assert 4 * 30_000 < found.predicted_saving_ns < 4 * 50_000


def test_fires_where_the_copy_call_itself_holds_the_host() -> None:
    # more than the staging buffer takes: the call waits for what is queued before it
    trace = repeated(lambda t, i: copying(t, i, TO, H2D, held=47_000), STEP)
    (found,) = findings("HG104", trace)
    assert found.predicted_saving_ns is not None
    assert 4 * 30_000 < found.predicted_saving_ns < 4 * 50_000


def test_fires_without_ops_and_without_a_kind_of_memory() -> None:
    for name in (H2D, "CopyHostToDevice"):
        trace = repeated(lambda t, i, n=name: copying(t, i, (), n), STEP)  # type: ignore[misc]
        (found,) = findings("HG104", trace)
        assert found.count_per_step == 1.0


def test_fires_on_a_blocking_copy() -> None:
    def step(t: int, i: int) -> list[Event]:
        blocking = call(BLOCKING_COPY, t + 12_000, t + 66_000, i + 1)
        return [*work(t, i), blocking, copy(t + 61_000, t + 62_000, i + 1, H2D)]

    (found,) = findings("HG104", repeated(step, STEP))
    assert found.blocked_ns == 4 * 54_000


def test_silent_on_what_does_not_wait_or_is_pinned() -> None:
    assert findings("HG104", repeated(lambda t, i: copying(t, i, TO, H2D, sync=False), STEP)) == []
    assert findings("HG104", repeated(lambda t, i: copying(t, i, TO, PINNED_UP), STEP)) == []
    for name in ("eager.json.gz", "gpu_bound.json.gz", "cuda_graph_graphs.sqlite"):
        assert findings("HG104", sample(name)) == []
