"""Choosing the next token: the likeliest, or one drawn by a hash instead of a generator.

A generator has state: a captured step would have to carry it, and a step that is done again would
draw anew. Here the noise is a hash of (seed, row, position, token), so that a step is a function of
its tensors, and the same in eager mode, compiled, in a CUDA graph, on a CPU and on a GPU, up to the
rounding of two logarithms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from hostgap.errors import ConfigError

IntOrTensor = TypeVar("IntOrTensor", int, Tensor)

_MASK = 0xFFFFFFFF
# Of "hash-prospector" by Chris Wellons (public domain). As signed 32-bit numbers, because times
# 32 bits they then fit into an int64: nothing overflows, whatever compiles it.
_FACTOR_1 = 0x21F0AAAD
_FACTOR_2 = 0xD35A2D97 - (1 << 32)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw a token: softmax(logits / temperature), of the `top_k` likeliest only.

    Tokens as likely as the k-th stay in. `seed` is any integer; its lowest 64 bits count.
    """

    temperature: float = 1.0
    top_k: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise ConfigError(
                f"a sampling temperature of {self.temperature}; it must be positive",
                "For the likeliest token decode without sampling.",
            )
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"a top_k of {self.top_k}; it must be 1 or more")


def mix(x: IntOrTensor) -> IntOrTensor:
    """A bijection of 32-bit numbers (an int, or an int64 tensor of them) that looks random."""
    x = x ^ (x >> 16)
    x = (x * _FACTOR_1) & _MASK
    x = x ^ (x >> 15)
    x = (x * _FACTOR_2) & _MASK
    return x ^ (x >> 15)


def gumbel_noise(seed: int, positions: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise for every row and token.

    Args:
        seed: any integer.
        positions: [B, 1] int64; rows are told apart by their index.
        vocab_size: V.

    Returns:
        [B, V] float32.
    """
    rows = torch.arange(positions.shape[0], device=positions.device)[:, None]
    tokens = torch.arange(vocab_size, device=positions.device)
    key = mix(mix(seed & _MASK) ^ ((seed >> 32) & _MASK))
    # Numbers loaded from memory come first: where a compiler holds an index in 32 bits, what is
    # computed from it alone would overflow.
    keys = mix(mix(positions ^ key) ^ rows)  # [B, 1]
    bits = mix((mix(keys ^ tokens) + keys) & _MASK)  # [B, V], 32 of them
    # 23 bits and a half: exact in float32, and never 0 or 1, whose logarithms are of no use.
    uniform = ((bits >> 9).float() + 0.5) * 2.0**-23
    return -torch.log(-torch.log(uniform))


def choose(logits: Tensor, positions: Tensor, sampling: Sampling | None) -> Tensor:
    """The next token of every row.

    Drawing adds Gumbel noise to the logits and takes the largest, which is a draw from the softmax
    without having to sum it up.

    Args:
        logits: [B, V].
        positions: [B, 1] int64, of the tokens that were read last; only sampling looks at them.
        sampling: None for the likeliest token.

    Returns:
        [B, 1] int64.
    """
    if sampling is None:
        return logits.argmax(dim=-1, keepdim=True)
    scaled = logits.float() / sampling.temperature
    vocab_size = scaled.shape[-1]
    if sampling.top_k is not None and sampling.top_k < vocab_size:
        least = scaled.topk(sampling.top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < least, -math.inf)
    noise = gumbel_noise(sampling.seed, positions, vocab_size)
    return (scaled + noise).argmax(dim=-1, keepdim=True)
