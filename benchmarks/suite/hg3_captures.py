"""Faults of HG3: not captured, or captured badly."""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Any

from labelled import BATCH, MB, NAIVE, NSYS, OUTSIDE, Bench, Decoded, Step, think, variant

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from hostgap.decoder.model import LayerCache


def decode_rest(parts: Decoded, x: Tensor, low: int, high: int) -> Tensor:
    return parts.choose(parts.layers(x, low, high))


@variant(
    "HG301",
    site="decode_rest",
    also={code: why for code, why in NAIVE.items() if code != "HG301"},
)
def half_captured(bench: Bench) -> Step:
    """The first half of the layers is a graph, the second is launched kernel by kernel."""
    parts, layers = bench.eager, bench.config.n_layers
    half = layers // 2
    first, x = bench.captured(lambda: parts.layers(parts.embedded(), 0, half))

    def step() -> None:
        first()
        decode_rest(parts, x, half, layers)

    return step


def replay_pieces(pieces: list[Step]) -> None:
    for piece in pieces:
        think(4_000)
        piece()


@variant(
    "HG302",
    site="replay_pieces",
    also={
        "HG502": "the host works between the pieces",
        "HG505": "and that in Python",
        "HG112": "the GPU waits between the pieces although nothing depends on the host",
    },
)
def fragmented_graphs(bench: Bench) -> Step:
    """Every half layer is a graph of its own, with work of the host between them."""
    decoder = bench.decoder

    def attention(x: Tensor, layer: nn.Module, cache: LayerCache) -> Tensor:
        return x + layer.attention(layer.attention_norm(x), decoder.positions, cache)

    def mlp(x: Tensor, layer: nn.Module) -> Tensor:
        return x + layer.mlp(layer.mlp_norm(x))

    piece, x = bench.captured(bench.eager.embedded)
    pieces = [piece]
    for layer, cache in zip(bench.model.layers, decoder.caches, strict=True):
        piece, x = bench.captured(lambda x=x, layer=layer, c=cache: attention(x, layer, c))
        pieces.append(piece)
        piece, x = bench.captured(lambda x=x, layer=layer: mlp(x, layer))
        pieces.append(piece)
    piece, _ = bench.captured(lambda x=x: bench.eager.choose(x))
    pieces.append(piece)

    def step() -> None:
        replay_pieces(pieces)

    return step


def capture_again(work: Step, side: torch.cuda.Stream, pool: Any) -> torch.cuda.CUDAGraph:
    import torch

    graph = torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        work()
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(side)
    graph.replay()
    return graph


@variant(
    "HG304",
    site="capture_again",
    per_step=1,
    also={
        "HG302": "what is captured anew is a second graph",
        "HG307": "the first launch of a new graph uploads it",
        "HG401": "a graph's memory is allocated with it",
        "HG504": "capturing dispatches every op",
        "HG505": "and runs the model's Python",
    },
    cuda=True,
)
def capture_in_step(bench: Bench) -> Step:
    """A layer is captured anew in every step."""
    import torch

    replay = bench.captured_step()
    parts = bench.eager
    pool = torch.cuda.graph_pool_handle()
    side = torch.cuda.Stream()
    kept: deque[Any] = deque(maxlen=2)
    x = parts.embedded()

    def step() -> None:
        replay()
        kept.append(capture_again(lambda: parts.layers(x, 0, 1), side, pool))

    return step


def copy_inputs(sources: list[Tensor], targets: list[Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)


@variant(
    "HG305",
    site="copy_inputs",
    per_step=12,
    also={
        **OUTSIDE,
        "HG206": "a dozen copies a step, of 5 us each",
        "HG601": "the graph waits for them",
    },
)
def graph_input_copies(bench: Bench) -> Step:
    """A dozen inputs are copied to where the graph expects them."""
    replay = bench.captured_step()
    sources = [bench.bytes(4 * MB) for _ in range(12)]
    targets = [bench.bytes(4 * MB) for _ in range(12)]

    def step() -> None:
        copy_inputs(sources, targets)
        replay()

    return step


def scale_rows(x: Tensor) -> Tensor:
    return x * 2 + 1


@variant(
    "HG306",
    site="step_of_new_shape",
    per_step=1,
    also={
        **OUTSIDE,
        "HG502": "compiling is work of the host between graphs",
        "HG505": "and runs in Python",
        "HG501": "compiling makes garbage",
    },
    missing={NSYS: "an export shows compiling only where it loads modules"},
    steps=4,
)
def recompile(bench: Bench) -> Step:
    """A compiled function gets another shape every step."""
    import torch

    torch._dynamo.config.recompile_limit = 10_000
    torch._dynamo.config.accumulated_recompile_limit = 10_000
    replay = bench.captured_step()
    compiled = torch.compile(scale_rows, dynamic=False, backend="eager")
    x = bench.tensor(512, 64)
    sizes = itertools.count(2)

    def step_of_new_shape() -> None:
        replay()
        compiled(x[: next(sizes)])

    return step_of_new_shape


def broken_mlp(x: Tensor, weight: Tensor) -> Tensor:
    import torch

    # not in a loop: of a loop that breaks, Dynamo compiles nothing
    x = (x @ weight).relu()
    torch._dynamo.graph_break()
    x = (x @ weight).relu()
    torch._dynamo.graph_break()
    x = (x @ weight).relu()
    torch._dynamo.graph_break()
    return (x @ weight).relu()


@variant(
    "HG303",
    site="broken_mlp",
    also={
        **OUTSIDE,
        "HG201": "every region's kernels are launched on their own",
        "HG504": "entering a compiled region is work of the framework",
        "HG505": "and of Python",
        "HG207": "each region launches the same kernels",
    },
    missing={NSYS: "an export does not show compiled regions"},
)
def graph_breaks(bench: Bench) -> Step:
    """A compiled function falls apart into a region per layer."""
    import torch

    torch._dynamo.config.recompile_limit = 64
    size = bench.config.hidden
    weight = bench.tensor(size, size) / size**0.5
    x = bench.tensor(BATCH, size)
    backend = "inductor" if bench.cuda else "eager"
    compiled = torch.compile(broken_mlp, dynamic=False, backend=backend)

    def step() -> None:
        compiled(x, weight)

    return step
