"""Faults of HG5: the host is busy or stalled."""

from __future__ import annotations

import gc
import queue
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelled import (
    BATCH,
    NO_GC,
    NO_OPS,
    NO_OS,
    NO_STACK,
    NSYS,
    PLAIN,
    UPLOAD,
    Bench,
    Step,
    think,
    variant,
)

if TYPE_CHECKING:
    from torch import Tensor


def collect_garbage() -> None:
    gc.collect()


@variant(
    "HG501",
    site="collect_garbage",
    per_step=1,
    missing={PLAIN: NO_GC, NSYS: NO_GC},
    also={
        "kineto:HG502": "without frames a collection is work of the host",
        "kineto:HG505": "without frames a collection is Python",
        "nsys:HG502": "without frames a collection is work of the host",
        "nsys:HG505": "without frames a collection is Python",
    },
)
def gc_collect(bench: Bench) -> Step:
    """Garbage is collected every step."""
    replay = bench.captured_step()
    gc.collect()
    gc.freeze()
    bench.freeze = False
    alive = [[i] for i in range(50_000)]  # what a server keeps, and every collection looks at

    def step() -> int:
        replay()
        collect_garbage()
        return len(alive)

    return step


def make_cycles(count: int) -> None:
    for _ in range(count):
        cycle: list[Any] = [None]
        cycle[0] = cycle


def mark_collections(bench: Bench) -> None:
    """Put a range `gc` around every collection, as a profiler of gc pauses does."""
    import torch
    from torch.profiler import record_function

    running: list[Any] = []

    def mark(phase: str, _: Any) -> None:
        if phase == "start":
            running.append(record_function("gc"))
            running[-1].__enter__()
            if bench.cuda:
                torch.cuda.nvtx.range_push("gc")
        elif running:
            if bench.cuda:
                torch.cuda.nvtx.range_pop()
            running.pop().__exit__(None, None, None)

    gc.callbacks.append(mark)
    bench.on_close(lambda: gc.callbacks.remove(mark))


@variant(
    "HG501",
    site="make_cycles",
    also={
        "HG502": "the garbage is made between two graphs",
        "HG505": "in Python",
    },
)
def gc_pressure(bench: Bench) -> Step:
    """Every step leaves cycles behind, and Python collects them when it likes."""
    replay = bench.captured_step()
    mark_collections(bench)

    def step() -> None:
        replay()
        make_cycles(20_000)

    return step


def schedule_requests() -> int:
    total = 0
    for i in range(50_000):  # here, not in a function that would be the place
        total += i & 7
    return total


@variant(
    "HG502",
    site="schedule_requests",
    also={"HG505": "the work is Python"},
)
def host_work(bench: Bench) -> Step:
    """The host schedules for two milliseconds between steps."""
    replay = bench.captured_step()

    def step() -> None:
        replay()
        schedule_requests()

    return step


def update_books(x: Tensor) -> int:
    total = 0
    for _ in range(32):
        x = x + 1
        for i in range(1_500):
            total += i & 7
    return total


@variant(
    "HG505",
    site="update_books",
    also={
        "HG201": "the GPU waits for every one of these launches",
        "HG202": "they are pointwise kernels in a row",
        "HG207": "each is like the one before",
        "HG301": "and they are not captured",
        "HG502": "the host works between launches",
        "HG504": "each launch is dispatched by itself",
    },
    missing={PLAIN: NO_STACK, NSYS: NO_STACK},
)
def python_bound(bench: Bench) -> Step:
    """Python works between the launches of a step."""
    replay = bench.captured_step()
    x = bench.tensor(BATCH, 1024)

    def step() -> None:
        replay()
        update_books(x)

    return step


def reshape_again(x: Tensor) -> None:
    for _ in range(300):
        x.transpose(0, 1).view_as(x.t())  # of x itself: no chain of views grows


@variant(
    "HG504",
    site="reshape_again",
    also={
        "HG502": "it is work of the host between graphs",
        "HG505": "part of it is Python",
    },
    missing={NSYS: NO_OPS},
)
def dispatch_bound(bench: Bench) -> Step:
    """The host passes through more than a thousand ops that launch nothing."""
    replay = bench.captured_step()
    x = bench.tensor(64, 64)

    def step() -> None:
        replay()
        reshape_again(x)

    return step


def next_request(requests: queue.Queue[int]) -> int:
    return requests.get()


@variant(
    "HG503",
    site="next_request",
    per_step=1,
    missing={PLAIN: NO_STACK, NSYS: NO_OS},
    also={
        "kineto:HG502": "without frames a wait is work of the host",
        "kineto:HG505": "without frames a wait is Python",
    },
    slack=1,
)
def queue_wait(bench: Bench) -> Step:
    """Every step waits for a request from a thread that is slow to make it."""
    replay = bench.captured_step()
    requests: queue.Queue[int] = queue.Queue(maxsize=1)
    ended = threading.Event()

    def produce() -> None:
        while not ended.wait(0.002):
            requests.put(1)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()  # a daemon: it may end the process waiting for room
    bench.on_close(ended.set)

    def step() -> None:
        next_request(requests)
        replay()

    return step


def back_off() -> None:
    time.sleep(0.002)


@variant(
    "HG503",
    site="back_off",
    per_step=1,
    missing={PLAIN: NO_STACK, NSYS: NO_OS},
    also={
        "kineto:HG502": "without frames a sleep is work of the host",
        "kineto:HG505": "without frames a sleep is Python",
    },
)
def sleep(bench: Bench) -> Step:
    """The loop sleeps between steps."""
    replay = bench.captured_step()

    def step() -> None:
        replay()
        back_off()

    return step


