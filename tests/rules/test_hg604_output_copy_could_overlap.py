"""HG604: a step's results go out, or its inputs in, while the GPU idles."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from hostgap.trace.model import Device
from tests.analysis.build import COPY_CALL, LAUNCH, STREAM_SYNC, Event, call, copy, frame, kernel
from tests.rules.check import findings, not_applicable, repeated, sample

UP, DOWN = "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)"
GPU_STEP, HOST_STEP = 210_000, 40_000


def step(t: int, i: int, name: str = DOWN, *, sync: bool = False) -> Iterator[Event]:
    """A kernel, and a copy of 50 us behind it or (an upload) before; the host runs ahead."""
    gpu_t = t + (i // 1_000) * (GPU_STEP - HOST_STEP)
    yield frame("serve.py(3): step", t, t + 35_000)
    first, second = (COPY_CALL, LAUNCH) if name == UP else (LAUNCH, COPY_CALL)
    yield call(first, t + 1_000, t + 5_000, i)
    yield call(second, t + 6_000, t + 10_000, i + 1)
    up = name == UP
    kernel_at = gpu_t + 59_000 if up else gpu_t + 8_000
    copy_at = gpu_t + 8_000 if up else gpu_t + 159_000
    yield kernel(kernel_at, kernel_at + (158_000 if up else 150_000), i + 1 if up else i)
    yield copy(copy_at, copy_at + 50_000, i if up else i + 1, name)
    if sync:
        yield call(STREAM_SYNC, t + 11_000, copy_at + 52_000, i + 2)


@pytest.mark.parametrize(
    ("name", "title"),
    [
        (
            DOWN,
            "Results are copied out for 50.0 us a step, beside the next step they would be free",
        ),
        (UP, "Inputs come for 50.0 us a step, beside the previous step they would be free"),
    ],
)
def test_fires_at_both_ends_of_a_step(name: str, title: str) -> None:
    (found,) = findings("HG604", repeated(lambda t, i: step(t, i, name), HOST_STEP))
    assert found.site is not None
    assert (found.site.function, found.count_per_step) == ("step", 1.0)
    assert found.title == title
    assert found.severity == "error"
    assert found.predicted_saving_ns == pytest.approx(4 * 51_000, rel=0.1)


def test_says_more_on_a_coherent_platform() -> None:
    trace = repeated(step, HOST_STEP)
    plain, grace = (
        findings("HG604", dataclasses.replace(trace, devices=(Device(0, name),)))[0].advice
        for name in ("NVIDIA H200", "NVIDIA GH200 480GB")
    )
    assert grace == plain + " On this platform direct access may beat it: measure first."


def test_silent_on_a_copy_that_is_waited_for_and_on_short_ones() -> None:
    waited = repeated(lambda t, i: step(t, i, sync=True), GPU_STEP)
    assert findings("HG604", waited) == []
    assert findings("HG604", repeated(step, HOST_STEP), **{"min-us": 51.0}) == []


def test_needs_steps() -> None:
    assert "steps" in not_applicable("HG604", repeated(step, HOST_STEP, count=1))


@pytest.mark.parametrize("name", ["eager_item.json.gz", "gpu_bound.json.gz", "eager_item.sqlite"])
def test_silent_on_real_steps_without_large_copies(name: str) -> None:
    assert findings("HG604", sample(name)) == []
