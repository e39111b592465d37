"""Reading only a part of a trace: what is kept of its events, and how two passes tell.

A file of gigabytes orders its events by kind and not by time, so which GPU ops belong to some steps
is known only after all calls were seen. A first pass keeps no more than what marks steps, and the
start and id of each call; a second one keeps what lies in the part.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from hostgap.trace import vocabulary as vocab
from hostgap.trace.events import Event
from hostgap.trace.model import Bool, HostKind, Int64

Table = Literal["api", "host", "frames"]


class Keep(Protocol):
    """What is kept of a trace's events. Times are the trace's own, ns."""

    @property
    def names(self) -> re.Pattern[str] | None:
        """Names of the framework ops that may be kept; None for all."""

    @property
    def tables(self) -> frozenset[str]:
        """Which of api, host, frames and gpu are kept at all."""

    def host(self, table: Table, start: Int64, end: Int64) -> Bool:
        """Which of n host events are kept."""

    def gpu(self, start: Int64, end: Int64, correlation: Int64) -> Bool:
        """Which of n GPU ops are kept."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The first pass: annotations, ops that mark steps, and calls.

    Attributes:
        names: which ops mark a step; annotations are kept whatever their name.
    """

    names: re.Pattern[str]
    tables: frozenset[str] = frozenset({"api", "host"})

    def host(self, table: Table, start: Int64, end: Int64) -> Bool:
        """All of them."""
        return np.ones(len(start), np.bool_)

    def gpu(self, start: Int64, end: Int64, correlation: Int64) -> Bool:
        """None of them."""
        return np.zeros(len(start), np.bool_)


@dataclass(frozen=True, slots=True)
class Span:
    """The second pass: a span of host time, and the GPU ops launched in it.

    Attributes:
        low, high: host events that lie at least in part between them are kept, calls that start
            there.
        launched: ids of those calls, sorted.
        known: ids of all calls, sorted: an op of none of them is kept by its own time.
    """

    low: int
    high: int
    launched: Int64
    known: Int64
    names: re.Pattern[str] | None = None
    tables: frozenset[str] = frozenset({"api", "host", "frames", "gpu"})

    def host(self, table: Table, start: Int64, end: Int64) -> Bool:
        """Those that lie in the span, at least in part."""
        if table == "api":
            return (start >= self.low) & (start < self.high)
        return (start < self.high) & (end > self.low)

    def gpu(self, start: Int64, end: Int64, correlation: Int64) -> Bool:
        """Those launched in the span, and orphans that run in it."""
        orphan = ~_among(correlation, self.known) & (start < self.high) & (end > self.low)
        return _among(correlation, self.launched) | orphan


def _among(values: Int64, ids: Int64) -> Bool:
    """Which of n values are among sorted ids; 0 and less never."""
    if len(ids) == 0:
        return np.zeros(len(values), np.bool_)
    at = np.minimum(np.searchsorted(ids, values), len(ids) - 1)
    return np.asarray((ids[at] == values) & (values > 0))


def wanted_events(keep: Keep, category: str, events: list[Event]) -> list[Event]:
    """The events of one category that may be kept, as far as their kind and name tell."""
    if category in vocab.FRAME_CATEGORIES:
        return events if "frames" in keep.tables else []
    if category in vocab.GPU_CATEGORIES:
        return events if "gpu" in keep.tables else []
    kind = vocab.HOST_CATEGORIES.get(category)
    if kind is None or keep.names is None or kind is HostKind.ANNOTATION:
        return events
    search, annotation = keep.names.search, vocab.ANNOTATION_NAMES.match
    return [e for e in events if search(e.name) is not None or annotation(e.name) is not None]


def chosen(columns: dict[str, Any], rows: Bool) -> dict[str, Any]:
    """Some rows of columns, of which one for all rows is an int."""
    return {
        key: value if isinstance(value, int) else np.asarray(value)[rows]
        for key, value in columns.items()
    }
