"""Controls: nothing to fix."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from labelled import BATCH, Bench, Step, think, variant

if TYPE_CHECKING:
    from torch import Tensor


def products(bench: Bench, count: int, size: int = 8192) -> Step:
    """Large matrix products, each of the result before it."""
    size = size if bench.cuda else 16
    x = bench.tensor(size, size)
    weight = bench.tensor(size, size) / size**0.5

    def multiply() -> Tensor:
        y = x
        for _ in range(count):
            y = y @ weight
        return y

    return multiply


@variant()
def control_gpu_bound(bench: Bench) -> Step:
    """Large matrix products keep the GPU busy."""
    return products(bench, 4)


@variant()
def control_gemm_loop(bench: Bench) -> Step:
    """Many launches, each of a kernel longer than it takes to launch."""
    return products(bench, 24)


@variant(steps=4)
def control_item_gpu_bound(bench: Bench) -> Step:
    """A scalar is read while the GPU is busy for long: the read costs nothing to speak of."""
    multiply = products(bench, 8, 16384)  # about 100 ms

    def step() -> None:
        multiply()[0, 0].item()

    return step


@variant()
def control_hidden_host_work(bench: Bench) -> Step:
    """The host works for a millisecond while the GPU is busy for longer."""
    multiply = products(bench, 8)

    def step() -> None:
        multiply()
        think(25_000)

    return step


@variant()
def control_graph_replay(bench: Bench) -> Step:
    """The whole step is one graph."""
    replay = bench.captured_step()

    def step() -> None:
        replay()

    return step


@variant(cuda=True)
def control_pinned_async_upload(bench: Bench) -> Step:
    """A small upload from pinned memory that does not block."""
    replay = bench.captured_step()
    hosts = itertools.cycle([bench.pinned(64) for _ in range(4)])
    target = bench.pinned(64).to(bench.device)
    count = itertools.count()

    def step() -> None:
        host = next(hosts)
        host.fill_(next(count))
        target.copy_(host, non_blocking=True)
        replay()

    return step


@variant(cuda=True)
def control_async_output(bench: Bench) -> Step:
    """The output is copied asynchronously, and waited for a step later."""
    import torch

    replay = bench.captured_step()
    slots = itertools.cycle([(bench.pinned(BATCH, 1), torch.cuda.Event()) for _ in range(2)])
    before: list[Any] = []

    def step() -> None:
        replay()
        host, event = next(slots)
        host.copy_(bench.decoder.tokens, non_blocking=True)
        event.record()
        if before:
            before.pop().synchronize()  # the step before, which has long been computed
        before.append(event)

    return step


@variant(cuda=True)
def control_event_query(bench: Bench) -> Step:
    """An event is asked for once a step, without waiting."""
    import torch

    replay = bench.captured_step()
    event = torch.cuda.Event()

    def step() -> None:
        replay()
        event.query()
        event.record()

    return step


@variant(cuda=True)
def control_two_streams(bench: Bench) -> Step:
    """Two graphs on two streams, in order by events alone."""
    import torch

    replay = bench.captured_step()
    side = torch.cuda.Stream()
    multiply = products(bench, 2, 4096)
    second, _ = bench.captured(multiply)

    def step() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            second()
        replay()
        torch.cuda.current_stream().wait_stream(side)

    return step


@variant()
def control_compile_graphs(bench: Bench) -> Step:
    """torch.compile with CUDA graphs."""
    import torch

    size = 4096 if bench.cuda else 16

    class Mlp(torch.nn.Module):
        """Input and weights are the module's, so that no graph needs a copy of them."""

        x: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(
                torch.nn.Linear(size, size, bias=False) for _ in range(8)
            )
            self.register_buffer("x", torch.randn(size, size))

        def forward(self) -> Tensor:
            y = self.x
            for layer in self.layers:
                y = torch.nn.functional.gelu(layer(y))
            return y

    mlp = Mlp().to(bench.device, bench.dtype).requires_grad_(False)
    mode = "reduce-overhead" if bench.cuda else None
    backend = "inductor" if bench.cuda else "eager"
    compiled = torch.compile(mlp, dynamic=False, mode=mode, backend=backend)

    def step() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        compiled()

    return step
