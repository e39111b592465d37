"""Faults of HG1: the host waits for the GPU."""

from __future__ import annotations

import ctypes
import itertools
from typing import TYPE_CHECKING

from labelled import (
    BATCH,
    DRAINS,
    EOS,
    MB,
    NO_OPS,
    NO_SITE,
    NSYS,
    OUTSIDE,
    UPLOAD,
    Bench,
    Step,
    cudart,
    must,
    think,
    variant,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def read_eos(tokens: Tensor) -> bool:
    return tokens[0, 0].item() == EOS


@variant("HG101", site="read_eos", per_step=1, also=DRAINS)
def scalar_read(bench: Bench) -> Step:
    """A token is read back every step to test for the end."""
    replay = bench.captured_step()

    def step() -> None:
        replay()
        read_eos(bench.decoder.tokens)

    return step


def branch_on_finished(finished: Tensor) -> bool:
    return bool(finished.any())


@variant("HG101", site="branch_on_finished", per_step=1, also={**DRAINS, **OUTSIDE})
def bool_branch(bench: Bench) -> Step:
    """The host branches on a condition that the GPU computes."""
    replay = bench.captured_step()
    finished = bench.decoder.tokens == EOS

    def step() -> None:
        replay()
        branch_on_finished(finished)

    return step


def read_every_row(tokens: Tensor) -> list[int]:
    read = []
    for row in range(BATCH):
        read.append(int(tokens[row, 0]))  # noqa: PERF401  a comprehension is a frame of its own
    return read


@variant("HG101", site="read_every_row", per_step=BATCH, also=DRAINS)
def scalar_reads(bench: Bench) -> Step:
    """Every row's token is read back on its own."""
    replay = bench.captured_step()

    def step() -> None:
        replay()
        read_every_row(bench.decoder.tokens)

    return step


def download_tokens(tokens: Tensor) -> Tensor:
    return tokens.cpu()


@variant(
    "HG102",
    site="download_tokens",
    per_step=1,
    also={**DRAINS, "HG604": "the download could run while the next step is computed"},
)
def tensor_download(bench: Bench) -> Step:
    """The tokens are copied to the host into pageable memory."""
    replay = bench.captured_step()

    def step() -> None:
        replay()
        download_tokens(bench.decoder.tokens)

    return step


def list_tokens(tokens: Tensor) -> list[list[int]]:
    return tokens.tolist()


@variant(
    "HG102",
    site="list_tokens",
    per_step=1,
    also={**DRAINS, "HG604": "the download could run while the next step is computed"},
)
def tolist(bench: Bench) -> Step:
    """The tokens are read back as a list."""
    replay = bench.captured_step()

    def step() -> None:
        replay()
        list_tokens(bench.decoder.tokens)

    return step


def select_unfinished(logits: Tensor, unfinished: Tensor) -> Tensor:
    return logits[unfinished]


# In a plain export the size of a mask is a read of eight bytes like any other.
SIZE_READ = {"nsys:HG101": "without framework ops the read of a size is the read of a scalar"}


@variant(
    "HG103",
    site="select_unfinished",
    per_step=1,
    also={**DRAINS, **OUTSIDE, **SIZE_READ},
    missing={NSYS: NO_OPS},
)
def mask_select(bench: Bench) -> Step:
    """Rows are chosen by a mask, so the host must know how many there are."""
    replay = bench.captured_step()
    unfinished = bench.decoder.tokens[:, 0] != EOS

    def step() -> None:
        replay()
        select_unfinished(bench.logits, unfinished)

    return step


def find_unfinished(unfinished: Tensor) -> Tensor:
    return unfinished.nonzero()


@variant(
    "HG103",
    site="find_unfinished",
    per_step=1,
    also={**DRAINS, **OUTSIDE, **SIZE_READ},
    missing={NSYS: NO_OPS},
)
def nonzero(bench: Bench) -> Step:
    """The rows that go on are listed by nonzero."""
    replay = bench.captured_step()
    unfinished = bench.decoder.tokens[:, 0] != EOS

    def step() -> None:
        replay()
        find_unfinished(unfinished)

    return step


def upload_slots(slots: list[int], device: str) -> Tensor:
    import torch

    return torch.tensor(slots, device=device)


@variant("HG104", site="upload_slots", per_step=1, also={**DRAINS, **UPLOAD})
def list_upload(bench: Bench) -> Step:
    """A list that changes every step becomes a tensor on the GPU."""
    replay = bench.captured_step()
    count = itertools.count()

    def step() -> None:
        replay()
        upload_slots([next(count)] * 64, bench.device)

    return step


def upload_positions(position: int, device: str) -> Tensor:
    import torch

    return torch.arange(position, position + 64).to(device)


@variant("HG104", site="upload_positions", per_step=1, also={**DRAINS, **UPLOAD})
def positions_upload(bench: Bench) -> Step:
    """Positions are built on the CPU and uploaded."""
    replay = bench.captured_step()
    count = itertools.count()

    def step() -> None:
        replay()
        upload_positions(next(count), bench.device)

    return step


def upload_pinned(host: Tensor, device: str) -> Tensor:
    return host.to(device)


@variant("HG105", site="upload_pinned", per_step=1, also={**DRAINS, **UPLOAD}, cuda=True)
def pinned_upload(bench: Bench) -> Step:
    """An upload from pinned memory that blocks all the same."""
    replay = bench.captured_step()
    host = bench.pinned(1024)

    def step() -> None:
        replay()
        upload_pinned(host, bench.device)

    return step


def synchronize_device() -> None:
    import torch

    torch.cuda.synchronize()


@variant("HG106", site="synchronize_device", per_step=1, also=DRAINS, cuda=True)
def device_synchronize(bench: Bench) -> Step:
    """The device is synchronized after every step."""
    replay = bench.captured_step()

    def step() -> None:
        replay()
        synchronize_device()

    return step


def synchronize_stream() -> None:
    import torch

    torch.cuda.current_stream().synchronize()


@variant("HG107", site="synchronize_stream", per_step=1, also=DRAINS, cuda=True)
def stream_synchronize(bench: Bench) -> Step:
    """The stream is synchronized after every step."""
    replay = bench.captured_step()

    def step() -> None:
        replay()
        synchronize_stream()

    return step


def wait_for_event(event: torch.cuda.Event) -> None:
    event.synchronize()


@variant("HG107", site="wait_for_event", per_step=1, also=DRAINS, cuda=True)
def event_synchronize(bench: Bench) -> Step:
    """The host waits for an event recorded after the step."""
    import torch

    replay = bench.captured_step()
    event = torch.cuda.Event()

    def step() -> None:
        replay()
        event.record()
        wait_for_event(event)

    return step


def free_scratch(runtime: ctypes.CDLL, pointer: ctypes.c_void_p) -> None:
    must(runtime.cudaFree(pointer))


@variant(
    "HG108",
    site="free_scratch",
    per_step=1,
    also={**DRAINS, "HG401": "the buffer that is freed was allocated in the step, too"},
    cuda=True,
    slack=1,
)
def implicit_sync(bench: Bench) -> Step:
    """A raw device buffer is freed in the step, which drains the device."""
    replay = bench.captured_step()
    runtime = cudart()

    def step() -> None:
        pointer = ctypes.c_void_p()
        must(runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(8 * MB)))
        replay()
        free_scratch(runtime, pointer)

    return step


