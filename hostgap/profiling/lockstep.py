"""Several processes that measure one job together: each a rank, all making the same steps.

A step with collectives ends only where every rank makes it. So whatever decides how many steps a
pass makes has to be decided alike: `agreed` gives all ranks the same figure. And where a GPU is
held up so that its host gets ahead, `line_up` lets all of them go on at the same time.

A process that is no rank of any agrees with itself.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import msgspec

PATIENCE = timedelta(days=1)  # whoever started the ranks ends them when they are late


class Rank(msgspec.Struct, frozen=True):
    """Which rank a process is, and where it meets the others.

    Attributes:
        index: from 0.
        ranks: how many there are.
        meeting: path of a file that all ranks use, of no other run, and that need not exist.
        port: of localhost, free, for a target that sets up a process group of its own.
    """

    index: int
    ranks: int
    meeting: str
    port: int


_rank: Rank | None = None
_store: Any = None  # what all ranks can write to and read, whatever process group there is
_asked = 0


def here() -> Rank | None:
    """Which rank this process is; None outside of `profile --ranks`."""
    return _rank


def join(rank: Rank, *, group: bool) -> None:
    """Make this process a rank; returns when all others have done so as well.

    Sets what torchrun sets (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT). Each process
    sees one GPU only, so LOCAL_RANK is 0. NVLink multicast is off unless the environment says
    otherwise: where it is not allowed, NCCL fails with it, and the collectives of a decode step are
    too small to gain from it.

    Args:
        rank: which one.
        group: whether to set up the default process group: NCCL on GPUs, gloo without one.
    """
    global _rank, _store
    import torch
    import torch.distributed

    dist: Any = torch.distributed  # which does not export its stores to type checkers
    os.environ |= {
        "RANK": str(rank.index),
        "WORLD_SIZE": str(rank.ranks),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": str(rank.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(rank.port),
    }
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    store = dist.FileStore(rank.meeting, rank.ranks)
    store.set_timeout(PATIENCE)
    _rank, _store = rank, dist.PrefixStore("hostgap", store)
    if group:
        device = torch.device("cuda:0") if torch.cuda.is_available() else None
        dist.init_process_group(
            "nccl" if device is not None else "gloo",
            store=dist.PrefixStore("group", store),
            rank=rank.index,
            world_size=rank.ranks,
            device_id=device,
        )
    agreed(0.0)


def agreed(figure: float) -> float:
    """The largest of what all ranks say here, the same for each of them; waits for them."""
    global _asked
    if _rank is None:
        return figure
    _asked += 1
    _store.set(f"{_asked}/{_rank.index}", repr(float(figure)))
    return max(float(_store.get(f"{_asked}/{rank}")) for rank in range(_rank.ranks))


def line_up() -> None:
    """Have this rank's GPU wait, in its stream, until those of all others have come here too.

    Does nothing where there is no process group.
    """
    if _rank is None:
        return
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        reduce: Any = dist.all_reduce
        reduce(torch.zeros(1, device="cuda" if torch.cuda.is_available() else "cpu"))
