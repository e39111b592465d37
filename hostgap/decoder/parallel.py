"""The reference decoder shared out among ranks: tensor parallelism, as serving engines do it.

Each rank has some of the heads and some of the feed-forward block's columns, and the whole of the
rest. What a rank computes of a block is a part of a sum over the ranks, so each layer has two
all-reduces: one after attention, one after the feed-forward block. Embeddings, norms and the head
are on every rank, and so every rank chooses the same tokens without asking the others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hostgap.decoder.model import Decoder, DecoderConfig
from hostgap.errors import ConfigError


class Reduced(nn.Module):
    """A block whose output is summed over all ranks, in place."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *args: Any) -> Tensor:
        """What the block gives for its arguments on all ranks together, the same on each."""
        part: Tensor = self.block(*args)
        dist.all_reduce(part)
        return part


def shared_out(config: DecoderConfig, ranks: int) -> DecoderConfig:
    """What one rank of several has of a decoder: heads and columns divided by `ranks`.

    Raises:
        ConfigError: they cannot be divided evenly, or there are more ranks than key/value heads.
    """
    for what, n in (("key/value heads", config.n_kv_heads), ("columns", config.intermediate)):
        if n % ranks:
            raise ConfigError(
                f"{n} {what} cannot be shared out evenly among {ranks} ranks",
                f"Ranks that divide both: {', '.join(map(str, _possible(config)))}.",
            )
    return replace(
        config,
        n_heads=config.n_heads // ranks,
        n_kv_heads=config.n_kv_heads // ranks,
        intermediate=config.intermediate // ranks,
    )


def _possible(config: DecoderConfig) -> list[int]:
    some = range(1, config.n_kv_heads + 1)
    return [n for n in some if config.n_kv_heads % n == config.intermediate % n == 0]


def shard(whole: Decoder, rank: int, ranks: int) -> Decoder:
    """A rank's part of a decoder, whose layers reduce over the default process group.

    Args:
        whole: its weights are cut up; what every rank has whole is shared with it, not copied.
        rank: from 0.
        ranks: how many there are; the process group must have as many.

    Returns:
        A decoder of the same tokens as `whole`, up to rounding. Its caches hold its own heads.

    Raises:
        ConfigError: see `shared_out`.
    """
    config = shared_out(whole.config, ranks)
    weight = whole.embed.weight
    with torch.device("meta"):
        part = Decoder(config, whole.defects)
    cut = _Cut(whole.config, rank, ranks)
    for name, tensor in whole.named_parameters():
        owner, _, attribute = name.rpartition(".")
        value = nn.Parameter(cut.of(name, tensor), requires_grad=False)
        setattr(part.get_submodule(owner), attribute, value)
    for layer, whole_layer in zip(part.layers, whole.layers, strict=True):
        assert isinstance(layer, nn.Module)
        layer.attention.inv_freq = whole_layer.attention.inv_freq  # type: ignore[union-attr]
        layer.attention = Reduced(layer.attention)  # type: ignore[arg-type]
        layer.mlp = Reduced(layer.mlp)  # type: ignore[arg-type]
    assert part.embed.weight.device == weight.device
    return part.requires_grad_(False).eval()


class _Cut:
    """Cuts one rank's part out of each weight."""

    def __init__(self, config: DecoderConfig, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        heads = (config.n_heads, config.n_kv_heads, config.n_kv_heads)
        self.stacked = {  # several projections stored as one, each cut for itself
            "qkv_proj": [n * config.head_dim for n in heads],
            "gate_up_proj": [config.intermediate] * 2,
            "fc1": [config.intermediate],
        }

    def of(self, name: str, tensor: Tensor) -> Tensor:
        """The part of a parameter, by its name; the tensor itself where each rank has all of it."""
        *_, linear, kind = name.split(".")
        if linear in self.stacked:  # by output: rows
            each = torch.split(tensor, self.stacked[linear])
            return torch.cat([one.chunk(self.ranks)[self.rank] for one in each])
        if linear in ("o_proj", "down_proj", "fc2"):  # by input: columns
            if kind == "weight":
                return tensor.chunk(self.ranks, dim=1)[self.rank].contiguous()
            return tensor if self.rank == 0 else torch.zeros_like(tensor)  # once in the sum
        return tensor
