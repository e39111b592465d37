"""The few things that copies beside the main stream need; on a CPU, where nothing runs beside
anything, they do nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from hostgap.errors import FixFailed
from hostgap.profiling.workload import Workload

PINNED_BUDGET_MIB = 256.0  # pinned memory that all fixes of a workload may hold together
SLOTS = 2  # of a ring: one is in use while the other is filled or emptied


def on_gpu(workload: Workload) -> bool:
    """Whether the body runs on a GPU, and copies can run beside it."""
    return torch.device(workload.device).type == "cuda"


def side_stream(workload: Workload) -> torch.cuda.Stream | None:
    """A stream for copies beside the main one, None on a CPU."""
    if not on_gpu(workload):
        return None
    return torch.cuda.Stream(workload.device)  # type: ignore[no-untyped-call]


class Event:
    """A point in a stream that another stream or the host can wait for."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        self._event = None if stream is None else torch.cuda.Event()  # type: ignore[no-untyped-call]

    def record(self) -> None:
        """Now, in the current stream."""
        if self._event is not None:
            self._event.record()

    def order(self) -> None:
        """What comes later in the current stream waits for it; the host does not."""
        if self._event is not None:
            self._event.wait()

    def wait(self) -> None:
        """The host waits for it; no call that waits is made where it has happened already."""
        if self._event is not None and not self._event.query():  # type: ignore[no-untyped-call]
            self._event.synchronize()


def within(stream: torch.cuda.Stream | None) -> AbstractContextManager[Any]:
    """What follows goes to `stream`."""
    return torch.cuda.stream(stream) if stream is not None else nullcontext()


def host_ring(like: Sequence[Tensor], workload: Workload, name: str) -> list[list[Tensor]]:
    """`SLOTS` sets of host tensors of the shapes of `like`, pinned where there is a GPU.

    Their size is added to the workload's costs, as `pinned_mib`.

    Raises:
        FixFailed: they do not fit into the budget of pinned memory.
    """
    mib = SLOTS * sum(tensor.numel() * tensor.element_size() for tensor in like) / (1 << 20)
    held = workload.costs.get("pinned_mib", 0.0)
    if held + mib > PINNED_BUDGET_MIB:
        raise FixFailed(
            f"{name}: needs {mib:.0f} MiB of pinned memory, "
            f"{PINNED_BUDGET_MIB - held:.0f} MiB are left of the budget"
        )
    pinned = on_gpu(workload)
    ring = [
        [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned) for tensor in like]
        for _ in range(SLOTS)
    ]
    workload.costs["pinned_mib"] = held + mib
    return ring
