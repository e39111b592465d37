"""HG101: a number is read back from the GPU."""

from __future__ import annotations

from collections.abc import Iterator

from tests.analysis.build import (
    COPY_CALL,
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

PINNED = "Memcpy DtoH (Device -> Pinned)"


def read_of(t: int, i: int, name: str = "aten::item") -> Iterator[Event]:
    """A kernel, and a read of its result that waits for it."""
    yield frame("decode.py(7): step", t, t + 90_000)
    yield op("aten::mul", t, t + 9_000)
    yield call(LAUNCH, t + 1_000, t + 8_000, i)
    yield kernel(t + 10_000, t + 60_000, i)
    yield op(name, t + 10_000, t + 70_000)
    yield op("aten::_local_scalar_dense", t + 11_000, t + 69_000)
    yield call(COPY_CALL, t + 12_000, t + 18_000, i + 1)
    yield copy(t + 61_000, t + 62_000, i + 1, PINNED)
    yield call(STREAM_SYNC, t + 19_000, t + 66_000, i + 2)


def test_fires_on_item_and_names_its_place() -> None:
    (found,) = findings("HG101", repeated(read_of, 100_000))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("decode.py", "step")
    assert (found.count_per_step, found.severity) == (1.0, "error")
    assert found.blocked_ns == 4 * 47_000
    # without the wait the host is ahead, and 50 us of kernels and a copy remain of 100 us
    assert found.predicted_saving_ns is not None
    assert 4 * 30_000 < found.predicted_saving_ns < 4 * 50_000


def test_fires_on_real_traces_of_both_formats() -> None:
    for name in ("eager_item.json.gz", "eager_item.sqlite"):
        (found,) = findings("HG101", sample(name))
        assert found.count_per_step == 1.0
        # the host launches too slowly with and without it: seen, harmless
        assert found.severity == "info"


def test_silent_on_a_download_of_a_tensor() -> None:
    assert findings("HG101", repeated(lambda t, i: read_of(t, i, "aten::_to_copy"), 100_000)) != []
    plain = repeated(
        lambda t, i: (
            e for e in read_of(t, i, "aten::_to_copy") if e.name != "aten::_local_scalar_dense"
        ),
        100_000,
    )
    assert findings("HG101", plain) == []


def test_silent_on_a_step_that_reads_nothing() -> None:
    assert findings("HG101", sample("eager.json.gz")) == []
    assert findings("HG101", sample("gpu_bound.json.gz")) == []
