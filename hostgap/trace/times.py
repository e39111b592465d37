"""Decimal microseconds, as text, to integer nanoseconds.

Kineto writes `"ts": 1706850122865498.123`. As a float64 that is off by up to 0.125 us, more than
many a gap between kernels, so the text never passes through a float. A block of numbers is parsed
at once: joined by commas, the decimal points removed, read as integers, scaled by the number of
decimals each one had. A block that holds any other shape (exponents, strings, more than three
decimals, nothing at all) is read number by number, exactly too.
"""

from __future__ import annotations

import decimal
import fractions
import re
from collections.abc import Sequence

import numpy as np

from hostgap.trace.model import Bool, Int64

_COMMA, _DOT, _ZERO, _NINE = b",.09"
_MAX_DIGITS = 19  # of a time in ns; more would overflow, and 19 digits clamp above _LIMIT
_LIMIT = 2**62  # ns; start + duration of two such times still fits in an int64
LONGEST = 2**50  # ns that an event can last, 13 days: sums of thousands still fit in an int64
_NUMBER = re.compile(rb'\s*"?\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,9})?)\s*"?\s*')


def microseconds_to_ns(tokens: Sequence[bytes | memoryview]) -> tuple[Int64, Bool]:
    """Parse JSON tokens that hold microseconds.

    Args:
        tokens: n JSON values as text: numbers or strings holding one; anything supporting the
            buffer protocol. An empty token stands for a missing value.

    Returns:
        n times in ns, and a mask of those that are readable (the others are 0). More than three
        decimals are rounded half to even.
    """
    n = len(tokens)
    if n == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.bool_)
    text = b",".join(tokens) + b","
    chars = np.frombuffer(text, np.uint8)
    commas = np.flatnonzero(chars == _COMMA)
    dots = np.flatnonzero(chars == _DOT)
    lengths = np.diff(commas, prepend=-1) - 1
    plain = np.count_nonzero((chars >= _ZERO) & (chars <= _NINE)) + n + len(dots) == len(text)
    if plain and len(commas) == len(dots) == n and (commas - dots == 4).all():
        if lengths.max() <= _MAX_DIGITS + 1:  # three decimals each: what Kineto itself writes
            values = _integers(text.translate(None, b"."), n)
            good = values < _LIMIT
            return np.where(good, values, 0), good
    elif plain and len(commas) == n:
        decimals = np.zeros(n, np.int64)
        owner = np.searchsorted(commas, dots)  # the number each decimal point belongs to
        decimals[owner] = commas[owner] - dots - 1
        digits = lengths
        if len(dots):
            digits = lengths - np.bincount(owner, minlength=n)
        if (
            digits.min() > 0
            and decimals.max() <= 3
            and (digits + 3 - decimals).max() <= _MAX_DIGITS
            and (len(dots) < 2 or np.diff(owner).min() > 0)
        ):
            values = _integers(text.translate(None, b".") if len(dots) else text, n)
            good = values <= (_LIMIT - 1) // _POWER[decimals]
            return np.where(good, values, 0) * _POWER[decimals], good
    return _one_by_one([bytes(token) for token in tokens])


_POWER = np.array([1000, 100, 10, 1], np.int64)


def _integers(text: bytes, n: int) -> Int64:
    values = np.fromstring(text.decode("ascii"), np.int64, sep=",")
    assert len(values) == n
    return values


def _one_by_one(tokens: list[bytes]) -> tuple[Int64, Bool]:
    numbers = [_one(token) for token in tokens]
    good = np.array([number is not None for number in numbers])
    return np.array([number or 0 for number in numbers], np.int64), good


def _one(token: bytes) -> int | None:
    """One time in ns, exactly; None if it is missing, not finite, or out of range."""
    match = _NUMBER.fullmatch(token)
    if match is None:
        return None
    number = decimal.Decimal(match[1].decode("ascii"))
    if number == 0 or number.adjusted() < -4:
        return 0
    if number.adjusted() > 20:
        return None
    ns = round(fractions.Fraction(number) * 1000)  # half to even
    return ns if abs(ns) < _LIMIT else None
