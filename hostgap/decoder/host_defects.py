"""What the host of a decode loop does wrong: one function a defect, named after it.

Each does what the clean loop (`hostgap.decoder.workload`) does as well, and gives the same result;
only the way there makes the host wait, or keeps it busy. What a trace shows of a defect it shows at
these functions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

# Enough to overflow the young generation's threshold (700 to 2,000 objects) in every step.
RECORDS_PER_STEP = 3000
# Earlier windows of text that a row's history holds: for windows of 1,024 tokens more than 20 MiB.
# PyTorch's allocator takes smaller tensors from segments of 20 MiB, where they may lie beside
# others; a larger one has a segment of its own, which emptying the cache does give back.
EARLIER_WINDOWS = 2_600

# What one rank of several is held up by (`hostgap.decoder.defects.RANK_FAULTS`).
HOST_WORK_S = 1e-3
TABLE_BYTES = 8 << 20


def positions_on_host(positions: Tensor, position: int) -> None:
    """Set every row's position from the host: a tensor of the CPU, pageable, is uploaded.

    Args:
        positions: [B, 1] int64, on the device.
        position: of the token that is read next.
    """
    built = torch.arange(position, position + 1).expand(positions.shape[0], 1).contiguous()
    positions.copy_(built)


def page_lens_download(batch: int, device: torch.device) -> Tensor:
    """How much of its last page each row fills, [B] int32, on the host, where attention is planned.

    With a page size of 1 that is always 1, and still it is fetched from the device.
    """
    return torch.ones(batch, dtype=torch.int32, device=device).cpu()


def eos_read(tokens: Tensor, eos: int) -> list[int]:
    """The rows that end with these tokens [B], each read by itself as soon as it is ordered."""
    return [row for row in range(tokens.shape[0]) if tokens[row].item() == eos]


def list_upload(values: Sequence[int], device: torch.device) -> Tensor:
    """A list of the scheduler's as a device tensor, int64: pageable, so the host waits for it."""
    return torch.tensor(values, device=device)


def mask_select(lengths: Tensor, finished: Tensor) -> None:
    """Count a token for every unfinished row, by picking those rows.

    How many there are decides the shape of the result, so the host waits for the device to count.

    Args:
        lengths: [B] int64, changed in place.
        finished: [B] bool.
    """
    rows = torch.arange(lengths.shape[0], device=lengths.device)
    unfinished = rows[~finished]
    lengths[unfinished] += 1


def alloc_per_step(history: Tensor, tokens: Tensor) -> Tensor:
    """Append tokens [B] to all that was ever said, [B, n]: a new tensor, [B, n + 1].

    The memory of the one before is given back to the driver, who must be asked again.
    """
    if history.is_cuda:
        torch.cuda.empty_cache()  # what the caller let go of a step ago
    return torch.cat((history, tokens[:, None]), dim=1)


class Record:
    """What a server notes about a request, with a way back from the note to its owner."""

    def __init__(self, owner: Record | None = None) -> None:
        self.owner = owner
        self.notes: list[Record] = []


def gc_pressure() -> Record:
    """Records that refer to each other, so that only the garbage collector can free them."""
    owner = Record()
    owner.notes = [Record(owner) for _ in range(RECORDS_PER_STEP)]
    return owner


def host_work() -> None:
    """Keep the host busy for `HOST_WORK_S`, as a check or a log line of one rank's may."""
    until = time.perf_counter() + HOST_WORK_S
    while time.perf_counter() < until:
        pass


def table_upload(there: Tensor, table: Tensor) -> None:
    """Upload a table that the host built: pageable, so the host waits until all of it is copied.

    Args:
        there: any shape, on the device.
        table: of the same shape and dtype, on the host.
    """
    there.copy_(table)
