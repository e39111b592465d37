"""A LLaMA/Qwen-style decoder in one file, with the defects of a first version as switches.

What a decode step really launches is the subject here. Weights are stored the way a good engine
stores them (one matrix for query, key and value, one for gate and up); by default they are used the
way a first version does: three projections, rotary embedding as a string of pointwise kernels,
attention as matmul, mask, softmax, matmul. Each of these is a defect (`hostgap.decoder.defects`)
that can be switched off, and changes nothing but rounding. `hostgap.decoder.generate` turns the
model into a decode loop.

The length of the keys and values is no shape: the cache has all its slots from the start, positions
on the device say which of them count. So a captured step serves every length, and every mixture of
lengths in a batch, without being captured again.

Letters in shapes: B batch, T tokens of this call, S slots of the cache, H query heads, G key/value
heads, D head size, E hidden size, I intermediate size, V vocabulary.

Left out on purpose: tokenizer, checkpoints, dropout, training.
"""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from hostgap.decoder.defects import NAIVE as NAIVE
from hostgap.decoder.defects import checked
from hostgap.errors import ConfigError


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The shape of a decoder; `n_heads` must be a multiple of `n_kv_heads`.

    With `gelu` every linear layer has a bias, and the feed-forward block is fc2(gelu(fc1(x))).
    """

    vocab_size: int
    n_layers: int
    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    intermediate: int
    max_seq_len: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    gelu: bool = False


# Runs on a CPU in milliseconds, with every mechanism of the large ones.
_TINY = DecoderConfig(
    vocab_size=256,
    n_layers=3,
    hidden=64,
    n_heads=4,
    n_kv_heads=2,
    head_dim=16,
    intermediate=160,
    max_seq_len=64,
)
# So small for a GPU that the step is nearly all launch overhead.
_SMALL = DecoderConfig(
    vocab_size=32_000,
    n_layers=16,
    hidden=1024,
    n_heads=16,
    n_kv_heads=8,
    head_dim=64,
    intermediate=2816,
    max_seq_len=1024,
)
PRESETS: dict[str, DecoderConfig] = {
    "tiny": _TINY,
    "tiny-gelu": replace(_TINY, gelu=True),
    "small": _SMALL,
    # As "small", but short: a fault of a millisecond stands out of the noise of an eager step.
    "shallow": replace(_SMALL, n_layers=4),
    "gelu": replace(_SMALL, gelu=True),
    # The shape of Qwen3-8B: 16 GB of bfloat16 weights are read for every token.
    "8b": DecoderConfig(
        vocab_size=151_936,
        n_layers=36,
        hidden=4096,
        n_heads=32,
        n_kv_heads=8,
        head_dim=128,
        intermediate=12_288,
        max_seq_len=1024,
        rope_theta=1_000_000.0,
    ),
}


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, in float32; eight kernels in bf16."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> [..., size]."""
        x32 = x.float()
        mean_square = x32.pow(2).mean(-1, keepdim=True)
        return self.weight * (x32 * torch.rsqrt(mean_square + self.eps)).to(x.dtype)


Rotated = tuple[Tensor, Tensor]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x[i], x[i + D/2]) by its angle: [B, heads, T, D] -> the same."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def apply_rotary(query: Tensor, key: Tensor, positions: Tensor, inv_freq: Tensor) -> Rotated:
    """Rotary position embedding in the half-split layout of LLaMA and Qwen checkpoints.

    Args:
        query: [B, H, T, D].
        key: [B, G, T, D].
        positions: [B, T] int64.
        inv_freq: [D / 2] float32, radians a position.

    Returns:
        Query and key, turned.
    """
    angles = positions[:, None, :, None].float() * inv_freq
    angles = torch.cat((angles, angles), dim=-1)
    cos, sin = angles.cos().to(query.dtype), angles.sin().to(query.dtype)  # [B, 1, T, D]
    return rotate(query, cos, sin), rotate(key, cos, sin)


