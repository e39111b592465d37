"""Steps of other kinds, as a user would write them: none knows anything of hostgap.

hostgap fix benchmarks/targets/other_steps.py:recommender
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Recommender(nn.Module):
    """Two towers of small layers over embeddings: many launches, little work in each."""

    def __init__(self, features: int = 24, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(10_000, width) for _ in range(features))
        self.towers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU())
            for _ in range(features)
        )
        self.head = nn.Linear(features * width, 1)

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        """Ids [B, features] -> {"score": [B]}."""
        parts = [
            tower(table(ids[:, index]))
            for index, (table, tower) in enumerate(zip(self.tables, self.towers, strict=True))
        ]
        return {"score": self.head(torch.cat(parts, dim=-1)).squeeze(-1)}


def recommender(batch: int = 32) -> Callable[[], dict[str, Tensor]]:
    """Scores for a fresh batch each step; the ids come from a counter on the device."""
    model = Recommender().to("cuda", torch.bfloat16).eval()
    ids = torch.arange(batch * 24, device="cuda").view(batch, 24) % 10_000

    @torch.no_grad()
    def step() -> dict[str, Tensor]:
        ids.add_(17).remainder_(10_000)
        return model(ids)

    return step


def gpu_bound(batch: int = 1) -> Callable[[], Tensor]:
    """A control: large matrix products that keep the GPU busy. Nothing here can be helped."""
    x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn_like(x) / 8192**0.5

    def step() -> Tensor:
        y = x
        for _ in range(4 * batch):
            y = y @ weight
        return y

    return step


def gpu_bound_item() -> Callable[[], float]:
    """A control: the same, and a scalar read each step, which costs nothing there."""
    multiply = gpu_bound()

    def step() -> float:
        return multiply()[0, 0].item()

    return step
