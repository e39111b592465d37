"""Faults of HG2: too many launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labelled import BATCH, NAIVE, NSYS, OUTSIDE, UPLOAD, Bench, Decoded, Step, variant

if TYPE_CHECKING:
    from torch import Tensor


def decode_eagerly(parts: Decoded, layers: int) -> Tensor:
    return parts.choose(parts.layers(parts.embedded(), 0, layers))


@variant(
    "HG201",
    site="decode_eagerly",
    also={code: why for code, why in NAIVE.items() if code != "HG201"},
)
def launch_storm(bench: Bench) -> Step:
    """Every kernel of the step is launched on its own."""
    parts, layers = bench.eager, bench.config.n_layers

    def step() -> None:
        decode_eagerly(parts, layers)

    return step


def rotate_and_norm(x: Tensor, cos: Tensor, sin: Tensor, weight: Tensor) -> Tensor:
    for _ in range(4):
        first, second = x.chunk(2, dim=-1)
        x = first.repeat(1, 2) * cos + second.repeat(1, 2) * sin
        x = x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * weight
    return x


@variant(
    "HG202",
    site="rotate_and_norm",
    also={
        **OUTSIDE,
        "HG201": "the chain is forty launches of short kernels",
        "HG206": "two copies of half the heads a round",
        "HG207": "four rounds launch the same kernels",
        "HG302": "the chain splits the step in two graphs",
        "HG305": "its result is copied into the second graph's input",
        "HG504": "the host is busy dispatching the chain",
        "HG505": "and in the Python between its ops",
    },
)
def pointwise_chain(bench: Bench) -> Step:
    """Between two captured halves a chain of pointwise kernels runs on its own."""
    parts, half = bench.eager, bench.config.n_layers // 2
    size = bench.config.hidden
    first, x = bench.captured(lambda: parts.layers(parts.embedded(), 0, half))
    cos, sin, weight = (bench.tensor(BATCH, size) for _ in range(3))
    out = x.clone()
    second, _ = bench.captured(lambda: parts.choose(parts.layers(out, half, bench.config.n_layers)))

    def step() -> None:
        first()
        out.copy_(rotate_and_norm(x[:, 0], cos, sin, weight)[:, None])
        second()

    return step


BLOCKS = 8  # of projections, attention or feed-forward outside the graph
BLOCK_PARTS = {
    **OUTSIDE,
    "HG201": "eight blocks are dozens of launches of short kernels",
    "HG207": "eight blocks launch the same kernels",
    "HG504": "the host is busy dispatching the blocks",
    "HG505": "and in the Python between their ops",
}


def project_qkv(x: Tensor, weights: list[Tensor]) -> tuple[Tensor, ...]:
    from torch.nn import functional

    query, key, value = weights
    return functional.linear(x, query), functional.linear(x, key), functional.linear(x, value)


def mix(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    from torch.nn import functional

    heads = (BATCH, 1, 4, -1)
    q, k, v = (t.view(heads).transpose(1, 2) for t in (query, key, value))
    return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(BATCH, -1)


@variant(
    "HG203",
    site="project_qkv",
    per_step=BLOCKS,
    also=BLOCK_PARTS,
    missing={NSYS: "without ops or modules, projections are matrix products in a row"},
)
def split_projection(bench: Bench) -> Step:
    """Query, key and value are three matrix products of one input."""
    replay = bench.captured_step()
    size = bench.config.hidden
    weights = [bench.tensor(size, size) / size**0.5 for _ in range(3)]
    x = bench.tensor(BATCH, size)

    def step() -> None:
        replay()
        y = x
        for _ in range(BLOCKS):
            y = mix(*project_qkv(y, weights))

    return step


def attend_unfused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    scores = query @ key.transpose(-2, -1) * 0.125
    return (scores + mask).softmax(dim=-1) @ value


@variant(
    "HG204",
    site="attend_unfused",
    per_step=BLOCKS,
    also={**BLOCK_PARTS, "HG202": "scale, mask and softmax are a chain of pointwise kernels"},
)
def unfused_attention(bench: Bench) -> Step:
    """Attention is written as matmul, mask, softmax, matmul."""
    replay = bench.captured_step()
    heads, size = bench.config.n_heads, bench.config.head_dim
    key, value = (bench.tensor(BATCH, heads, 512, size) for _ in range(2))
    query = bench.tensor(BATCH, heads, 1, size)
    mask = bench.tensor(1, 1, 1, 512)

    def step() -> None:
        replay()
        x = query
        for _ in range(BLOCKS):
            x = attend_unfused(x, key, value, mask)

    return step


def feed_forward_unfused(x: Tensor, up: Tensor, bias: Tensor, down: Tensor) -> Tensor:
    from torch.nn import functional

    return functional.gelu(x @ up + bias) @ down


@variant("HG205", site="feed_forward_unfused", per_step=BLOCKS, also=BLOCK_PARTS)
def bias_gelu(bench: Bench) -> Step:
    """Bias and GELU are kernels of their own behind a matrix product."""
    replay = bench.captured_step()
    size = bench.config.hidden
    up, down = (bench.tensor(size, size) / size**0.5 for _ in range(2))
    bias = bench.tensor(size)
    x = bench.tensor(BATCH * 16, size)

    def step() -> None:
        replay()
        y = x
        for _ in range(BLOCKS):
            y = feed_forward_unfused(y, up, bias, down)

    return step


def write_slots(cache: Tensor, rows: Tensor) -> None:
    for slot in range(len(rows)):
        cache[slot].copy_(rows[slot])


@variant(
    "HG206",
    site="write_slots",
    per_step=96,
    also={
        **OUTSIDE,
        "HG201": "the copies are a hundred launches",
        "HG207": "each is like the one before",
        "HG504": "the host is busy dispatching them",
        "HG505": "and in the Python between them",
    },
)
def tiny_copies(bench: Bench) -> Step:
    """A cache is written slot by slot."""
    replay = bench.captured_step()
    cache, rows = bench.tensor(96, 512), bench.tensor(96, 512)

    def step() -> None:
        replay()
        write_slots(cache, rows)

    return step


def upload_fields(fields: list[Tensor], targets: list[Tensor]) -> None:
    for source, target in zip(fields, targets, strict=True):
        target.copy_(source, non_blocking=True)


@variant(
    "HG206",
    site="upload_fields",
    per_step=64,
    also={
        **OUTSIDE,
        **UPLOAD,
        "HG201": "the copies are dozens of launches",
        "HG504": "the host is busy dispatching them",
        "HG505": "and in the Python between them",
        "HG601": "the compute stream waits while they are copied",
    },
    cuda=True,
)
def tiny_uploads(bench: Bench) -> Step:
    """A batch's fields are uploaded one by one."""
    import torch

    replay = bench.captured_step()
    fields = [bench.pinned(BATCH) for _ in range(64)]
    targets = [torch.zeros(BATCH, dtype=torch.int64, device=bench.device) for _ in fields]

    def step() -> None:
        upload_fields(fields, targets)
        replay()

    return step


def run_blocks(x: Tensor, weights: list[Tensor]) -> Tensor:
    for weight in weights:
        x = (x @ weight).relu()
        x = x / x.amax()
    return x


@variant(
    "HG207",
    site="run_blocks",
    also={
        **{code: why for code, why in BLOCK_PARTS.items() if code != "HG207"},
        "HG202": "what follows each product is a chain of pointwise kernels",
        "HG205": "activations are kernels of their own",
    },
)
def repeated_chain(bench: Bench) -> Step:
    """The same few kernels are launched again for each of many blocks."""
    replay = bench.captured_step()
    size = bench.config.hidden
    weights = [bench.tensor(size, size) / size**0.5 for _ in range(24)]
    x = bench.tensor(BATCH, size)

    def step() -> None:
        replay()
        run_blocks(x, weights)

    return step
