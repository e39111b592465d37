"""Which rank a trace is of, by the name of its file and by what the trace says of itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hostgap.serving.sglang import Sglang
from hostgap.serving.vllm import Vllm

Role = Literal["worker", "frontend", "merged"]
ENDINGS = (
    ".json",
    ".json.gz",
    ".json.zst",
    ".sqlite",
    ".nsys-rep",
    ".qdrep",
)
OWN = ("serving.json", "measurement.json", "hostgap.json")  # hostgap's, beside traces
_MERGED = re.compile(r"merged-.*\.trace\.json(?:\.gz)?")  # SGLang: what its ranks wrote, once more
_MOST_RANKS = 10**6  # a larger number is none
_RANK = re.compile(r"(?<![A-Za-z])(?:rank|worker)[-_]?(\d{1,6})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Named:
    """What the name of a file says.

    Attributes:
        role: a worker's trace, a frontend's (CPU only), or one merged from those of others.
        label: for people, such as "TP 0" or "rank 3"; the name where it says nothing.
        rank: the number of the rank, None where the name has none.
    """

    role: Role
    label: str
    rank: int | None


def is_trace_name(name: str) -> bool:
    """Whether a file found in a folder may be a trace, by its name."""
    return name.endswith(ENDINGS) and name not in OWN and not name.startswith(".")


def named(name: str) -> Named:
    """What the name of a trace file says of its rank.

    Args:
        name: without the folder.
    """
    if _MERGED.fullmatch(name):
        return Named("merged", "merged", None)
    vllm = Vllm().label(name)
    if vllm is not None and vllm.role == "frontend":
        return Named("frontend", vllm.text, None)
    if vllm is not None and vllm.order and vllm.order[0] < _MOST_RANKS:
        return Named("worker", vllm.text, vllm.order[0])
    sglang = Sglang().label(name)
    if sglang is not None:
        alone = [number for number in sglang.order if number]
        # of one kind of parallelism the number is the rank; of several it takes their sizes
        return Named("worker", sglang.text, sum(alone) if len(alone) < 2 else None)
    found = _RANK.findall(name)
    if found:
        return Named("worker", f"rank {int(found[-1])}", int(found[-1]))
    return Named("worker", name, None)


def recorded_rank(metadata: Mapping[str, Any]) -> int | None:
    """The global rank that a torch.profiler trace names; None where it is of no distributed job."""
    info = metadata.get("distributedInfo")
    if not isinstance(info, dict):
        return None
    rank, world = info.get("rank"), info.get("world_size", 2)
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 0 or world == 1:
        return None
    return rank


def resolved(
    recorded: Sequence[int | None], by_name: Sequence[int | None]
) -> tuple[list[int | None], str | None]:
    """The rank of each of n traces: what they say themselves, else what their names say.

    Returns:
        n ranks, and why they cannot be held against each other, None where they can: each is
        known, and no two are the same.
    """
    for ranks in (list(recorded), list(by_name)):
        if None not in ranks and len(set(ranks)) == len(ranks):
            return ranks, None
    mixed = [b if a is None else a for a, b in zip(recorded, by_name, strict=True)]
    known = [rank for rank in mixed if rank is not None]
    if len(set(known)) < len(known):
        twice = next(rank for rank in known if known.count(rank) > 1)
        return mixed, f"several traces are of rank {twice}: separate runs?"
    if len(known) < len(mixed):
        return mixed, "neither the traces nor their names tell the ranks"
    return mixed, None
