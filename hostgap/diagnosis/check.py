"""What a rule yields, checked and brought into one form: a user's own may yield anything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hostgap.analysis.edit import Edit
from hostgap.analysis.intervals import Intervals
from hostgap.diagnosis.model import Site
from hostgap.diagnosis.rule import Match
from hostgap.output.printable import printable
from hostgap.trace.model import Int64, Trace

_FAR = 1 << 62  # ns; no time of a trace lies beyond


def checked(trace: Trace, match: Any) -> Match:
    """A match with rows as sorted int64, whole numbers as int, and texts that can be shown.

    Raises:
        TypeError, ValueError: it is no match, or something in it is not what it must be.
    """
    if not isinstance(match, Match):
        raise TypeError(f"yielded {type(match).__name__} instead of a Match")
    if match.site is not None and not isinstance(match.site, Site):
        raise TypeError(f"site is {type(match.site).__name__} instead of a Site")
    count = None if match.count is None else _whole("count", match.count)
    return replace(
        match,
        calls=_rows("calls", match.calls, len(trace.api_calls)),
        edit=None if match.edit is None else _edit(match.edit, trace),
        count=count,
        title=_text("title", match.title),
        advice=_text("advice", match.advice),
    )


def _edit(edit: Any, trace: Trace) -> Edit:
    if not isinstance(edit, Edit):
        raise TypeError(f"edit is {type(edit).__name__} instead of an Edit")
    ops = len(trace.gpu_ops)
    length = {
        int(row): _whole("edit.length", ns)
        for row, ns in zip(
            _rows("edit.length", list(edit.length), ops, unique=False).tolist(),
            edit.length.values(),
            strict=True,
        )
    }
    return Edit(
        _spans("edit.cut", edit.cut),
        _rows("edit.unblock", edit.unblock, len(trace.api_calls)),
        _rows("edit.drop", edit.drop, ops),
        _spans("edit.capture", edit.capture),
        length,
    )


def _rows(name: str, rows: Any, length: int, *, unique: bool = True) -> Int64:
    found = np.asarray(rows)
    if found.ndim != 1 or (len(found) and found.dtype.kind not in "iu"):
        raise TypeError(f"{name}: rows are a one-dimensional array of integers")
    found = found.astype(np.int64)
    if len(found) and not 0 <= found.min() <= found.max() < length:
        raise ValueError(f"{name}: rows beyond the {length} of the table")
    return np.unique(found) if unique and (np.diff(found) <= 0).any() else found


def _spans(name: str, spans: Any) -> Intervals:
    if not isinstance(spans, Intervals):
        raise TypeError(f"{name} is {type(spans).__name__} instead of Intervals")
    start, end = np.asarray(spans.start), np.asarray(spans.end)
    if start.ndim != 1 or start.shape != end.shape:
        raise TypeError(f"{name}: as many starts as ends")
    if len(start) and not (start.dtype.kind == end.dtype.kind == "i"):
        raise TypeError(f"{name}: times are integers, in ns")
    start, end = start.astype(np.int64), end.astype(np.int64)
    if (end < start).any() or (start[1:] < end[:-1]).any():
        raise ValueError(f"{name}: not merged: union() makes it so")
    if len(start) and (start[0] < -_FAR or end[-1] > _FAR):
        raise ValueError(f"{name}: times beyond any trace")
    return Intervals(start, end)


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} is {type(value).__name__} instead of an integer")
    if not 0 <= int(value) < _FAR:
        raise ValueError(f"{name}: {int(value)} is out of range")
    return int(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {type(value).__name__} instead of a text")
    return printable(value, 1_000)


def said(error: BaseException) -> str:
    """What an exception says, in one line; one that cannot say it gives its type."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001  its own __str__ raises
        text = ""
    name = type(error).__name__
    return printable(f"{name}: {text}" if text else name, 400)
