"""Traces of the ranks of a made-up job, of which it is known who waits for whom."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KERNEL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
LAUNCH_US = 5
COLLECTIVE_US = 50


@dataclass
class Job:
    """A step per collective: host work, a kernel, and an all-reduce within each group.

    Attributes:
        host_us: rank -> host work before each step's kernel, us; for others `usual_us`.
        kernel_us: rank -> length of its kernel; for others 100.
        groups: the ranks that reduce together; all by default.
        offset_us: rank -> how far its clock is ahead.
        drift: rank -> by how much its clock runs faster.
        name_groups: write the process group's ranks into the trace.
        beside: rank -> a kernel of that many us on another stream from each collective's start.
        skip: rank -> collectives its recording misses at its beginning.
    """

    ranks: int
    steps: int = 12
    usual_us: float = 20
    host_us: Mapping[int, float] = field(default_factory=dict)
    kernel_us: Mapping[int, float] = field(default_factory=dict)
    groups: Sequence[Sequence[int]] | None = None
    offset_us: Mapping[int, float] = field(default_factory=dict)
    drift: Mapping[int, float] = field(default_factory=dict)
    name_groups: bool = False
    beside: Mapping[int, float] = field(default_factory=dict)
    skip: Mapping[int, int] = field(default_factory=dict)

    def waits_us(self, rank: int) -> float:
        """How long a rank waits in all its recorded collectives."""
        group = next(group for group in self.teams() if rank in group)
        late = max(self.before_us(other) for other in group)
        return (late - self.before_us(rank)) * self.steps

    def teams(self) -> Sequence[Sequence[int]]:
        return self.groups or [range(self.ranks)]

    def before_us(self, rank: int) -> float:
        """From one collective's end to the start of the next."""
        return self.host_us.get(rank, self.usual_us) + LAUNCH_US + self.kernel_us.get(rank, 100)


def events(job: Job, rank: int) -> list[dict[str, Any]]:
    """The events of one rank's trace."""
    group = next(group for group in job.teams() if rank in group)
    offset, rate = job.offset_us.get(rank, 0), 1 + job.drift.get(rank, 0)
    made: list[dict[str, Any]] = []
    begin = 1000.0
    number = 0

    def add(cat: str, name: str, start: float, end: float, tid: int, **args: Any) -> None:
        ts, until = (round((time * rate + offset) * 1000) for time in (start, end))
        made.append(
            {
                "ph": "X", "cat": cat, "name": name, "pid": 0 if cat == "kernel" else 7, "tid": tid,
                "ts": us(ts), "dur": us(until - ts), "args": args,
            }
        )  # fmt: skip

    for step in range(job.steps):
        common = step * 37 % 11  # us: no two steps are alike, and all ranks' are
        launch = begin + job.host_us.get(rank, job.usual_us) + common
        start = launch + LAUNCH_US
        own = start + job.kernel_us.get(rank, 100)
        last = begin + common + max(job.before_us(other) for other in group)
        end = last + COLLECTIVE_US
        if step >= job.skip.get(rank, 0):
            add("user_annotation", f"ProfilerStep#{step}", begin, end - 1, 7)
            add("cpu_op", "aten::load", begin, launch, 7)
            number += 2
            ranks = str(list(group))
            named = {"Process Group Ranks": ranks} if job.name_groups else {}
            add("cuda_runtime", "cudaLaunchKernel", launch, launch + 1, 7, correlation=number)
            add(
                "cuda_runtime",
                "cudaLaunchKernel",
                launch + 1,
                launch + 2,
                7,
                correlation=number + 1,
            )
            add("kernel", "gemm", start, own, 7, device=0, stream=7, correlation=number)
            add(
                "kernel", KERNEL, own, end, 7,
                device=0, stream=7, correlation=number + 1, **named,
            )  # fmt: skip
            if rank in job.beside:
                add("kernel", "copy", own, own + job.beside[rank], 9, device=0, stream=9)
        begin = end
    return made


def us(ns: int) -> str:
    """Nanoseconds as microseconds, in a string: exact, where a float would not be."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def document(job: Job, rank: int, *, recorded: bool = True) -> dict[str, Any]:
    """The trace of one rank."""
    info = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": job.ranks}}
    return {**(info if recorded else {}), "traceEvents": events(job, rank)}


def write(
    job: Job, folder: Path, *, recorded: bool = True, name: str = "rank{}.json.gz"
) -> list[Path]:
    """Write the traces of all ranks; their paths."""
    paths = []
    for rank in range(job.ranks):
        path = folder / name.format(rank)
        text = json.dumps(document(job, rank, recorded=recorded)).encode()
        path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)
        paths.append(path)
    return paths
