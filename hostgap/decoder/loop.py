"""What a serving loop keeps on the device, and its step: a function that can be captured whole."""

from __future__ import annotations

import torch
from torch import Tensor

from hostgap.decoder.generate import GreedyDecoder
from hostgap.decoder.model import Decoder
from hostgap.decoder.sampling import Sampling, choose
from hostgap.profiling.aside import Aside

EOS = 2


class DecodeLoop(GreedyDecoder):
    """A decoder that takes the scheduler's say each step and keeps track of its rows.

    All that changes is in buffers written in place: the step may be compiled with `fullgraph`, or
    captured as one CUDA graph, once, and replayed for every position. A row that met EOS goes on
    decoding, as a slot of a batch does until the scheduler gives it to another request.

    Defects of the loop that take work out of the step leave it out here; the host does it then.

    Attributes:
        history: [B, S + 1] int64, the token at each position; 0 before the prompt's end.
        finished: [B] bool, rows that met EOS.
        lengths: [B] int64, tokens decoded in steps before EOS.
    """

    history: Tensor
    finished: Tensor
    lengths: Tensor

    def __init__(
        self,
        model: Decoder,
        batch: int = 1,
        sampling: Sampling | None = None,
        defects: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(model, batch, sampling)
        device = self.tokens.device
        # The last slot of the cache gives a token that stands one beyond it.
        history = torch.zeros(batch, model.config.max_seq_len + 1, dtype=torch.int64, device=device)
        finished = torch.zeros(batch, dtype=torch.bool, device=device)
        lengths = torch.zeros(batch, dtype=torch.int64, device=device)
        self.register_buffer("history", history, persistent=False)
        self.register_buffer("finished", finished, persistent=False)
        self.register_buffer("lengths", lengths, persistent=False)
        self.advances = "positions_on_host" not in defects
        self.remembers = "alloc_per_step" not in defects
        self.counts = "mask_select" not in defects

    @torch.no_grad()
    def prefill(self, prompt: Tensor) -> Tensor:
        """As `GreedyDecoder.prefill`; what is kept of the rows starts over as well."""
        logits = super().prefill(prompt)
        self.history.zero_()
        self.history.scatter_(1, self.positions, self.tokens)
        self.finished.zero_()
        self.lengths.zero_()
        return logits

    def decide(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B, V] after tokens [B, 1] at positions [B, 1], and what is chosen, [B, 1].

        An instance may have another function in its place, of the same arguments and results.
        """
        logits: Tensor = self.model(tokens, positions, self.caches)[:, -1]
        return logits, choose(logits, positions, self.sampling)

    def forward(self, forced: Tensor) -> tuple[Tensor, Aside]:
        """One step.

        Args:
            forced: [B] int64: the token a row must take (a grammar leaves one, a draft was
                accepted, a prompt goes on), or -1 where the model chooses.

        Returns:
            The rows' new tokens, [B] int64, and the logits [B, V] behind them, which stay on the
            device: a proof of equality looks at them.
        """
        # Not a decorator: dynamo counts recompilations by code object, and all functions under
        # torch's decorators share one.
        with torch.no_grad():
            last, chosen = self.decide(self.tokens, self.positions)
            chosen = torch.where(forced[:, None] >= 0, forced[:, None], chosen)
            following = self.positions + 1
            self.tokens.copy_(chosen)
            if self.advances:
                self.positions.copy_(following)
            if self.remembers:
                self.history.scatter_(1, following, chosen)
            self.finished.logical_or_(chosen[:, 0] == EOS)
            if self.counts:
                self.lengths.add_(torch.where(self.finished, 0, 1))
            return chosen[:, 0], Aside(last)
