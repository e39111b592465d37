"""HG511: the mask of a grammar is filled between logits and sampler."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import COPY_CALL, H2D, LAUNCH, Event, call, copy, frame, kernel, op
from tests.rules.check import findings, repeated, sample

FILL = "/site-packages/xgrammar/matcher.py(240): fill_next_token_bitmask"


def guided(t: int, i: int, fill: str = FILL, logits_until: int = 60_000) -> Iterator[Event]:
    """Logits, a fill of 200 us, its upload, and the sampler."""
    yield frame("sampler.py(7): sample", t, t + 390_000)
    yield call(LAUNCH, t + 2_000, t + 8_000, i)
    yield kernel(t + 10_000, t + logits_until, i, "logits")
    yield frame(fill, t + 70_000, t + 270_000)
    yield op("aten::copy_", t + 280_000, t + 295_000)
    yield call(COPY_CALL, t + 282_000, t + 288_000, i + 1)
    yield copy(max(t + 290_000, t + logits_until), t + 310_000, i + 1, H2D)
    yield call(LAUNCH, t + 296_000, t + 300_000, i + 2)
    yield kernel(t + 312_000, t + 380_000, i + 2, "sampler")


def test_fires_on_a_fill_that_the_gpu_waits_for() -> None:
    (found,) = findings("HG511", repeated(guided, 400_000))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("sampler.py", "sample")
    assert (found.count_per_step, found.severity) == (1.0, "error")
    assert found.predicted_saving_ns is not None
    assert 4 * 170_000 < found.predicted_saving_ns <= 4 * 201_000


@pytest.mark.parametrize(
    "fill", ["sglang/srt/x.py(9): apply_vocab_mask", "vllm/v1/y.py(9): grammar_bitmask"]
)
def test_fires_on_the_names_of_serving_engines(fill: str) -> None:
    (found,) = findings("HG511", repeated(lambda t, i: guided(t, i, fill), 400_000))
    assert found.severity == "error"


def test_silent_where_the_forward_pass_hides_it() -> None:
    hidden = repeated(lambda t, i: guided(t, i, FILL, 300_000), 400_000)
    assert findings("HG511", hidden) == []


def test_silent_on_other_masks() -> None:
    other = repeated(lambda t, i: guided(t, i, "model.py(3): attention_mask"), 400_000)
    assert findings("HG511", other) == []
    assert findings("HG511", sample("eager.json.gz")) == []
