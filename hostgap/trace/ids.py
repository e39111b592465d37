"""Ids as torch.profiler writes them: numbers, text, or missing."""

from __future__ import annotations

import re
from typing import Any

from hostgap.trace.columns import Interner
from hostgap.trace.events import Text

MAX_ROW = 1 << 10  # characters of the name or id of a process, thread, device or stream
_STREAM_TID = re.compile(r"stream (\d{1,19})")
_INT64 = 2**63
_MAX_DIGITS = 19  # of a number in a string: a longer one does not fit 64 bits


def int64s(values: list[Text], missing: int) -> list[Any] | int:
    """A column of ints: `missing` for all rows where none has a value, and for those that do not
    fit.
    """
    kinds = set(map(type, values))
    if kinds == {int} and min(values) >= -_INT64 and max(values) < _INT64:  # type: ignore[type-var, operator]
        return values
    if kinds <= {type(None)}:
        return missing
    return [int64(value, missing) for value in values]


def int64(value: Text, missing: int) -> int:
    """`value` as an int that fits a column; `missing` where it is none or does not fit."""
    if value is None:
        return missing
    try:
        number = int(value)
    except (ValueError, OverflowError):
        return missing
    return number if -_INT64 <= number < _INT64 else missing


class Threads(Interner[tuple[Any, Any]]):
    """Codes of (pid, tid); long ones are cut."""

    def __missing__(self, key: tuple[Any, Any]) -> int:
        short = (row(key[0]), row(key[1]))
        return super().__missing__(key) if short == key else self[short]


def row(value: Text) -> Text:
    """`value` as the id of a row of the trace: a string only as long as is kept."""
    return value[:MAX_ROW] if isinstance(value, str) else value


def row_text(value: Text) -> str:
    """`value` as text, only as long as is kept."""
    return str(value)[:MAX_ROW]


def row_id(value: Text) -> int | str:
    """The id of a process, thread or device: a number wherever it is one."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        is_number = len(value) <= _MAX_DIGITS and value.isdecimal() and value.isascii()
        return int(value) if is_number else value[:MAX_ROW]
    return value if isinstance(value, int) else str(value)


def stream_id(value: Text) -> int | str:
    """The id of a stream, which a row may call `stream 7`."""
    if isinstance(value, str) and (match := _STREAM_TID.fullmatch(value.strip())):
        return int(match[1])
    return row_id(value)
