"""`analyze`: from a trace to its diagnosis, in one call."""

from __future__ import annotations

from hostgap.analysis.examine import Options, examine
from hostgap.analysis.metrics import diagnose
from hostgap.diagnosis.judge import Judging, judge
from hostgap.diagnosis.model import Diagnosis
from hostgap.trace.model import Trace


def analyze(
    trace: Trace, options: Options | None = None, judging: Judging | None = None
) -> Diagnosis:
    """Diagnose a trace: utilization, idle time by cause, findings with what they cost, a verdict.

    Args:
        trace: what `hostgap.load_trace` gives.
        options: the window, steps and device to look at; all counted steps by default.
        judging: which rules to run and by what thresholds; all, by their own, by default.

    Raises:
        HostgapError: the options do not fit the trace (no such step, device or marker), or name
            rules that there are not.
    """
    analysis = examine(trace, options)
    return judge(diagnose(analysis), analysis, judging or Judging())
