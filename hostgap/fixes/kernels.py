"""Which kernels a step runs, for what a pure capture must not change."""

from __future__ import annotations

from collections import Counter

import numpy as np

from hostgap.trace.model import GpuKind, Trace


def kernel_counts(trace: Trace, steps: int) -> dict[str, float]:
    """Kernel name -> how often it runs in a step, of a trace of so many steps."""
    ops = trace.gpu_ops
    codes, counts = np.unique(ops.name[ops.kind == GpuKind.KERNEL], return_counts=True)
    found: Counter[str] = Counter()
    for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
        found[trace.names[code]] += count
    return {name: count / max(1, steps) for name, count in found.items()}


def kernel_difference(before: dict[str, float], after: dict[str, float]) -> str | None:
    """How two variants' kernels per step differ; None where they are the same.

    Half a kernel a step is not a difference: a trace may cut a step off at its ends.
    """
    changed = [
        f"{name} {before.get(name, 0):.3g} -> {after.get(name, 0):.3g}"
        for name in sorted({*before, *after})
        if abs(after.get(name, 0) - before.get(name, 0)) >= 0.5
    ]
    if not changed:
        return None
    more = f", and {len(changed) - 3} more" if len(changed) > 3 else ""
    return f"{', '.join(changed[:3])}{more} a step"
