"""The decision about unprofiled steps: its guarantees, on simulated processes of known truth."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from hostgap.gate.times import (
    ALPHA,
    FEWEST,
    NOISE_SHARE,
    _cumulative,
    decide,
    runs_needed,
)

LIMIT = 0.05
Noise = Callable[[np.random.Generator, int], "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"]


def gaussian(spread: float) -> Noise:
    return lambda random, n: random.normal(0, spread, n)


def skewed(spread: float) -> Noise:
    """Most processes alike, a few much slower, as a busy host makes them."""
    scale = spread / math.sqrt(math.exp(1) * (math.exp(1) - 1))
    return lambda random, n: scale * np.exp(random.normal(0, 1, n))


def two_modes(spread: float) -> Noise:
    """Each process falls on one of two speeds, as NUMA nodes or clocks make them."""
    return lambda random, n: random.choice([-spread, spread], n) + random.normal(0, 1e-4, n)


def drifting(spread: float) -> Noise:
    """The machine becomes slower while they run, and each process has its own noise too."""
    return lambda random, n: np.linspace(0, 2 * spread, n) + random.normal(0, spread, n)


def correlated(spread: float) -> Noise:
    """A process is like the one before it."""

    def draw(
        random: np.random.Generator, n: int
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        steps = random.normal(0, spread * math.sqrt(1 - 0.7**2), n)
        values = np.zeros(n)
        values[0] = random.normal(0, spread)
        for i in range(1, n):
            values[i] = 0.7 * values[i - 1] + steps[i]
        return values

    return draw


NOISES: dict[str, Callable[[float], Noise]] = {
    "gaussian": gaussian,
    "skewed": skewed,
    "two modes": two_modes,
    "drifting": drifting,
    "correlated": correlated,
}


def outcomes(noise: Noise, n: int, slowdown: float, tries: int, seed: int = 0) -> Counter[str]:
    """What is decided of `tries` pairs of sides of n processes that ran ABBA, ABBA, ..."""
    random = np.random.default_rng(seed)
    order = np.array([(i % 4) in (1, 2) for i in range(2 * n)])  # A B B A
    seen: Counter[str] = Counter()
    for _ in range(tries):
        times = np.exp(noise(random, 2 * n))
        seen[decide(times[~order], times[order] * (1 + slowdown), LIMIT).outcome] += 1
    return seen


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize(("n", "spread"), [(5, 0.01), (5, 0.03), (8, 0.03), (10, 0.02)])
def test_equal_sides_fail_at_most_once_in_200(name: str, n: int, spread: float) -> None:
    tries = 1_000
    failed = outcomes(NOISES[name](spread), n, 0.0, tries)["failed"]
    # 0.5 % of 1,000 is 5; with the luck of the draw, at most 12 in one of 10,000 such counts
    assert failed <= 12


def test_equal_sides_over_all_kinds_of_noise() -> None:
    tries, failed = 0, 0
    for (name, make), n in itertools.product(NOISES.items(), (5, 9)):
        seen = outcomes(make(0.02), n, 0.0, 600, seed=len(name) + n)
        tries, failed = tries + 600, failed + seen["failed"]
    assert failed / tries <= ALPHA


@pytest.mark.parametrize(
    ("n", "spread"), [(5, 0.005), (5, 0.01), (5, 0.0125), (6, 0.015), (9, 0.02), (10, 0.02)]
)
def test_a_slowdown_of_the_limit_is_found(n: int, spread: float) -> None:
    seen = outcomes(gaussian(spread), n, LIMIT, 600)
    assert seen["failed"] >= 0.9 * 600 - 15  # 90 %, less the luck of the draw


@pytest.mark.parametrize("name", ["skewed", "two modes", "drifting", "correlated"])
def test_it_is_found_under_other_noise(name: str) -> None:
    seen = outcomes(NOISES[name](0.01), 10, LIMIT, 300)
    assert seen["failed"] >= 0.85 * 300


@pytest.mark.parametrize(("n", "spread"), [(5, 0.02), (5, 0.04), (10, 0.04)])
def test_what_is_not_found_is_undecided(n: int, spread: float) -> None:
    """A slowdown of the limit passes at most one time in twenty, however noisy it is."""
    seen = outcomes(gaussian(spread), n, LIMIT, 600)
    assert seen["passed"] <= 0.05 * 600 + 16
    assert seen["inconclusive"] > 0


def test_less_than_half_the_limit_never_fails() -> None:
    seen = outcomes(gaussian(0.0005), 10, NOISE_SHARE * LIMIT - 0.002, 200)
    assert seen == {"passed": 200}


def test_a_faster_side_passes() -> None:
    assert outcomes(gaussian(0.01), 6, -0.1, 100) == {"passed": 100}


def test_runs_needed_decide() -> None:
    for spread in (0.01, 0.02, 0.03):
        needed = runs_needed(spread, LIMIT)
        assert needed is not None
        for slowdown, outcome in ((0.0, "passed"), (LIMIT, "failed")):
            seen = outcomes(gaussian(spread), needed, slowdown, 400)
            assert seen[outcome] >= 0.87 * 400, (spread, needed, slowdown)


def test_runs_needed_grow_with_the_spread() -> None:
    needed = [runs_needed(spread, LIMIT) for spread in (0.005, 0.015, 0.02, 0.03, 0.05)]
    assert None not in needed
    assert needed == sorted(needed, key=lambda n: n or 0)
    assert needed[0] == FEWEST
    assert runs_needed(0.3, LIMIT) is None
    assert (runs_needed(0.01, LIMIT, more_than=5) or 0) > 5


def test_too_few_processes_decide_nothing() -> None:
    four = decide([1.0, 1.01, 1.0, 0.99], [2.0, 2.01, 2.0, 1.99], LIMIT)
    assert (four.outcome, four.runs_needed) == ("inconclusive", FEWEST)
    assert four.ratio == pytest.approx(2.0, rel=0.01)
    one = decide([1.0], [2.0], LIMIT)
    assert (one.outcome, one.ratio, one.runs_needed) == ("inconclusive", None, FEWEST)


def test_of_few_processes_no_interval_is_said() -> None:
    """Even the ends of two or three a side hold the ratio in 67 and 90 % of the cases only."""
    for n in (2, 3):
        few = decide([1.0, 1.1, 1.2][:n], [1.3, 1.4, 1.5][:n], LIMIT)
        assert (few.low, few.high) == (None, None)
        assert few.ratio is not None
    four = decide([1.0, 1.1, 1.2, 1.3], [1.3, 1.4, 1.5, 1.6], LIMIT)
    assert four.low is not None
    assert four.low < 1.2 < (four.high or 0)


def test_ties_do_not_fail() -> None:
    assert decide([1.0] * 5, [1.0] * 5, LIMIT).outcome == "passed"
    # complete but for one tie: not as sure as no tie
    tied = decide([1.0, 1.0, 1.0, 1.0, 1.06], [1.06, 1.07, 1.08, 1.07, 1.06], LIMIT)
    assert tied.outcome == "inconclusive"


def test_the_distribution_of_ranks_is_exact() -> None:
    """Against all ways to deal the ranks."""
    for n, m in ((3, 4), (5, 5)):
        counted: Counter[int] = Counter()
        for mine in itertools.combinations(range(n + m), n):
            others = [rank for rank in range(n + m) if rank not in mine]
            counted[sum(a > b for a in mine for b in others)] += 1
        total = sum(counted.values())
        expected = np.cumsum([counted[u] for u in range(n * m + 1)]) / total
        assert _cumulative(n, m) == pytest.approx(expected)
