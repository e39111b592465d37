"""Two ranks of a decode loop, simulated: hosts that launch, GPUs that run in order and wait for one
another in collectives, a wait of the host at the end of each step. What a fault costs is the step's
length with it less that without, which no trace shows. What a recorder adds can be simulated too:
the loop as recorded is then another one than the loop that is timed."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from hostgap.profiling.measurement import Estimate, GraphTimes, Pass
from hostgap.profiling.rank_waits import rank_waits
from hostgap.profiling.requests import REPLAY, Stop, WatchedStep
from hostgap.profiling.rundir import write_measurement
from tests.profiling.build import measurement
from tests.ranks.build import KERNEL, us

FILE = "/srv/decode.py"
PARTS = ("norm", "project", "rotate", "attend", "gate", "add")  # functions that launch kernels
AFTER = ("collect", "stop", "schedule", "feed", "log")  # those between steps


@dataclass
class Loop:
    """Times in ns.

    Attributes:
        graph: the step is one graph launch; else each kernel has its own.
        work: rank -> Python before each step, in a function of its own.
        upload: rank -> how long a blocking copy of pageable memory takes before each step.
        kernel_extra: rank -> how much longer each of its kernels takes.
        jitter: of each launch, at most.
        slower: rank -> share by which its host takes longer for all that it does, but `work`.
        launch_extra: rank -> how much longer its graph launches keep the host, not the GPU.
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
    launch_extra: Mapping[int, int] = field(default_factory=dict)
    jitter: int = 0
    seed: int = 0


class Simulated:
    """The loop, run.

    Attributes:
        events: per rank.
        watched: per rank, what `hostgap.profiling.watch` sees of the loop, but its first step.
        step_ns: from the second step's end to the last one's, a step.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.random = random.Random(loop.seed)
        self.events: list[list[dict[str, Any]]] = [[] for _ in range(loop.ranks)]
        self.host = [1_000_000 + 3_000 * rank for rank in range(loop.ranks)]
        self.gpu = [0] * loop.ranks
        self.number = 0
        self.watched: list[list[WatchedStep]] = [[] for _ in range(loop.ranks)]
        ends = [self._step(index) for index in range(loop.steps)]
        self.step_ns = (ends[-1] - ends[1]) / (loop.steps - 2)

    def _step(self, index: int) -> int:
        loop = self.loop
        begun = list(self.host)
        self.stops: list[list[Stop]] = [[] for _ in range(loop.ranks)]
        for rank in range(loop.ranks):
            if rank in loop.work:
                until = self.host[rank] + loop.work[rank]
                self._frame(rank, "check", 40, self.host[rank], until)
                self.host[rank] = until
            if rank in loop.upload:
                self._upload(rank)
        called, came = list(self.host), list(self.gpu)
        if loop.graph:
            self.number += 1
            for rank in range(loop.ranks):
                begin = self.host[rank]
                self.host[rank] += loop.launch + loop.launch_extra.get(rank, 0)
                self._call(rank, "cudaGraphLaunch", begin, self.host[rank])
                called[rank] = begin + 30_000
        for _ in range(loop.layers):
            for kernel in range(loop.kernels + 1):
                self._kernels(called, kernel)
        for rank in range(loop.ranks):
            begin, end = self.host[rank], max(self.gpu[rank], self.host[rank]) + 4_000
            self._call(rank, "cudaStreamSynchronize", begin, end)
            if loop.graph:
                since = max(came[rank], called[rank])
                self._stop(rank, REPLAY, called[rank] - 30_000, self.gpu[rank] - since)
            self.host[rank] = end
            for line, function in enumerate(AFTER):
                until = self.host[rank] + self._slowed(rank, loop.deliver // len(AFTER))
                self._frame(rank, function, 60 + line, self.host[rank], until)
                self.host[rank] = until
            if index:
                self.watched[rank].append(WatchedStep(begun[rank], self.stops[rank], 0))
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

    def _slowed(self, rank: int, ns: int) -> int:
        return round(ns * (1 + self.loop.slower.get(rank, 0)))

    def _kernels(self, called: list[int], kernel: int) -> None:
        """The next kernel of each rank in a layer; the last is the collective."""
        loop = self.loop
        collective = kernel == loop.kernels
        part = kernel % len(PARTS)
        starts = []
        if not loop.graph:
            self.number += 1
        for rank in range(loop.ranks):
            ready = called[rank]
            if not loop.graph:
                begin = self.host[rank]
                took = self._slowed(rank, loop.host) + self.random.randint(0, loop.jitter)
                self.host[rank] += took
                self._frame(rank, PARTS[part], 70 + part, begin, self.host[rank])
                self._add(rank, "cpu_op", "aten::mm", begin, self.host[rank] - 500)
                call = begin + self._slowed(rank, 3_000), begin + self._slowed(rank, 7_000)
                self._call(rank, "cudaLaunchKernel", *call)
                ready = call[1] + 1_000
            starts.append(max(ready, self.gpu[rank] + 800))
        free = list(self.gpu)
        for rank, start in enumerate(starts):
            end = start + loop.kernel + loop.kernel_extra.get(rank, 0)
            if collective:
                end = max(starts) + loop.collective
            self.gpu[rank] = end
            if collective and not loop.graph:
                since = max(free[rank], start - 1_000)
                self._stop(rank, "all_reduce", self.host[rank] - loop.host, end - since)
            name = KERNEL if collective else "gemm"
            self._add(rank, "kernel", name, start, end, device=0, stream=7, correlation=self.number)

    def _stop(self, rank: int, what: str, called: int, inside: int) -> None:
        everyone = tuple(range(self.loop.ranks))
        self.stops[rank].append(Stop(what, everyone, called, float(inside)))

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


def write_runs(folder: Path, recorded: Simulated, plain: Simulated | None) -> None:
    """Run directories of ranks: traces with stacks for all passes, and what was measured without a
    profiler of the loop as it is then; None: as it was before that was measured."""
    recorded.write(folder)
    times = plain or recorded
    graphs = [GraphTimes(call_ns=times.loop.launch, span_ns=1e9)] if times.loop.graph else []
    ranks = range(recorded.loop.ranks)
    blocks = [[one[at : at + 2] for at in range(0, len(one), 2)] for one in times.watched]
    waits = rank_waits(blocks, [[] for _ in ranks])
    step = Estimate(median_ns=times.step_ns, low_ns=times.step_ns, high_ns=times.step_ns)
    for rank in ranks:
        run, made = folder / f"rank{rank}", folder / f"rank{rank}.json.gz"
        run.mkdir()
        for name in ("cpu_cuda", "stacks"):
            (run / f"{name}.json.gz").write_bytes(made.read_bytes())
        made.unlink()
        one = measurement()
        one = msgspec.structs.replace(
            one,
            options={"preset": "shallow", "ranks": recorded.loop.ranks},
            passes=[
                Pass(mode="cpu+cuda", file="cpu_cuda.json.gz", step=step),
                Pass(mode="stacks", file="stacks.json.gz", step=step),
            ],
            graphs=graphs if plain is not None else [],
            waits=waits[rank] if plain is not None else None,
            timing=msgspec.structs.replace(one.timing, step=step),
        )
        write_measurement(run, one)
