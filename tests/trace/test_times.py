from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostgap.trace.times import microseconds_to_ns

LIMIT = 2**62


def parse(*tokens: bytes) -> list[int | None]:
    values, good = microseconds_to_ns(tokens)
    assert values.dtype == np.int64
    assert good.dtype == np.bool_
    assert len(values) == len(good) == len(tokens)
    assert not values[~good].any()
    return [int(value) if ok else None for value, ok in zip(values, good, strict=True)]


class Decimal:
    """A number as written, and the ns it stands for, by integer arithmetic alone."""

    def __init__(self, sign: str, whole: str, decimals: str, exponent: int | None, quote: str):
        text = sign + whole + ("." + decimals if decimals else "")
        if exponent is not None:
            text += f"e{exponent}"
        self.token = f"{quote}{text}{quote}".encode()
        exact = Fraction(int(whole + decimals), 10 ** len(decimals)) * 1000
        exact *= Fraction(10) ** (exponent or 0)
        below, rest = divmod(exact.numerator, exact.denominator)
        up = (2 * rest, below % 2) > (exact.denominator, 0)
        ns = (below + up) * (-1 if sign == "-" else 1)
        self.ns = ns if abs(ns) < LIMIT else None


def digits(low: int, high: int) -> st.SearchStrategy[str]:
    return st.text("0123456789", min_size=low, max_size=high)


def plain(
    whole: st.SearchStrategy[str], decimals: st.SearchStrategy[str]
) -> st.SearchStrategy[Decimal]:
    """Numbers without sign, exponent and quotes."""
    return st.builds(Decimal, st.just(""), whole, decimals, st.none(), st.just(""))


DECIMALS = st.builds(
    Decimal,
    sign=st.sampled_from(["", "", "-"]),
    whole=st.one_of(digits(1, 21), st.sampled_from(["0", "1706850122865498", "9" * 16])),
    decimals=st.one_of(digits(3, 3), digits(0, 30), st.sampled_from(["5", "0005", "00050"])),
    exponent=st.one_of(st.none(), st.integers(-25, 25)),
    quote=st.sampled_from(["", "", '"']),
)
# As the profiler writes them, so that the fast paths are taken: three decimals each, and up to 3.
KINETO = plain(digits(1, 17), digits(3, 3))
SHORT = plain(digits(1, 16), digits(0, 3))
LONGER = plain(digits(1, 9), digits(4, 9))


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.lists(DECIMALS, max_size=12),
        st.lists(KINETO, max_size=12),
        st.lists(SHORT, max_size=12),
        st.lists(LONGER, max_size=12),
        st.lists(st.one_of(KINETO, SHORT, LONGER), max_size=12),
        st.lists(st.one_of(KINETO, SHORT, DECIMALS), max_size=12),
    )
)
def test_equals_exact_arithmetic(numbers: list[Decimal]) -> None:
    assert parse(*[n.token for n in numbers]) == [n.ns for n in numbers]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(KINETO, DECIMALS), min_size=1, max_size=8), st.randoms())
def test_a_number_does_not_depend_on_its_neighbours(
    numbers: list[Decimal], rng: random.Random
) -> None:
    junk = [b"", b"null", b'""', b"1,2", b"1.2.3", b".", b"nan", b"\xff"]
    tokens = [n.token for n in numbers]
    expected = [n.ns for n in numbers]
    at = rng.randrange(len(tokens) + 1)
    tokens.insert(at, rng.choice(junk))
    expected.insert(at, None)
    assert parse(*tokens) == expected


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=6), max_size=6))
def test_any_bytes_are_read_or_refused(tokens: list[bytes]) -> None:
    for token, value in zip(tokens, parse(*tokens), strict=True):
        if value is not None:
            assert float(token.strip().strip(b'"')) * 1000 == pytest.approx(value, abs=0.51)


@pytest.mark.parametrize(
    "token",
    [
        *(b"", b" ", b'""', b"null", b"true", b"nan", b"NaN", b"inf", b"-Infinity", b"x", b"."),
        *(b"-", b"1e", b"1.2.3", b"1,2", b"1 2", b"1_000", b"0x10", b"[1]", b'{"a":1}', b"\xff"),
        *(
            "٣".encode(),
            b"1e99",
            b"1e999999999",
            b"9" * 4000,
            b'"""1"""',
            b"1e-9999999999999999999",
        ),
    ],
)
def test_unreadable(token: bytes) -> None:
    assert parse(token) == [None]
    assert parse(b"1.000", token, b"2.5") == [1000, None, 2500]


def test_no_float_on_the_way() -> None:
    # a float64 at this size steps by a quarter of a microsecond
    text = [b"1706850122865498.%03d" % n for n in range(1000)]
    assert parse(*text) == [1706850122865498000 + n for n in range(1000)]
    assert parse(b"1706850122865498.001", b"0.5") == [1706850122865498001, 500]
    assert parse(b"1706850122865498.001", b"5e-1") == [1706850122865498001, 500]


def test_half_a_nanosecond_goes_to_the_even_one() -> None:
    assert parse(b"0.0005", b"0.0015", b"0.00050000001", b"-0.0015") == [0, 2, 1, -2]
    assert parse(b"0.0005", b"0.0015", b"0.0025") == [0, 2, 2]
    assert parse(b"0.0005" + b"0" * 70 + b"1", b"0.0004" + b"9" * 80) == [1, 0]


@pytest.mark.parametrize("decimals", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("step", [-1, 0, 1])
def test_at_the_limit(decimals: int, step: int) -> None:
    """Every way a number can be written has the same limit: 2**62 ns, exclusive."""
    scaled = LIMIT // 10 ** (3 - decimals) if decimals <= 3 else LIMIT * 10
    whole = str(scaled + step)
    text = whole[: len(whole) - decimals] + ("." + whole[len(whole) - decimals :]) * bool(decimals)
    exact = Fraction(scaled + step, 10**decimals) * 1000
    expected = round(exact) if round(exact) < LIMIT else None
    assert parse(text.encode()) == [expected]
    assert parse(text.encode(), b"1e0") == [expected, 1000]


def test_nothing() -> None:
    assert parse() == []


def test_any_buffer() -> None:
    assert parse(memoryview(b"1.5"), memoryview(b"2e0")) == [1500, 2000]  # type: ignore[arg-type]
