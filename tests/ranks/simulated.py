"""Two ranks of a decode loop, simulated: hosts that launch, GPUs that run in order and wait for one
another in collectives, a wait of the host at the end of each step. What a fault costs is the step's
length with it less that without, which no trace shows."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.ranks.build import KERNEL, us

FILE = "/srv/decode.py"


@dataclass
class Loop:
    """Times in ns.

    Attributes:
        graph: the step is one graph launch; else each kernel has its own.
        work: rank -> Python before each step, in a function of its own.
        upload: rank -> how long a blocking copy of pageable memory takes before each step.
        kernel_extra: rank -> how much longer each of its kernels takes.
        jitter: of each launch, at most.
        slower: rank -> share by which each of its launches takes longer.
    """

    graph: bool
    steps: int = 12
    ranks: int = 2
    layers: int = 16
    kernels: int = 12
    host: int = 9_000
    kernel: int = 2_500
    collective: int = 9_000
    launch: int = 400_000
    deliver: int = 60_000
    work: Mapping[int, int] = field(default_factory=dict)
    upload: Mapping[int, int] = field(default_factory=dict)
    kernel_extra: Mapping[int, int] = field(default_factory=dict)
    slower: Mapping[int, float] = field(default_factory=dict)
    jitter: int = 0
    seed: int = 0


class Simulated:
    """The loop, run.

    Attributes:
        events: per rank.
        step_ns: from the second step's end to the last one's, a step.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.random = random.Random(loop.seed)
        self.events: list[list[dict[str, Any]]] = [[] for _ in range(loop.ranks)]
        self.host = [1_000_000 + 3_000 * rank for rank in range(loop.ranks)]
        self.gpu = [0] * loop.ranks
        self.number = 0
        ends = [self._step(index) for index in range(loop.steps)]
        self.step_ns = (ends[-1] - ends[1]) / (loop.steps - 2)

    def _step(self, index: int) -> int:
        loop = self.loop
        begun = list(self.host)
        for rank in range(loop.ranks):
            if rank in loop.work:
                until = self.host[rank] + loop.work[rank]
                self._frame(rank, "check", 40, self.host[rank], until)
                self.host[rank] = until
            if rank in loop.upload:
                self._upload(rank)
        called = list(self.host)
        if loop.graph:
            self.number += 1
            for rank in range(loop.ranks):
                begin = self.host[rank]
                self.host[rank] += loop.launch
                self._call(rank, "cudaGraphLaunch", begin, self.host[rank])
                called[rank] = begin + 30_000
        for _ in range(loop.layers):
            for kernel in range(loop.kernels + 1):
                self._kernels(called, collective=kernel == loop.kernels)
        for rank in range(loop.ranks):
            begin, end = self.host[rank], max(self.gpu[rank], self.host[rank]) + 4_000
            self._call(rank, "cudaStreamSynchronize", begin, end)
            self.host[rank] = end + loop.deliver
            self._add(
                rank, "user_annotation", f"ProfilerStep#{index}", begun[rank], self.host[rank] - 1
            )
            self._frame(rank, "step", 10, begun[rank], self.host[rank] - 1)
        return max(self.gpu)

    def _upload(self, rank: int) -> None:
        self.number += 1
        begin, took = self.host[rank] + 2_000, self.loop.upload[rank]
        self._add(rank, "cpu_op", "aten::copy_", begin - 1_000, begin + took + 3_000)
        self._frame(rank, "upload", 50, begin - 1_500, begin + took + 3_500)
        self._call(rank, "cudaMemcpyAsync", begin, begin + took + 2_000)
        self._add(
            rank, "gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", begin + 1_000,
            begin + took + 1_000, device=0, stream=7, correlation=self.number, bytes=8 << 20,
        )  # fmt: skip
        self.host[rank] = begin + took + 4_000
        self.gpu[rank] = max(self.gpu[rank], begin + took + 1_000)

    def _kernels(self, called: list[int], *, collective: bool) -> None:
        """The next kernel of each rank."""
        loop = self.loop
        starts = []
        if not loop.graph:
            self.number += 1
        for rank in range(loop.ranks):
            ready = called[rank]
            if not loop.graph:
                begin = self.host[rank]
                took = loop.host * (1 + loop.slower.get(rank, 0))
                self.host[rank] += round(took) + self.random.randint(0, loop.jitter)
                self._add(rank, "cpu_op", "aten::mm", begin, self.host[rank] - 500)
                self._call(rank, "cudaLaunchKernel", begin + 3_000, begin + 7_000)
                ready = begin + 8_000
            starts.append(max(ready, self.gpu[rank] + 800))
        for rank, start in enumerate(starts):
            end = start + loop.kernel + loop.kernel_extra.get(rank, 0)
            if collective:
                end = max(starts) + loop.collective
            self.gpu[rank] = end
            name = KERNEL if collective else "gemm"
            self._add(rank, "kernel", name, start, end, device=0, stream=7, correlation=self.number)

    def _call(self, rank: int, name: str, start: int, end: int) -> None:
        self._add(rank, "cuda_runtime", name, start, end, correlation=self.number)

    def _frame(self, rank: int, function: str, line: int, start: int, end: int) -> None:
        name = f"{FILE}({line}): {function}"
        self._add(rank, "python_function", name, start, end, **{"Python id": self.number})

    def _add(self, rank: int, cat: str, name: str, start: int, end: int, **args: Any) -> None:
        on_gpu = cat in ("kernel", "gpu_memcpy")
        self.events[rank].append(
            {
                "ph": "X", "cat": cat, "name": name, "pid": 0 if on_gpu else 7, "tid": 7,
                "ts": us(start), "dur": us(end - start), "args": args,
            }
        )  # fmt: skip

    def write(self, folder: Path) -> None:
        """The traces, one per rank."""
        for rank, events in enumerate(self.events):
            info = {"backend": "nccl", "rank": rank, "world_size": self.loop.ranks}
            text = json.dumps({"distributedInfo": info, "traceEvents": events}).encode()
            (folder / f"rank{rank}.json.gz").write_bytes(gzip.compress(text, 1))
