"""How many devices, streams and launching threads a trace may have: beyond, its ids are damaged.

Each of them is analyzed on its own, so a trace in which every event has another id would take hours
and say nothing. Traces of whole nodes have tens of devices and hundreds of the others.
"""

from __future__ import annotations

import numpy as np

from hostgap.errors import TraceError
from hostgap.trace.columns import distinct, distinct_codes
from hostgap.trace.model import Trace

MOST_DEVICES = 256
MOST_STREAMS = 4096
MOST_THREADS = 2048


def refuse_too_many(trace: Trace) -> None:
    """Raise TraceError for a trace with more of them than any recording has."""
    gpu, api = trace.gpu_ops, trace.api_calls
    devices = distinct_codes(gpu.device)
    per_device = int(gpu.stream.max(initial=0)) + 1
    streams, _ = distinct(gpu.device.astype(np.int64) * per_device + gpu.stream)
    launching = distinct_codes(api.thread[gpu.call[gpu.call >= 0]])
    for count, most, what in (
        (len(devices), MOST_DEVICES, "devices"),
        (len(streams), MOST_STREAMS, "streams"),
        (len(launching), MOST_THREADS, "threads that launch work"),
    ):
        if count > most:
            raise TraceError(
                f"{trace.file}: {count:,} {what}, of which {most:,} can be analyzed",
                "the ids in this trace are likely damaged: record it again",
            )