@functools.cache
def _compiled_rotary() -> Callable[[Tensor, Tensor, Tensor, Tensor], Rotated]:
    return torch.compile(apply_rotary)


def apply_rotary_fused(query: Tensor, key: Tensor, positions: Tensor, inv_freq: Tensor) -> Rotated:
    """`apply_rotary` in at most 3 kernels where that pays: for a decode step on a GPU.

    A prefill is left as it is, or each of its lengths might be compiled anew; in what is being
    compiled as a whole, the function is fused with its surroundings.
    """
    if not query.is_cuda or query.shape[2] > 1 or torch.compiler.is_compiling():
        return apply_rotary(query, key, positions, inv_freq)
    return _compiled_rotary()(query, key, positions, inv_freq)


class LayerCache(nn.Module):
    """One layer's keys and values, in buffers whose addresses never change.

    Buffers of a module, and not plain tensors, because `torch.compile` with CUDA graphs treats
    module buffers as fixed addresses that may be written in place.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, config: DecoderConfig, batch: int, like: Tensor) -> None:
        super().__init__()
        shape = (batch, config.n_kv_heads, config.max_seq_len, config.head_dim)
        self.register_buffer("keys", like.new_zeros(shape), persistent=False)
        self.register_buffer("values", like.new_zeros(shape), persistent=False)

    def write(self, positions: Tensor, key: Tensor, value: Tensor) -> None:
        """Store key and value [B, G, T, D] in the slots named by positions [B, T].

        `scatter_` takes its slots from the device, so each row may stand at its own position and
        the host never needs to know it.
        """
        slots = positions[:, None, :, None].expand_as(key)
        self.keys.scatter_(2, slots, key)
        self.values.scatter_(2, slots, value)


def slot_mask(positions: Tensor, slots: int, dtype: torch.dtype) -> Tensor:
    """What is added to scores: 0 for a slot that a token may look at, -inf for a later one.

    Not a boolean mask: cuDNN's kernel adds, and every layer would convert it anew.

    Args:
        positions: [B, T] int64.
        slots: S.
        dtype: of the scores.

    Returns:
        [B, 1, T, S].
    """
    hidden = torch.arange(slots, device=positions.device) > positions[:, None, :, None]
    return torch.zeros_like(hidden, dtype=dtype).masked_fill(hidden, -math.inf)


def attend_unfused(query: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """Attention in steps: query [B, H, T, D], keys and values [B, G, S, D] -> [B, H, T, D].

    Every slot is read and the unwritten ones masked: shapes stay static.
    """
    group = query.shape[1] // keys.shape[1]
    keys = keys.repeat_interleave(group, dim=1)  # [B, H, S, D]
    values = values.repeat_interleave(group, dim=1)  # [B, H, S, D]
    scores = query @ keys.transpose(-2, -1) / math.sqrt(query.shape[-1])  # [B, H, T, S]
    mask = slot_mask(positions, keys.shape[2], query.dtype)
    weights = torch.softmax(scores + mask, dim=-1, dtype=torch.float32).to(query.dtype)
    return weights @ values


def project(x: Tensor, linear: nn.Linear, sizes: Sequence[int], apart: bool) -> Sequence[Tensor]:
    """Several projections whose weights are stored as one: x [..., E] -> one [..., size] a size.

    `apart` reads the input once for each of them, from the same weights.
    """
    if not apart:
        return torch.split(linear(x), list(sizes), dim=-1)
    weights = torch.split(linear.weight, list(sizes))
    bias: Tensor | None = linear.bias
    biases = [None] * len(sizes) if bias is None else torch.split(bias, list(sizes))
    return [functional.linear(x, *part) for part in zip(weights, biases, strict=True)]


class Attention(nn.Module):
    """Grouped-query attention with per-head norms of query and key (as in Qwen3)."""

    inv_freq: Tensor

    def __init__(self, config: DecoderConfig, defects: frozenset[str]) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        q_size, kv_size = (n * config.head_dim for n in (config.n_heads, config.n_kv_heads))
        self.sizes = (q_size, kv_size, kv_size)
        self.qkv_proj = nn.Linear(config.hidden, sum(self.sizes), bias=config.gelu)
        self.o_proj = nn.Linear(q_size, config.hidden, bias=config.gelu)
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps)
        exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        # A buffer, and float32 whatever the weights are: angles reach thousands of radians.
        self.register_buffer("inv_freq", config.rope_theta**-exponent, persistent=False)
        self.split = "qkv_split" in defects
        self.unfused = "attention_unfused" in defects
        self.rotary = apply_rotary if "rope_unfused" in defects else apply_rotary_fused

    def forward(
        self, x: Tensor, positions: Tensor, cache: LayerCache, mask: Tensor | None = None
    ) -> Tensor:
        """x [B, T, E] at positions [B, T] -> [B, T, E]; writes T slots of the cache.

        `mask` is `slot_mask` of the positions, for a caller who has it already.
        """
        batch, length, _ = x.shape
        heads = (batch, length, -1, self.head_dim)
        query, key, value = project(x, self.qkv_proj, self.sizes, self.split)
        query = self.q_norm(query.view(heads)).transpose(1, 2)  # [B, H, T, D]
        key = self.k_norm(key.view(heads)).transpose(1, 2)  # [B, G, T, D]
        value = value.view(heads).transpose(1, 2)  # [B, G, T, D]
        query, key = self.rotary(query, key, positions, self.inv_freq)
        cache.write(positions, key, value)

        if self.unfused:
            mixed = attend_unfused(query, cache.keys, cache.values, positions)
        else:
            if mask is None:
                mask = slot_mask(positions, cache.keys.shape[2], x.dtype)
            mixed = functional.scaled_dot_product_attention(
                query, cache.keys, cache.values, attn_mask=mask, enable_gqa=True
            )
        output: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return output


class SwiGLU(nn.Module):
    """The feed-forward block: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: DecoderConfig, defects: frozenset[str]) -> None:
        super().__init__()
        self.sizes = (config.intermediate, config.intermediate)
        self.gate_up_proj = nn.Linear(config.hidden, sum(self.sizes), bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)
        self.split = "qkv_split" in defects

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, E] -> [B, T, E]."""
        gate, up = project(x, self.gate_up_proj, self.sizes, self.split)
        output: Tensor = self.down_proj(functional.silu(gate) * up)
        return output


class GeluMLP(nn.Module):
    """The feed-forward block with biases and exact GELU: fc2(gelu(fc1(x)))."""

    def __init__(self, config: DecoderConfig, defects: frozenset[str]) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden, config.intermediate)
        self.fc2 = nn.Linear(config.intermediate, config.hidden)
        self.unfused = "bias_gelu_unfused" in defects

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, E] -> [B, T, E]."""
        if self.unfused:
            inner = x @ self.fc1.weight.T + self.fc1.bias
            inner = 0.5 * inner * (1 + torch.erf(inner / math.sqrt(2)))
            return inner @ self.fc2.weight.T + self.fc2.bias
        output: Tensor = self.fc2(functional.gelu(self.fc1(x)))
        return output