PAGEABLE = {
    "HG602": "pageable memory is copied at a fraction of the link's speed",
    "HG601": "the compute stream waits while it is copied",
}


def upload_pageable_async(host: Tensor, device: str) -> Tensor:
    return host.to(device, non_blocking=True)


@variant("HG109", site="upload_pageable_async", per_step=1, also={**DRAINS, **UPLOAD, **PAGEABLE})
def pageable_upload(bench: Bench) -> Step:
    """An upload asked for without blocking, from pageable memory."""
    import torch

    replay = bench.captured_step()
    host = torch.zeros(4 * MB, dtype=torch.uint8)

    def step() -> None:
        replay()
        upload_pageable_async(host, bench.device)

    return step


def download_pageable_async(host: Tensor, values: Tensor) -> Tensor:
    return host.copy_(values, non_blocking=True)


@variant(
    "HG109",
    site="download_pageable_async",
    per_step=1,
    also={**DRAINS, **PAGEABLE, "HG604": "the output could be copied during the next step"},
)
def pageable_download(bench: Bench) -> Step:
    """A download asked for without blocking, into pageable memory."""
    import torch

    replay = bench.captured_step()
    values = bench.bytes(4 * MB)
    host = torch.zeros(4 * MB, dtype=torch.uint8)

    def step() -> None:
        replay()
        download_pageable_async(host, values)

    return step


STOP_WORDS = list(range(512))


def upload_stop_words(device: str) -> Tensor:
    import torch

    return torch.tensor(STOP_WORDS, device=device)


@variant(
    "HG110",
    site="upload_stop_words",
    per_step=1,
    also={
        **DRAINS,
        "HG104": "the upload blocks, whatever it holds",
        "HG604": UPLOAD["HG604"],
    },
    missing={NSYS: NO_SITE},
)
def constant_upload(bench: Bench) -> Step:
    """A list that never changes is uploaded every step."""
    replay = bench.captured_step()

    def step() -> None:
        replay()
        upload_stop_words(bench.device)

    return step


def poll_event(event: torch.cuda.Event) -> None:
    while not event.query():
        pass


@variant("HG111", site="poll_event", also=DRAINS, cuda=True)
def poll(bench: Bench) -> Step:
    """The host asks in a loop whether an event has happened."""
    import torch

    replay = bench.captured_step()
    event = torch.cuda.Event()

    def step() -> None:
        replay()
        event.record()
        poll_event(event)

    return step


def finish_before_next(event: torch.cuda.Event) -> None:
    event.synchronize()


def detokenize(tokens: Tensor) -> int:
    return think(6_000) + int(tokens[0])


@variant(
    "HG112",
    site="finish_before_next",
    per_step=1,
    also={
        "HG107": "what the host waits for is an event",
        "HG307": "behind a drained queue the graph's launch call lies open",
        "HG502": "text is made of the tokens before the next step is launched",
        "HG505": "and that is Python",
        "HG604": "the output could be copied during the next step",
    },
    cuda=True,
    slack=1,
)
def overlap_broken(bench: Bench) -> Step:
    """The output of a step is waited for and handled before the next is launched."""
    import torch

    replay = bench.captured_step()
    event = torch.cuda.Event()
    host = bench.pinned(BATCH, 1)

    def step() -> None:
        replay()
        host.copy_(bench.decoder.tokens, non_blocking=True)
        event.record()
        finish_before_next(event)
        detokenize(host)

    return step
