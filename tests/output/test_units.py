"""Times as people read them."""

from __future__ import annotations

import pytest

from hostgap.units import duration


@pytest.mark.parametrize(
    ("ns", "said"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (999_600, "1.00 ms"),
        (33e6, "33.0 ms"),
        (-33e6, "-33.0 ms"),
        (-123_456_789, "-123 ms"),
        (-50_000, "-50.0 us"),
    ],
)
def test_three_figures_whatever_the_sign(ns: float, said: str) -> None:
    assert duration(ns) == said
