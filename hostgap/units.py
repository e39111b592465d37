"""Times and shares as people read them."""

from __future__ import annotations


def duration(ns: float) -> str:
    """A time with three significant figures and a fitting unit."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= size * 0.9995:
            value = ns / size
            decimals = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
            return f"{value:,.{decimals}f} {unit}"
    return f"{ns:.0f} ns"


def amount_of(part_ns: float, whole_ns: float) -> str:
    """`33.0 of 35.4 ms`: the unit only once where both have the same."""
    part, whole = duration(part_ns), duration(whole_ns)
    value, _, unit_of_part = part.partition(" ")
    return f"{value if whole.endswith(' ' + unit_of_part) else part} of {whole}"


def percent(part: float, whole: float) -> str:
    """A share as a whole percentage, `<1 %` for the small ones that are not nothing."""
    share = part / whole if whole else 0.0
    return "<1 %" if 0 < share < 0.005 else f"{share:.0%}".replace("%", " %")