def build_metadata(lengths: list[int], host: Tensor) -> Tensor:
    import torch

    for row in range(32):
        length = torch.tensor(lengths[row])
        start = torch.arange(0, 8) + length
        host[row] = (start * 2).cumsum(0).max()
    return host


@variant(
    "HG507",
    site="build_metadata",
    also={
        **UPLOAD,
        "HG502": "it is work of the host between graphs",
        "HG504": "most of it is dispatching",
        "HG505": "the rest is Python",
    },
    missing={NSYS: NO_OPS},
)
def host_metadata(bench: Bench) -> Step:
    """A batch's metadata is rebuilt with tiny CPU tensors every step."""
    replay = bench.captured_step()
    host = bench.pinned(32)
    target = host.to(bench.device)
    lengths = list(range(32))

    def step() -> None:
        target.copy_(build_metadata(lengths, host), non_blocking=True)
        replay()

    return step


class Tokenizer:
    """A thread that computes in Python for 12 ms whenever it is asked to, and else sleeps."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def start(self) -> None:
        """Have it compute."""
        self._asked.set()

    def end(self) -> None:
        """End the thread."""
        self._ended = True
        self._asked.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while True:
            self._asked.wait()
            if self._ended:
                return
            self._asked.clear()
            for _ in range(150):  # short, or it would still compute when the profiler stops
                think(2_000)


@variant(
    "HG509",
    site="decode_beside_tokenizer",
    missing={PLAIN: NO_STACK, NSYS: NO_STACK},
    also={
        "HG307": "the lock is waited for when the launch call returns",
        "HG502": "what the host does while it has no lock cannot be told from work",
        "HG504": "three ops run on the CPU between graphs",
        "HG505": "Python waits for the lock, too",
    },
    cuda=True,
)
def gil_contention(bench: Bench) -> Step:
    """Another thread runs Python and keeps the interpreter's lock."""
    import torch

    replay = bench.captured_step()
    tokenizer = Tokenizer()
    bench.on_close(tokenizer.end)
    scores = torch.rand(1 << 18)
    sums = torch.empty_like(scores)

    def decode_beside_tokenizer() -> None:
        tokenizer.start()
        for _ in range(3):
            torch.cumsum(
                scores, 0, out=sums
            )  # an op gives the lock away, and its call needs it back
        replay()

    return decode_beside_tokenizer


SCHEDULER = """
import sys, time
from multiprocessing.connection import Client
with Client(sys.argv[1], authkey=b"suite") as link:
    try:
        while link.recv():
            time.sleep(0.002)
            link.send(1)
    except EOFError:
        pass
"""


def ask_scheduler(link: Connection) -> int:
    link.send(1)
    return link.recv()


@variant(
    "HG510",
    site="ask_scheduler",
    per_step=1,
    missing={PLAIN: NO_STACK, NSYS: "calls of the operating system do not say who answers"},
    also={
        "kineto:HG502": "without frames a wait is work of the host",
        "kineto:HG505": "without frames a wait is Python",
        "nsys:HG503": "a read that blocks, whoever answers it",
        "nsys:HG502": "without frames a wait is work of the host",
        "nsys:HG505": "without frames a wait is Python",
        "HG503": "the answer of another process is an input",
    },
)
def remote_wait(bench: Bench) -> Step:
    """Every step asks a scheduler in another process, which is slow to answer."""
    replay = bench.captured_step()
    address = str(Path(tempfile.mkdtemp()) / "link")
    with Listener(address, authkey=b"suite") as listener:
        child = subprocess.Popen([sys.executable, "-c", SCHEDULER, address])
        link = listener.accept()
    bench.on_close(link.close)
    bench.on_close(lambda: child.wait(timeout=5))

    def step() -> None:
        ask_scheduler(link)
        replay()

    return step


def fill_token_bitmask(mask: memoryview, allowed: bytes) -> None:
    for place in range(len(mask)):
        bits, first = 0, place * 8 % len(allowed)
        for bit in range(8):
            bits |= allowed[first + bit] << bit
        mask[place] = bits


@variant(
    "HG511",
    site="fill_token_bitmask",
    per_step=1,
    missing={PLAIN: NO_STACK, NSYS: NO_STACK},
    also={
        **UPLOAD,
        "HG302": "the sampler is a graph of its own",
        "HG502": "filling is work of the host",
        "HG504": "and the GPU waits while the upload is dispatched",
        "HG505": "and it is Python",
        "HG601": "the sampler waits for the copy",
    },
)
def grammar_mask(bench: Bench) -> Step:
    """A grammar's mask is filled and uploaded between the logits and the sampler."""
    import torch

    replay = bench.captured_step()
    size = bench.config.vocab_size
    host = bench.pinned(BATCH * size // 8, dtype=torch.uint8)
    mask = memoryview(host.numpy())
    target = host.to(bench.device)
    shifts = torch.arange(8, dtype=torch.uint8, device=bench.device)
    allowed = bytes(token % 7 == 0 for token in range(size))

    def sample() -> Tensor:
        bits = (target[:, None] >> shifts) & 1
        return bench.logits.masked_fill(bits.view(BATCH, size) == 0, -100.0).argmax(dim=-1)

    choose, _ = bench.captured(sample)

    def step() -> None:
        replay()
        fill_token_bitmask(mask, allowed)
        target.copy_(host, non_blocking=True)
        choose()

    return step
