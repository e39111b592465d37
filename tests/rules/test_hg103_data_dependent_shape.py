"""HG103: a shape depends on values."""

from __future__ import annotations

import pytest

from tests.analysis.build import D2H, H2D
from tests.rules.check import findings, repeated, sample
from tests.rules.waits import PINNED_DOWN, STEP, TO, copying

ITEM = ("aten::item", "aten::_local_scalar_dense")


@pytest.mark.parametrize(
    ("ops", "name"),
    [
        (("aten::index", "aten::nonzero"), PINNED_DOWN),
        (("aten::one_hot", *ITEM), PINNED_DOWN),
        (("aten::_unique2", *ITEM), PINNED_DOWN),
        (("aten::bincount", *TO), D2H),
    ],
)
def test_fires_on_sizes_read_back(ops: tuple[str, ...], name: str) -> None:
    trace = repeated(lambda t, i: copying(t, i, ops, name), STEP)
    (found,) = findings("HG103", trace)
    assert found.site is not None
    assert found.site.function == "step"
    assert (found.count_per_step, found.severity) == (1.0, "error")
    assert found.predicted_saving_ns is not None
    assert 4 * 30_000 < found.predicted_saving_ns < 4 * 50_000
    assert findings("HG101", trace) == findings("HG102", trace) == []


def test_silent_on_a_number_and_on_a_tensor() -> None:
    for ops, name in ((ITEM, PINNED_DOWN), (TO, D2H)):
        assert (
            findings("HG103", repeated(lambda t, i, o=ops, n=name: copying(t, i, o, n), STEP)) == []
        )  # type: ignore[misc]
    assert findings("HG103", sample("eager_item.json.gz")) == []


def test_silent_on_an_upload_inside() -> None:
    ops = ("aten::repeat_interleave", *TO)
    trace = repeated(lambda t, i: copying(t, i, ops, H2D), STEP)
    assert findings("HG103", trace) == []
    assert len(findings("HG104", trace)) == 1