class Layer(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self, config: DecoderConfig, defects: frozenset[str]) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden, config.norm_eps)
        self.attention = Attention(config, defects)
        self.mlp_norm = RMSNorm(config.hidden, config.norm_eps)
        self.mlp = GeluMLP(config, defects) if config.gelu else SwiGLU(config, defects)

    def forward(
        self, x: Tensor, positions: Tensor, cache: LayerCache, mask: Tensor | None = None
    ) -> Tensor:
        """x [B, T, E] at positions [B, T] -> [B, T, E]; `mask` as in `Attention`."""
        x = x + self.attention(self.attention_norm(x), positions, cache, mask)
        output: Tensor = x + self.mlp(self.mlp_norm(x))
        return output


class Decoder(nn.Module):
    """The whole model: weights only. What changes from step to step is the caller's."""

    def __init__(self, config: DecoderConfig, defects: frozenset[str] = NAIVE) -> None:
        super().__init__()
        self.config = config
        self.defects = defects
        self.embed = nn.Embedding(config.vocab_size, config.hidden)
        self.layers = nn.ModuleList(Layer(config, defects) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.hidden, config.norm_eps)
        self.lm_head = nn.Linear(config.hidden, config.vocab_size, bias=False)
        self.masks_once = "attention_unfused" not in defects

    def forward(self, tokens: Tensor, positions: Tensor, caches: nn.ModuleList) -> Tensor:
        """Tokens [B, T] at positions [B, T], both int64 -> logits [B, T, V].

        T is the prompt's length for a prefill and 1 for a decode step; the same code serves both.
        A position must be less than `max_seq_len`.
        """
        x = self.embed(tokens)
        slots = self.config.max_seq_len
        mask = slot_mask(positions, slots, x.dtype) if self.masks_once else None
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, positions, cache, mask)
        logits: Tensor = self.lm_head(self.norm(x))
        return logits

    def new_caches(self, batch: int) -> nn.ModuleList:
        """Empty `LayerCache`s for `batch` rows, one a layer, of the weights' device and dtype."""
        weight = self.embed.weight
        return nn.ModuleList(LayerCache(self.config, batch, weight) for _ in self.layers)


