"""Faults of HG6: copies."""

from __future__ import annotations

import ctypes
import itertools
from typing import TYPE_CHECKING, Any

from labelled import BATCH, DRAINS, MB, SAME_SIZE, UPLOAD, Bench, Step, cudart, must, variant

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def load_adapter(host: Tensor, target: Tensor) -> None:
    target.copy_(host, non_blocking=True)


@variant(
    "HG601",
    site="load_adapter",
    per_step=1,
    also={**SAME_SIZE, "HG302": "the upload splits the step in two graphs"},
    cuda=True,
)
def copy_not_overlapped(bench: Bench) -> Step:
    """Between two captured halves, a large upload runs on the stream that computes."""
    import torch

    parts, layers = bench.eager, bench.config.n_layers
    half = layers // 2
    first, x = bench.captured(lambda: parts.layers(parts.embedded(), 0, half))
    second, _ = bench.captured(lambda: parts.choose(parts.layers(x, half, layers)))
    host = bench.pinned(16 * MB, dtype=torch.uint8)
    target = bench.bytes(16 * MB)

    def step() -> None:
        first()
        load_adapter(host, target)
        second()

    return step


def upload_batch(host: Tensor, device: str) -> Tensor:
    return host.to(device)


@variant(
    "HG602",
    site="upload_batch",
    per_step=1,
    also={
        **DRAINS,
        **UPLOAD,
        "HG104": "it blocks",
        "HG601": "the compute stream waits while it is copied",
    },
)
def pageable_bandwidth(bench: Bench) -> Step:
    """A large upload from pageable memory, at a fraction of the link's speed."""
    import torch

    replay = bench.captured_step()
    host = torch.zeros(16 * MB, dtype=torch.uint8)

    def step() -> None:
        upload_batch(host, bench.device)
        replay()

    return step


def replay_on_both(first: Step, second: Step, stream: torch.cuda.Stream) -> None:
    import torch

    with torch.cuda.stream(stream):
        second()
    first()


@variant(
    "HG603",
    site="replay_on_both",
    also={
        "HG108": "every launch on the legacy default stream waits for all blocking streams",
        "HG302": "two graphs a step",
    },
    cuda=True,
)
def legacy_stream(bench: Bench) -> Step:
    """Independent work on a blocking stream runs in turn with the legacy default stream."""
    import torch

    first = bench.captured_step()
    runtime = cudart()
    handle = ctypes.c_void_p()
    must(runtime.cudaStreamCreate(ctypes.byref(handle)))
    blocking = torch.cuda.ExternalStream(handle.value)
    weight = bench.tensor(1024, 1024) / 32
    x = bench.tensor(BATCH, 1024)

    def beside() -> Tensor:
        y = x
        for _ in range(60):
            y = y @ weight
        return y

    second, _ = bench.captured(beside)

    def step() -> None:
        replay_on_both(first, second, blocking)

    return step


def return_output(host: Tensor, values: Tensor) -> None:
    host.copy_(values, non_blocking=True)


@variant("HG604", site="return_output", per_step=1, cuda=True)
def output_copy(bench: Bench) -> Step:
    """A large output is copied on the stream that computes, where the next step waits for it."""
    import torch

    replay = bench.captured_step()
    values = bench.bytes(8 * MB)
    slots = itertools.cycle(
        [(bench.pinned(8 * MB, dtype=torch.uint8), torch.cuda.Event()) for _ in range(2)]
    )
    before: list[Any] = []

    def step() -> int:
        replay()
        host, event = next(slots)
        return_output(host, values)
        event.record()
        before.append((host, event))
        if len(before) < 2:
            return 0
        host, event = before.pop(0)
        event.synchronize()  # of the step before: the GPU has this one to do meanwhile
        return host.data_ptr()

    return step
