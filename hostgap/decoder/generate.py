"""The decode loop around the model, with everything it changes in static tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hostgap.decoder.model import Decoder
from hostgap.decoder.sampling import Sampling, choose
from hostgap.errors import ConfigError


class GreedyDecoder(nn.Module):
    """Decodes one batch, a token a step: the likeliest, or with `sampling` one drawn.

    `tokens`, `positions` and the caches are buffers that every step updates in place on the device:
    a step takes nothing from the host and returns nothing to it. That makes the step a function of
    no arguments which can be captured as one CUDA graph and replayed for every position. Several
    decoders may share one model's weights.

    Attributes:
        tokens: [B, 1] int64, the token chosen last, the next step's input.
        positions: [B, 1] int64, the position of `tokens` in its row.
    """

    tokens: Tensor
    positions: Tensor

    def __init__(self, model: Decoder, batch: int = 1, sampling: Sampling | None = None) -> None:
        super().__init__()
        self.model = model
        self.sampling = sampling
        self.caches = model.new_caches(batch)
        zeros = torch.zeros(batch, 1, dtype=torch.int64, device=model.embed.weight.device)
        self.register_buffer("tokens", zeros, persistent=False)
        self.register_buffer("positions", zeros.clone(), persistent=False)

    @torch.no_grad()
    def prefill(self, prompt: Tensor) -> Tensor:
        """Read a prompt, choose the token after it and stand ready for `step`.

        Starts over: whatever was decoded before is forgotten, in the same tensors, so a captured
        step goes on working.

        Args:
            prompt: [B, T] int64, on any device.

        Returns:
            Logits [B, T, V].

        Raises:
            ConfigError: a prompt of another batch size, an empty one, or one that leaves no slot
                in the cache.
        """
        batch, length = prompt.shape
        room = self.model.config.max_seq_len
        if batch != self.tokens.shape[0]:
            raise ConfigError(f"a prompt of batch {batch} for a decoder of {self.tokens.shape[0]}")
        if not 0 < length < room:
            raise ConfigError(f"a prompt of {length} tokens; it must have 1 to {room - 1}")
        prompt = prompt.to(self.tokens.device)
        positions = torch.arange(length, device=prompt.device).expand(batch, length)
        logits: Tensor = self.model(prompt, positions, self.caches)
        self.positions.fill_(length - 1)
        self.tokens.copy_(choose(logits[:, -1], self.positions, self.sampling))
        self.positions.add_(1)
        return logits

    @torch.no_grad()
    def step(self) -> Tensor:
        """Decode one token for every row: logits [B, V] for the new `tokens`, chosen from them.

        After `prefill` of T tokens there is room for `max_seq_len - T` steps. Only the device knows
        the position, so it is the caller who must count them.
        """
        logits: Tensor = self.model(self.tokens, self.positions, self.caches)
        self.tokens.copy_(choose(logits[:, -1], self.positions, self.sampling))
        self.positions.add_(1)
        return logits[:, -1]

    def generate(self, prompt: Tensor, n_tokens: int) -> Tensor:
        """Decode from a prompt: [B, T] -> the `n_tokens` tokens after it, [B, n_tokens].

        Raises:
            ConfigError: no room for so many, or a prompt `prefill` refuses.
        """
        room = self.model.config.max_seq_len - prompt.shape[1] + 1
        if not 0 < n_tokens <= room:
            raise ConfigError(f"{n_tokens} tokens asked for; there is room for 1 to {room}")
        self.prefill(prompt)
        decoded = [self.tokens.clone()]
        for _ in range(n_tokens - 1):
            self.step()
            decoded.append(self.tokens.clone())
        return torch.cat(decoded, dim=1)
