"""HG109: a copy asked to be asynchronous, of memory that is not pinned."""

from __future__ import annotations

import pytest

from hostgap.trace.model import Trace
from tests.analysis.build import D2H, H2D
from tests.rules.check import findings, repeated, sample
from tests.rules.waits import PINNED_UP, STEP, TO, copying, sized


def held(name: str, *ops: str) -> Trace:
    """Steps with a copy call that returns when what is queued before it is done."""
    return repeated(lambda t, i: copying(t, i, ops, name, sync=False, held=47_000), STEP)


@pytest.mark.parametrize(("name", "ops"), [(H2D, TO), (D2H, ("aten::copy_",)), (H2D, ())])
def test_fires_where_the_call_holds_the_host(name: str, ops: tuple[str, ...]) -> None:
    (found,) = findings("HG109", sized(held(name, *ops), 1 << 20))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("decode.py", "step")
    assert (found.count_per_step, found.severity) == (1.0, "error")
    assert found.predicted_saving_ns is not None
    assert 4 * 25_000 < found.predicted_saving_ns < 4 * 50_000


def test_a_small_upload_is_staged_at_once_and_costs_nothing() -> None:
    small = sized(repeated(lambda t, i: copying(t, i, TO, H2D, sync=False), STEP), 4_096)
    (found,) = findings("HG109", small)
    assert (found.count_per_step, found.severity, found.predicted_saving_ns) == (1.0, "info", 0)


def test_silent_on_pinned_memory_and_behind_a_synchronize() -> None:
    assert findings("HG109", held(PINNED_UP, *TO)) == []
    assert findings("HG109", repeated(lambda t, i: copying(t, i, TO, H2D), STEP)) == []


@pytest.mark.parametrize("name", ["eager.json.gz", "eager_item.sqlite", "gpu_bound.json.gz"])
def test_silent_on_real_steps(name: str) -> None:
    assert findings("HG109", sample(name)) == []
