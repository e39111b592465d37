"""Small decode-like loops on the CPU or a GPU, and ways to get them wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hostgap.profiling.aside import Aside
from hostgap.profiling.workload import Workload

WORDS, SIZE, ROOM, CASES = 61, 32, 40, 3


class Layer(nn.Module):
    """A residual block with a state that it writes in place."""

    state: Tensor

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.mix = nn.Linear(SIZE, SIZE)
        self.register_buffer("state", torch.zeros(batch, SIZE))

    def forward(self, x: Tensor) -> Tensor:
        self.state.mul_(0.5).add_(x)
        output: Tensor = x + torch.tanh(self.mix(self.state))
        return output


class Loop(nn.Module):
    """A step takes what the host fed, [B] int64, and gives the next tokens, [B], and the logits."""

    tokens: Tensor
    position: Tensor

    def __init__(self, batch: int = 2, seed: int = 0, logits: bool = True) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words = nn.Embedding(WORDS, SIZE)
        self.places = nn.Embedding(ROOM + 8, SIZE)
        self.layers = nn.ModuleList(Layer(batch) for _ in range(3))
        self.head = nn.Linear(SIZE, WORDS)
        self.register_buffer("tokens", torch.zeros(batch, dtype=torch.int64))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))
        self.logits = logits
        self.requires_grad_(False)

    def forward(self, fed: Tensor) -> Any:
        x = self.words(self.tokens) + self.words(fed) + self.places(self.position)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x)
        self.tokens.copy_(logits.argmax(-1))
        self.position.add_(1)
        return (self.tokens.clone(), Aside(logits)) if self.logits else self.tokens.clone()

    def restart(self, case: int) -> None:
        self.position.zero_()
        self.tokens.fill_(case * 7)
        for layer in self.layers:
            layer.state.zero_()  # type: ignore[operator, union-attr]


class Host:
    """Feeds numbers that change from step to step, and keeps what is delivered."""

    def __init__(self, loop: Loop, batch: int = 2) -> None:
        self.loop, self.batch = loop, batch
        self.delivered: list[list[int]] = []
        self.case = self.fed = 0

    def feed(self) -> tuple[Tensor, ...]:
        row = [(self.case * 5 + self.fed * 3 + i * 11) % WORDS for i in range(self.batch)]
        self.fed += 1
        return (torch.tensor(row),)

    def deliver(self, tokens: Tensor) -> None:
        self.delivered.append(tokens.tolist())

    def reset(self, case: int) -> None:
        self.case, self.fed = case, 0
        self.loop.restart(case)


def workload(
    batch: int = 2, *, device: str = "cpu", resets: bool = True, logits: bool = True
) -> tuple[Workload, Host]:
    """A loop as a workload, and its host."""
    loop = Loop(batch, logits=logits).to(device)
    host = Host(loop, batch)
    made = Workload(
        body=loop,
        feed=host.feed,
        deliver=host.deliver,
        reset=host.reset if resets else None,
        cases=CASES,
        room=ROOM if resets else None,
        modules=(loop,),
        device=device,
        tokens=batch,
    )
    return made, host