# Above so many weights they are drawn on the device: on a CPU it would take minutes.
DRAWN_ON_CPU = 1 << 30


def build_decoder(
    preset: str = "small",
    *,
    device: str | None = None,
    dtype: torch.dtype | None = None,
    seed: int = 0,
    defects: Iterable[str] = NAIVE,
    like: Decoder | None = None,
) -> Decoder:
    """Build a preset with random weights that depend on the seed alone, and not on its defects.

    Args:
        preset: a key of `PRESETS`.
        device: "cuda", "cuda:1", "cpu"; by default the GPU if there is one.
        dtype: of the weights and the cache; by default bfloat16 on a GPU, float32 on a CPU.
        seed: the weights are drawn on the CPU in float32, so a seed means the same model on every
            device, up to rounding to `dtype`. Presets of more than `DRAWN_ON_CPU` weights ("8b")
            are drawn on the device: there a seed means the same model on one kind of device only.
        defects: of the model, by name; those of the loop may be among them and do nothing here.
        like: a decoder of the same preset, device and dtype whose weights are shared, not drawn.

    Raises:
        ConfigError: no such preset or defect, or a defect that the preset cannot have.
    """
    if preset not in PRESETS:
        near = difflib.get_close_matches(preset, PRESETS, n=1)
        hint = f"Did you mean '{near[0]}'?" if near else f"Presets: {', '.join(PRESETS)}."
        raise ConfigError(f"no decoder preset '{preset}'", hint)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    on_cpu = torch.device(device).type == "cpu"
    dtype = dtype or (torch.float32 if on_cpu else torch.bfloat16)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # or "8b" would for a moment need twice its memory
    try:
        with torch.device(device):
            model = Decoder(PRESETS[preset], checked(defects, preset) & NAIVE)
    finally:
        torch.set_default_dtype(usual)
    large = sum(weight.numel() for weight in model.parameters()) > DRAWN_ON_CPU
    generator = torch.Generator(device if large else "cpu").manual_seed(seed)
    if like is not None:
        for weight, shared in zip(model.parameters(), like.parameters(), strict=True):
            weight.data = shared.data
        return model.requires_grad_(False).eval()
    for name, weight in model.named_parameters():
        drawn = torch.randn(weight.shape, generator=generator, device=generator.device)
        if name.endswith("bias"):
            drawn *= 0.1
        elif weight.dim() == 1:
            drawn = 1 + 0.1 * drawn  # norm weights: near 1, and not 1, so that they matter
        elif name != "embed.weight":
            drawn /= math.sqrt(weight.shape[1])  # keeps activations near unit variance
        weight.data = drawn.to(device, dtype)
    return model.requires_grad_(False).eval()
