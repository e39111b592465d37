"""Lines for a trace without Python stacks, from another recording of the same steps with them.

Recording stacks slows the host further, so `hostgap profile` makes two recordings: one that is
diagnosed, and one that says from where each call was made. The steps are the same, so the n-th call
of a name in a step of the one is the n-th in a step of the other.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.clock import fit_clock
from hostgap.analysis.host import Host
from hostgap.analysis.steps import assign_steps, find_steps
from hostgap.analysis.timeline import device_lanes
from hostgap.trace.model import Int32, Int64, Trace

NONE = -1


def with_frames_of(trace: Trace, stacks: Trace) -> Trace:
    """The trace, with the user frames of its API calls as `call_frames`.

    Args:
        trace: recorded without stacks.
        stacks: the same steps, recorded with them.

    Returns:
        A trace in which `call_frames` holds a name code per API call, -1 where the two recordings
        do not have the same number of calls of that name in a step.
    """
    of_step, of_other = _call_steps(trace), _call_steps(stacks)
    other_frames = Host(stacks, fit_clock(stacks)).call_sites(np.arange(len(stacks.api_calls)))
    lent = _by_ordinal(stacks, of_other, other_frames)
    names = list(trace.names)
    codes: dict[int, int] = {}  # a frame's code there -> here
    frames = np.full(len(trace.api_calls), NONE, np.int32)
    for name, rows in _ordinals(trace, of_step):
        known = lent.get(trace.names[name])
        if known is None:
            continue
        for steps_rows in rows:
            if len(steps_rows) != len(known):
                continue
            for row, frame in zip(steps_rows.tolist(), known.tolist(), strict=True):
                if frame != NONE:
                    if frame not in codes:
                        codes[frame] = len(names)
                        names.append(stacks.names[frame])
                    frames[row] = codes[frame]
    return replace(trace, names=tuple(names), call_frames=frames)


def _call_steps(trace: Trace) -> Int64:
    """Per API call the step it belongs to, -1 for none."""
    clock = fit_clock(trace)
    steps = assign_steps(trace, clock, find_steps(trace, clock), list(device_lanes(trace)))
    return steps.call_step.astype(np.int64)


def _ordinals(trace: Trace, of_step: Int64) -> list[tuple[int, list[NDArray[np.intp]]]]:
    """Per API name: its calls, step by step, each step's in the order of their starts."""
    api = trace.api_calls
    rows = np.flatnonzero(of_step >= 0)
    rows = rows[np.lexsort((api.start[rows], of_step[rows], api.name[rows]))]
    if len(rows) == 0:
        return []
    name, step = api.name[rows], of_step[rows]
    cuts = np.flatnonzero((np.diff(name) != 0) | (np.diff(step) != 0)) + 1
    found: dict[int, list[NDArray[np.intp]]] = {}
    for part in np.split(rows, cuts):
        found.setdefault(int(api.name[part[0]]), []).append(part)
    return list(found.items())


def _by_ordinal(trace: Trace, of_step: Int64, frames: Int32) -> dict[str, Int32]:
    """Name -> the frames of its calls in a usual step: the most frequent number of calls."""
    usual = {}
    for name, rows in _ordinals(trace, of_step):
        lengths = [len(part) for part in rows]
        often = max(set(lengths), key=lambda n: (lengths.count(n), n))
        # the last such step: nothing warms up in it any more
        part = next(part for part in reversed(rows) if len(part) == often)
        usual[trace.names[name]] = frames[part]
    return usual
