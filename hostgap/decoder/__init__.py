"""The reference decoder: a LLaMA-style model in plain PyTorch, one step per token."""
