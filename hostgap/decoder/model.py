"""A LLaMA/Qwen-style decoder in one file, written the way a first version gets written.

What a decode step really launches is the subject here, so nothing is fused by hand: three separate
QKV projections, RMSNorm and rotary embedding as strings of pointwise kernels, attention as matmul,
mask, softmax, matmul. The result is correct (tests compare it with an independent one) and slow for
the reason `hostgap` exists to show. `hostgap.decoder.generate` turns it into a greedy decode loop.

Letters in shapes: B batch, T tokens of this call, S slots of the cache, H query heads, G key/value
heads, D head size, E hidden size, V vocabulary.

Left out on purpose: tokenizer, checkpoints, dropout, training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hostgap.errors import ConfigError


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The shape of a decoder; `n_heads` must be a multiple of `n_kv_heads`."""

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


PRESETS: dict[str, DecoderConfig] = {
    # Runs on a CPU in milliseconds, with every mechanism of the large ones.
    "tiny": DecoderConfig(
        vocab_size=256,
        n_layers=3,
        hidden=64,
        n_heads=4,
        n_kv_heads=2,
        head_dim=16,
        intermediate=160,
        max_seq_len=64,
    ),
    # So small for a GPU that the step is nearly all launch overhead.
    "small": DecoderConfig(
        vocab_size=32_000,
        n_layers=16,
        hidden=1024,
        n_heads=16,
        n_kv_heads=8,
        head_dim=64,
        intermediate=2816,
        max_seq_len=1024,
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


class Rotary(nn.Module):
    """Rotary position embedding in the half-split layout of LLaMA and Qwen checkpoints."""

    inv_freq: Tensor

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        # A buffer, and float32 whatever the weights are: angles reach thousands of radians.
        self.register_buffer("inv_freq", theta**-exponent, persistent=False)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Positions [B, T] -> cos and sin, each [B, 1, T, D]."""
        angles = positions[:, None, :, None].float() * self.inv_freq
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x[i], x[i + D/2]) by its angle: [B, heads, T, D] -> the same."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


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


class Attention(nn.Module):
    """Grouped-query attention with per-head norms of query and key (as in Qwen3)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        q_size, kv_size = (n * config.head_dim for n in (config.n_heads, config.n_kv_heads))
        self.q_proj = nn.Linear(config.hidden, q_size, bias=False)
        self.k_proj = nn.Linear(config.hidden, kv_size, bias=False)
        self.v_proj = nn.Linear(config.hidden, kv_size, bias=False)
        self.o_proj = nn.Linear(q_size, config.hidden, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps)
        self.rotary = Rotary(config.head_dim, config.rope_theta)

    def forward(self, x: Tensor, positions: Tensor, cache: LayerCache) -> Tensor:
        """x [B, T, E] at positions [B, T] -> [B, T, E]; writes T slots of the cache."""
        batch, length, _ = x.shape
        heads = (batch, length, -1, self.config.head_dim)
        query = self.q_norm(self.q_proj(x).view(heads)).transpose(1, 2)  # [B, H, T, D]
        key = self.k_norm(self.k_proj(x).view(heads)).transpose(1, 2)  # [B, G, T, D]
        value = self.v_proj(x).view(heads).transpose(1, 2)  # [B, G, T, D]
        cos, sin = self.rotary(positions, x.dtype)
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        cache.write(positions, key, value)

        group = self.config.n_heads // self.config.n_kv_heads
        keys = cache.keys.repeat_interleave(group, dim=1)  # [B, H, S, D]
        values = cache.values.repeat_interleave(group, dim=1)  # [B, H, S, D]
        # Every slot is read and the unwritten ones masked: shapes stay static, so one captured
        # graph serves every position.
        scores = query @ keys.transpose(-2, -1) / math.sqrt(self.config.head_dim)  # [B, H, T, S]
        hidden = torch.arange(keys.shape[2], device=x.device) > positions[:, None, :, None]
        mask = torch.zeros_like(hidden, dtype=x.dtype).masked_fill(hidden, -math.inf)
        weights = torch.softmax(scores + mask, dim=-1, dtype=torch.float32).to(x.dtype)
        mixed = (weights @ values).transpose(1, 2).reshape(batch, length, -1)  # [B, T, H * D]
        output: Tensor = self.o_proj(mixed)
        return output


class SwiGLU(nn.Module):
    """The feed-forward block: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, E] -> [B, T, E]."""
        output: Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return output


class Layer(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden, config.norm_eps)
        self.attention = Attention(config)
        self.mlp_norm = RMSNorm(config.hidden, config.norm_eps)
        self.mlp = SwiGLU(config)

    def forward(self, x: Tensor, positions: Tensor, cache: LayerCache) -> Tensor:
        """x [B, T, E] at positions [B, T] -> [B, T, E]."""
        x = x + self.attention(self.attention_norm(x), positions, cache)
        output: Tensor = x + self.mlp(self.mlp_norm(x))
        return output


class Decoder(nn.Module):
    """The whole model: weights only. What changes from step to step is the caller's."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.hidden, config.norm_eps)
        self.lm_head = nn.Linear(config.hidden, config.vocab_size, bias=False)

    def forward(self, tokens: Tensor, positions: Tensor, caches: nn.ModuleList) -> Tensor:
        """Tokens [B, T] at positions [B, T], both int64 -> logits [B, T, V].

        T is the prompt's length for a prefill and 1 for a decode step; the same code serves both.
        A position must be less than `max_seq_len`.
        """
        x = self.embed(tokens)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, positions, cache)
        logits: Tensor = self.lm_head(self.norm(x))
        return logits

    def new_caches(self, batch: int) -> nn.ModuleList:
        """Empty `LayerCache`s for `batch` rows, one a layer, of the weights' device and dtype."""
        weight = self.embed.weight
        return nn.ModuleList(LayerCache(self.config, batch, weight) for _ in self.layers)


def build_decoder(
    preset: str = "small",
    *,
    device: str | None = None,
    dtype: torch.dtype | None = None,
    seed: int = 0,
) -> Decoder:
    """Build a preset with random weights that depend on the seed alone.

    Args:
        preset: a key of `PRESETS`.
        device: "cuda", "cuda:1", "cpu"; by default the GPU if there is one.
        dtype: of the weights and the cache; by default bfloat16 on a GPU, float32 on a CPU.
        seed: the weights are drawn on the CPU in float32, so a seed means the same model on every
            device, up to rounding to `dtype`.

    Raises:
        ConfigError: no such preset.
    """
    if preset not in PRESETS:
        raise ConfigError(f"no decoder preset '{preset}'", f"Presets: {', '.join(PRESETS)}.")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    on_cpu = torch.device(device).type == "cpu"
    dtype = dtype or (torch.float32 if on_cpu else torch.bfloat16)
    with torch.device(device):
        model = Decoder(PRESETS[preset])
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        drawn = torch.randn(weight.shape, generator=generator)
        if weight.dim() == 1:
            drawn = 1 + 0.1 * drawn  # norm weights: near 1, and not 1, so that they matter
        elif name != "embed.weight":
            drawn /= math.sqrt(weight.shape[1])  # keeps activations near unit variance
        weight.data = drawn.to(device, dtype)
    return model.requires_grad_(False).eval()
