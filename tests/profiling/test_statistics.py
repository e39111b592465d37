"""Medians and their intervals."""

from __future__ import annotations

import numpy as np

from hostgap.profiling.statistics import comparison, estimate, timing


def test_a_single_value_is_its_own_interval() -> None:
    one = estimate([5.0])
    assert (one.median_ns, one.low_ns, one.high_ns) == (5.0, 5.0, 5.0)


def test_the_interval_holds_the_true_median_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        found = estimate(random.lognormal(0, 0.1, 25).tolist())
        hits += found.low_ns <= 1.0 <= found.high_ns
    assert 175 <= hits <= 200


def test_the_same_blocks_give_the_same_interval() -> None:
    blocks = [1.0, 2.0, 3.0, 10.0]
    assert estimate(blocks) == estimate(blocks)
    assert timing(blocks, 30).blocks_ns == blocks


def test_a_drift_that_both_share_does_not_blur_a_comparison() -> None:
    drift = np.linspace(1, 3, 12)
    found = comparison((100 * drift).tolist(), (90 * drift).tolist(), 10)
    assert abs(found.ratio - 0.9) < 1e-9
    assert found.ratio_high - found.ratio_low < 1e-9
    assert found.old.step.high_ns > 1.5 * found.old.step.low_ns
