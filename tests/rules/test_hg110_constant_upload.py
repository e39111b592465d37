"""HG110: the same small upload in every step."""

from __future__ import annotations

from hostgap.trace.model import Trace
from tests.analysis.build import H2D
from tests.rules.check import findings, not_applicable, repeated, sample
from tests.rules.waits import PINNED_UP, STEP, TO, copying, sized


def uploads(*sizes: int, name: str = H2D, steps: int = 5) -> Trace:
    return sized(repeated(lambda t, i: copying(t, i, TO, name), STEP, steps), *sizes)


def test_fires_on_the_same_size_in_every_step() -> None:
    (found,) = findings("HG110", uploads(24))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("decode.py", "step")
    assert found.count_per_step == 1.0
    assert found.title == "An upload of 24 bytes in every step: likely a constant"
    # it only informs: the wait is HG104's
    assert (found.severity, found.predicted_saving_ns) == ("info", None)


def test_silent_on_changing_large_pinned_or_unknown_uploads() -> None:
    assert findings("HG110", uploads(24, 32)) == []
    assert findings("HG110", uploads(1 << 20)) == []
    assert findings("HG110", uploads(24, name=PINNED_UP)) == []
    assert findings("HG110", uploads(-1)) == []


def test_silent_where_a_step_lacks_it() -> None:
    def step(t: int, i: int) -> object:
        return copying(t, i, TO, H2D if i % 2_000 == 1 else PINNED_UP)

    assert findings("HG110", sized(repeated(step, STEP, 7), 24)) == []  # type: ignore[arg-type]


def test_its_threshold_can_be_set() -> None:
    assert findings("HG110", uploads(24), **{"max-bytes": 16}) == []


def test_silent_on_real_steps() -> None:
    for name in ("eager.json.gz", "gpu_bound.json.gz", "eager_item.sqlite"):
        assert findings("HG110", sample(name)) == []


def test_needs_steps() -> None:
    assert "steps" in not_applicable("HG110", uploads(24, steps=1))
