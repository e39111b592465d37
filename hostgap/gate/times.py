"""Is the new one slower? A decision about unprofiled steps, with the process as its unit.

Steps within a process look much more alike than processes do, so each process gives one figure, its
median, and two sides are compared by the ranks of these: exact for any distribution, as long as the
processes of both sides ran in turn (ABBA) and so saw the same machine.

The rule, for a limit of 5 %:

- passed: the upper end of the one-sided 95 % interval of the ratio is below the limit;
- failed: else, if the chance of such ranks between equal sides is at most 0.5 %, and the ratio is
  at least half the limit, below which nothing is ever failed;
- inconclusive: else, with the number of runs a side that would decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FEWEST = 5  # processes a side
ALPHA = 0.005  # of calling equal sides different
TAIL = 0.025  # on either side of the interval
SURE = 0.05  # of calling a slowdown of the limit none
POWER = 0.9
NOISE_SHARE = 0.5  # of the limit
_TRIED = (5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 25, 30, 40, 50)
_SIMULATED = 1_000


@dataclass(frozen=True, slots=True)
class Decision:
    """What the processes of two sides say. Fields as in `hostgap.gate.model.Times`."""

    outcome: Literal["passed", "failed", "inconclusive"]
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    spread: float | None = None
    p: float | None = None
    runs_needed: int | None = None


def decide(base: Sequence[float], new: Sequence[float], limit: float) -> Decision:
    """Whether `new` is slower than `base` by `limit`.

    Args:
        base, new: one time a process, in any unit.
        limit: the slowdown that must be found, such as 0.05.
    """
    a, b = np.log(np.asarray(base, np.float64)), np.log(np.asarray(new, np.float64))
    if min(len(a), len(b)) < 2:
        return Decision("inconclusive", runs_needed=FEWEST)
    spread = math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2)
    rounded = math.ceil(spread * 500) / 500  # up to 0.2 %: no more is known of it
    shifts = np.sort((b[:, None] - a[None, :]).ravel())
    ratio = math.exp(float(np.median(shifts)))
    low = high = None
    if _rank(len(a), len(b), TAIL) > 0:  # of so few even the ends hold the ratio less often
        low, high = _interval(shifts, len(a), len(b), TAIL)
    if min(len(a), len(b)) < FEWEST:
        needed = runs_needed(rounded, limit)
        return Decision("inconclusive", ratio, low, high, spread, None, needed)
    p = _chance(shifts, len(a), len(b))
    upper = _interval(shifts, len(a), len(b), SURE)[1]
    if upper < 1 + limit:
        return Decision("passed", ratio, low, high, spread, p)
    if p <= ALPHA and ratio - 1 >= NOISE_SHARE * limit:
        return Decision("failed", ratio, low, high, spread, p)
    now = min(len(a), len(b))
    needed = runs_needed(rounded, limit, more_than=now)
    return Decision("inconclusive", ratio, low, high, spread, p, needed)


@lru_cache(maxsize=256)
def runs_needed(spread: float, limit: float, more_than: int = 0) -> int | None:
    """Processes a side with which 90 % decide, whether the slowdown is `limit` or none.

    Args:
        spread: relative standard deviation between processes.
        limit: the slowdown that must be found.
        more_than: as many did not do.

    Returns:
        None where 50 do not do either.
    """
    random = np.random.default_rng(0)  # the same question, the same answer
    for n in _TRIED:
        if n <= more_than:
            continue
        a = random.normal(0, spread, (_SIMULATED, n))
        b = random.normal(0, spread, (_SIMULATED, n))
        null = (b[:, :, None] - a[:, None, :]).reshape(_SIMULATED, -1)
        upper = np.sort(null, axis=1)[:, -_rank(n, n, SURE)]
        cleared = float((upper < math.log1p(limit)).mean())
        slower = null + math.log1p(limit)
        wins = (slower > 0).sum(axis=1)
        enough = wins >= n * n - _worst(n, n, ALPHA)
        far = np.median(slower, axis=1) >= math.log1p(NOISE_SHARE * limit)
        kept = upper + math.log1p(limit) >= math.log1p(limit)
        found = float((enough & far & kept).mean())
        if min(cleared, found) >= POWER:
            return n
    return None


def _chance(shifts: NDArray[np.float64], n: int, m: int) -> float:
    """P(ranks at least as far apart) between equal sides; a tie counts half, rounded against."""
    wins = np.count_nonzero(shifts > 0) + np.count_nonzero(shifts == 0) / 2
    losses = math.ceil(n * m - wins)
    return float(_cumulative(n, m)[min(losses, n * m)])


def _interval(shifts: NDArray[np.float64], n: int, m: int, tail: float) -> tuple[float, float]:
    """The ratio's interval with `tail` at either end, by the order of the pairs' ratios."""
    k = _rank(n, m, tail)
    return math.exp(float(shifts[k - 1])), math.exp(float(shifts[-k]))


def _rank(n: int, m: int, tail: float) -> int:
    """The k-th smallest and largest of the pairs' ratios bound the ratio; 0 where none do."""
    return _worst(n, m, tail) + 1


def _worst(n: int, m: int, tail: float) -> int:
    """The largest number of lost pairs whose chance is at most `tail`; -1 where none is."""
    return int(np.searchsorted(_cumulative(n, m), tail, "right")) - 1


@lru_cache(maxsize=64)
def _cumulative(n: int, m: int) -> NDArray[np.float64]:
    """P(U <= u) of the Mann-Whitney statistic for u = 0 .. n m, between equal sides."""
    # ways[u]: subsets of n out of n + m ranks with statistic u, as a Gaussian binomial coefficient
    ways = np.zeros(n * m + 1)
    ways[0] = 1.0
    for i in range(1, n + 1):
        # multiply by (1 - q^(m+i)) / (1 - q^i)
        for u in range(n * m, m + i - 1, -1):
            ways[u] -= ways[u - m - i]
        for u in range(i, n * m + 1):
            ways[u] += ways[u - i]
    return np.asarray(np.cumsum(ways) / ways.sum())
