"""A decoder of the transformers library, small and with random weights, as a user would write it.

    hostgap profile benchmarks/targets/hf_decoder.py:decode
    hostgap fix benchmarks/targets/hf_decoder.py:decode

It rereads a window of tokens each step instead of keeping a cache, so a step is the model's own
forward and nothing else. The model gives its usual output object; the step returns the logits.
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hostgap import Workload

WINDOW = 64  # tokens


def decode(batch: int = 1) -> Workload:
    """One token a step for `batch` rows, greedily."""
    config = LlamaConfig(
        vocab_size=8_000,
        hidden_size=512,
        intermediate_size=1_408,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=WINDOW,
    )
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
    tokens = torch.zeros(batch, WINDOW, dtype=torch.int64, device="cuda")

    def reset(case: int) -> None:
        drawn = torch.randint(config.vocab_size, tokens.shape, generator=torch.manual_seed(case))
        tokens.copy_(drawn)

    @torch.no_grad()
    def step() -> torch.Tensor:
        logits = model(input_ids=tokens, use_cache=False).logits[:, -1]
        following = logits.argmax(dim=-1, keepdim=True)
        tokens.copy_(torch.cat((tokens[:, 1:], following), dim=1))
        return logits

    reset(0)
    return Workload(body=step, reset=reset, cases=3, modules=(model,), tokens=batch)
