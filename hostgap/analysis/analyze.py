"""`analyze`: from a trace to its diagnosis, in one call."""

from __future__ import annotations

from hostgap.analysis.examine import Options, examine
from hostgap.analysis.metrics import diagnose
from hostgap.diagnosis.model import Diagnosis
from hostgap.trace.model import Trace


def analyze(trace: Trace, options: Options | None = None) -> Diagnosis:
    """Diagnose a trace: utilization, idle time by cause, counts, steps, and how far to trust them.

    Args:
        trace: what `hostgap.load_trace` gives.
        options: the window, steps and device to look at; all counted steps by default.

    Raises:
        HostgapError: the options do not fit the trace (no such step, device or marker).
    """
    return diagnose(examine(trace, options))
