"""HG102: a tensor is copied to the host."""

from __future__ import annotations

from tests.analysis.build import BLOCKING_COPY, D2H, Event, call, copy
from tests.rules.check import findings, repeated, sample
from tests.rules.waits import PINNED_DOWN, STEP, TO, copying, sized, work


def test_fires_on_a_download_and_names_its_place() -> None:
    (found,) = findings("HG102", repeated(lambda t, i: copying(t, i, TO, D2H), STEP))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("decode.py", "step")
    assert (found.count_per_step, found.severity) == (1.0, "error")
    assert found.blocked_ns == 4 * (4_000 + 49_000)  # in the copy, and behind it
    # without the wait the host is ahead, and 50 us of a kernel and a copy remain of 100 us
    assert found.predicted_saving_ns is not None
    assert 4 * 30_000 < found.predicted_saving_ns < 4 * 50_000


def test_fires_where_the_copy_call_itself_holds_the_host() -> None:
    # pageable memory: the call returns when the copy is done, its synchronize at once
    trace = repeated(lambda t, i: copying(t, i, TO, D2H, held=47_000), STEP)
    (found,) = findings("HG102", trace)
    assert (found.count_per_step, found.severity) == (1.0, "error")
    assert found.predicted_saving_ns is not None
    assert 4 * 30_000 < found.predicted_saving_ns < 4 * 50_000


def test_fires_on_a_blocking_copy_without_ops() -> None:
    def step(t: int, i: int) -> list[Event]:
        blocking = call(BLOCKING_COPY, t + 12_000, t + 66_000, i + 1)
        return [*work(t, i), blocking, copy(t + 61_000, t + 62_000, i + 1, D2H)]

    (found,) = findings("HG102", repeated(step, STEP))
    assert (found.count_per_step, found.blocked_ns) == (1.0, 4 * 54_000)


def test_without_ops_size_and_memory_decide() -> None:
    def of(name: str, size: int) -> list[str]:
        trace = sized(repeated(lambda t, i: copying(t, i, (), name), STEP), size)
        return [code for code in ("HG101", "HG102", "HG105") if findings(code, trace)]

    assert of(D2H, 4_096) == ["HG102"]
    assert of(D2H, 8) == ["HG101"]
    assert of(PINNED_DOWN, 8) == ["HG101"]
    assert of(PINNED_DOWN, 4_096) == ["HG105"]


def test_silent_on_the_read_of_a_number() -> None:
    ops = ("aten::item", "aten::_local_scalar_dense")
    assert findings("HG102", repeated(lambda t, i: copying(t, i, ops, PINNED_DOWN), STEP)) == []
    for name in ("eager_item.json.gz", "eager_item.sqlite", "gpu_bound.json.gz"):
        assert findings("HG102", sample(name)) == []
