"""What a body gives to be compared, and not to be delivered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Aside:
    """Part of a body's output that stays on the device: a decoder returns `tokens, Aside(logits)`.

    It is neither downloaded nor delivered; the proof of equality compares it, and may find there
    that two tokens were as good as equal.
    """

    tensor: Tensor


pytree.register_dataclass(Aside)


def asides(output: Any) -> tuple[Tensor, ...]:
    """The tensors put aside in a step's output, in tuples, lists and dicts too."""
    if isinstance(output, Aside):
        return (output.tensor,)
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, list | tuple):
        return tuple(tensor for item in output for tensor in asides(item))
    return ()
