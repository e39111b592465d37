"""HG105: the memory is pinned, and the copy waits all the same."""

from __future__ import annotations

from tests.analysis.build import H2D
from tests.rules.check import findings, repeated, sample
from tests.rules.waits import PINNED_DOWN, PINNED_UP, STEP, TO, copying, sized


def test_fires_on_an_upload() -> None:
    for ops in (TO, ()):
        trace = repeated(lambda t, i, o=ops: copying(t, i, o, PINNED_UP), STEP)  # type: ignore[misc]
        (found,) = findings("HG105", trace)
        assert found.site is not None
        assert found.site.function == "step"
        assert (found.count_per_step, found.severity) == (1.0, "error")
        assert found.blocked_ns == 4 * 49_000
        assert found.predicted_saving_ns is not None
        assert 4 * 30_000 < found.predicted_saving_ns < 4 * 50_000
        assert findings("HG104", trace) == []


def test_fires_on_a_copy_into_a_pinned_buffer() -> None:
    trace = repeated(lambda t, i: copying(t, i, ("aten::copy_",), PINNED_DOWN), STEP)
    (found,) = findings("HG105", sized(trace, 4_096))
    assert found.count_per_step == 1.0
    assert findings("HG102", trace) == []


def test_silent_on_pageable_memory_and_on_numbers() -> None:
    assert findings("HG105", repeated(lambda t, i: copying(t, i, TO, H2D), STEP)) == []
    for name in ("eager_item.json.gz", "eager_item.sqlite", "gpu_bound.json.gz"):
        assert findings("HG105", sample(name)) == []


def test_silent_where_it_does_not_wait() -> None:
    trace = repeated(lambda t, i: copying(t, i, TO, PINNED_UP, sync=False), STEP)
    assert findings("HG105", trace) == []
