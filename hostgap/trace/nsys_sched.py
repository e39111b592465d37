"""When a thread was off the CPU, from the scheduling events of an Nsight export."""

from __future__ import annotations

import numpy as np

from hostgap.trace.model import Bool, Int32, Int64

SCHED = "SCHED_EVENTS"


def off_cpu(
    start: Int64, scheduled_in: Bool, thread: Int32, state: Int64
) -> tuple[Int64, Int64, Int32, Int64]:
    """Intervals between a thread's being scheduled out and in again.

    Args:
        start, scheduled_in, thread, state: n scheduling events, in any order.

    Returns:
        Starts, ends, threads, and the thread's state when it left; in order of thread and start.
    """
    order = np.lexsort((scheduled_in, start, thread))
    start, scheduled_in, thread = start[order], scheduled_in[order], thread[order]
    # in and out again in one nanosecond: it never ran
    blink = (np.diff(start) == 0) & (np.diff(thread) == 0) & ~scheduled_in[:-1] & scheduled_in[1:]
    stays = np.ones(len(start), np.bool_)
    stays[:-1][blink] = stays[1:][blink] = False
    order = order[stays]
    start, scheduled_in, thread = start[stays], scheduled_in[stays], thread[stays]
    out = np.flatnonzero(~scheduled_in[:-1] & scheduled_in[1:] & (thread[:-1] == thread[1:]))
    return start[out], start[out + 1], thread[out], state[order][out]


def contradicted(
    start: Int64, end: Int64, thread: Int32, event: Int64, event_thread: Int32
) -> Bool:
    """Which intervals off the CPU cannot be: the thread began or ended something meanwhile.

    Where nsys sees the scheduling events of some CPUs only, a thread that moved to another one
    seems to be gone.

    Args:
        start, end, thread: n intervals.
        event, event_thread: times at which m host events began or ended.
    """
    wrong = np.zeros(len(start), np.bool_)
    for code in np.unique(thread).tolist():
        times = np.sort(event[event_thread == code])
        mine = np.flatnonzero(thread == code)
        first = np.searchsorted(times, start[mine], "right")
        wrong[mine] = first < np.searchsorted(times, end[mine], "left")
    return wrong
