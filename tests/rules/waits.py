"""Steps in which the host waits, for the tests of the rules about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hostgap.trace.model import CopyKind, Trace
from tests.analysis.build import (
    COPY_CALL,
    H2D,
    LAUNCH,
    STREAM_SYNC,
    Event,
    call,
    copy,
    frame,
    kernel,
    op,
)

TO = ("aten::to", "aten::_to_copy", "aten::copy_")
PINNED_UP, PINNED_DOWN = "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)"
STEP = 100_000


def work(t: int, i: int, length: int = 50_000) -> Iterator[Event]:
    """A kernel of 50 us in a step of 100."""
    yield frame("decode.py(7): step", t, t + 95_000)
    yield op("aten::mm", t, t + 9_000)
    yield call(LAUNCH, t + 1_000, t + 8_000, i)
    yield kernel(t + 10_000, t + 10_000 + length, i)


def copying(
    t: int, i: int, ops: tuple[str, ...], name: str = H2D, *, sync: bool = True, held: int = 0
) -> Iterator[Event]:
    """Work, and a copy behind it for which the host waits: in its synchronize, or (`held` ns) in
    the copy call."""
    yield from work(t, i)
    for depth, text in enumerate(ops):
        yield op(text, t + 11_000 + depth, t + 70_000 - depth)
    yield call(COPY_CALL, t + 12_000, t + 16_000 + held, i + 1)
    yield copy(t + 61_000, t + 62_000, i + 1, name)
    if sync:
        yield call(STREAM_SYNC, t + 17_000 + held, t + max(66_000, 18_000 + held), i + 2)


def synchronizing(t: int, i: int, name: str, *ops: str) -> Iterator[Event]:
    """Work, and a plain synchronize behind it."""
    yield from work(t, i)
    for depth, text in enumerate(ops):
        yield op(text, t + 11_000 + depth, t + 70_000 - depth)
    yield call(name, t + 12_000, t + 62_000, i + 1)


def sized(trace: Trace, *sizes: int) -> Trace:
    """The trace with the bytes of its copies across, in turn: a built one knows none."""
    gpu = trace.gpu_ops
    crosses = np.flatnonzero(np.isin(gpu.copy_kind, (CopyKind.H2D, CopyKind.D2H)))
    size = gpu.bytes.copy()
    size[crosses] = np.resize(sizes, len(crosses))
    return replace(trace, gpu_ops=replace(gpu, bytes=size))
