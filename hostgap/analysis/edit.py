"""What a replay takes away: the world without a fault, as a rule describes it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hostgap.analysis.intervals import EMPTY, Intervals, union
from hostgap.trace.model import Int64


@dataclass(frozen=True, slots=True)
class Edit:
    """What is different in a replay. Rows are those of the trace's tables.

    Attributes:
        cut: host time that is no longer spent.
        unblock: API calls that no longer wait.
        drop: GPU ops that no longer run.
        capture: host intervals, each of which becomes the launch of one graph of all it launches.
        length: GPU op -> its new length in ns.
    """

    cut: Intervals = EMPTY
    unblock: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    drop: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    capture: Intervals = EMPTY
    length: dict[int, int] = field(default_factory=dict)

    def plus(self, *others: Edit) -> Edit:
        """All at once."""
        edits = (self, *others)
        length: dict[int, int] = {}
        for edit in edits:
            length.update(edit.length)
        return Edit(
            joined(*(edit.cut for edit in edits)),
            np.concatenate([edit.unblock for edit in edits]).astype(np.int64),
            np.concatenate([edit.drop for edit in edits]).astype(np.int64),
            joined(*(edit.capture for edit in edits)),
            length,
        )


def joined(*several: Intervals) -> Intervals:
    """The union of several sets of intervals."""
    return union(
        np.concatenate([each.start for each in several]),
        np.concatenate([each.end for each in several]),
    )
