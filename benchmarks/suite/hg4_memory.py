"""Faults of HG4: allocation and loading in a step."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from labelled import DRAINS, MB, NO_STACK, NSYS, OUTSIDE, PLAIN, Bench, Step, variant

if TYPE_CHECKING:
    from torch import Tensor


def grow_buffers(kept: list[Tensor], device: str) -> None:
    import torch

    for _ in range(4):
        kept.append(torch.empty(24 * MB, dtype=torch.uint8, device=device))  # noqa: PERF401


@variant(
    "HG401",
    site="grow_buffers",
    per_step=4,
    also={"HG502": "allocating is work of the host between graphs"},
    cuda=True,
)
def allocation(bench: Bench) -> Step:
    """Every step needs more memory than the allocator holds."""
    replay = bench.captured_step()
    kept: list[Tensor] = []

    def step() -> None:
        replay()
        grow_buffers(kept, bench.device)

    return step


def release_cache(device: str) -> None:
    import torch

    scratch = torch.empty(64 * MB, dtype=torch.uint8, device=device)
    del scratch
    torch.cuda.empty_cache()


@variant(
    "HG404",
    site="release_cache",
    per_step=1,
    also={
        **DRAINS,
        "HG108": "what empty_cache frees drains the device",
        "HG401": "and is allocated again",
    },
    missing={PLAIN: NO_STACK, NSYS: NO_STACK},
    cuda=True,
)
def empty_cache(bench: Bench) -> Step:
    """The allocator's cache is emptied every step."""
    replay = bench.captured_step()

    def step() -> None:
        replay()
        release_cache(bench.device)

    return step


def pin_buffer(kept: list[Tensor]) -> None:
    import torch

    kept.append(torch.empty(8 * MB, dtype=torch.uint8, pin_memory=True))


@variant("HG402", site="pin_buffer", per_step=1, cuda=True)
def pinned_allocation(bench: Bench) -> Step:
    """A new pinned buffer is allocated every step."""
    replay = bench.captured_step()
    kept: list[Tensor] = []

    def step() -> None:
        replay()
        pin_buffer(kept)

    return step


# Pointwise ops of which each dtype is a kernel of its own, loaded when first launched.
# fmt: off
UNARY = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "erfc",
    "exp", "exp2", "expm1", "floor", "frac", "log", "log10", "log1p", "log2", "neg",
    "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh",
    "trunc", "signbit", "isinf", "isnan", "relu", "celu", "selu", "logit", "sgn",
)
# fmt: on


def first_use(ops: Any, x: dict[str, Tensor]) -> None:
    import torch

    for _ in range(3):
        name, dtype = next(ops)
        getattr(torch, name)(x[dtype])


@variant(
    "HG403",
    site="first_use",
    also={
        **OUTSIDE,
        "HG504": "a first launch takes long inside its op",
        "HG201": "the host is late for these launches",
    },
    missing={NSYS: "an export does not say that a launch loads its kernel"},
)
def module_load(bench: Bench) -> Step:
    """Kernels are launched that were never launched before, so they are loaded in the step."""
    import torch

    replay = bench.captured_step()
    dtypes = ("float64", "float16", "float32")
    x = {name: torch.ones(64, device=bench.device, dtype=getattr(torch, name)) for name in dtypes}
    # enough for 40 steps; the recorder makes 33
    ops = itertools.cycle([(op, dtype) for dtype in dtypes for op in UNARY])

    def step() -> None:
        replay()
        first_use(ops, x)

    return step
