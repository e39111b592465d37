"""Medians of blocks and how sure they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hostgap.profiling.bench import Comparison
from hostgap.profiling.measurement import Estimate, Timing

RESAMPLES = 2_000


def estimate(values: Sequence[float]) -> Estimate:
    """The median and its 95 % bootstrap interval. A single value is its own interval."""
    low, high = _interval(np.asarray(values, np.float64))
    return Estimate(median_ns=float(np.median(values)), low_ns=low, high_ns=high)


def timing(blocks_ns: Sequence[float], steps: int) -> Timing:
    """Blocks of `steps` steps each, in ns a step."""
    return Timing(step=estimate(blocks_ns), steps=steps, blocks_ns=[round(b, 1) for b in blocks_ns])


def comparison(old_ns: Sequence[float], new_ns: Sequence[float], steps: int) -> Comparison:
    """Two variants whose blocks were timed in turn; the i-th blocks are neighbours in time."""
    ratios = np.asarray(new_ns, np.float64) / np.asarray(old_ns, np.float64)
    low, high = _interval(ratios)
    return Comparison(
        old=timing(old_ns, steps),
        new=timing(new_ns, steps),
        ratio=float(np.median(ratios)),
        ratio_low=low,
        ratio_high=high,
    )


def _interval(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> tuple[float, float]:
    random = np.random.default_rng(0)  # the same blocks, the same interval
    drawn = random.integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(np.median(values[drawn], axis=1), (0.025, 0.975))
    return float(low), float(high)
