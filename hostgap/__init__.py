"""hostgap: where a GPU waits for its CPU, why, and what it would cost to stop.

The public API is small and loads its heavy parts (numpy, the readers) on first use, so that
``import hostgap`` and ``hostgap --help`` stay instant::

    import hostgap
    trace = hostgap.load_trace("decode.pt.trace.json.gz")
    trace.table("gpu_ops")            # a pandas DataFrame; times are int64 ns
    diagnosis = hostgap.analyze(trace)   # what `hostgap analyze --format json` prints
    hostgap.examine(trace).table("gap_parts")    # every idle interval, cut by cause

What `hostgap profile` and `hostgap fix` run may say more of itself with `hostgap.Workload`; a
script of one's own marks its steps with `hostgap.step()`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hostgap.errors import HostgapError

if TYPE_CHECKING:
    from hostgap.analysis.analyze import analyze
    from hostgap.analysis.examine import Analysis, Options, examine
    from hostgap.diagnosis.model import Diagnosis
    from hostgap.profiling.aside import Aside
    from hostgap.profiling.marks import step
    from hostgap.profiling.workload import Workload
    from hostgap.trace.load import load_trace
    from hostgap.trace.model import Trace

__version__ = "0.1.0"
__all__ = [
    "Analysis",
    "Aside",
    "Diagnosis",
    "HostgapError",
    "Options",
    "Trace",
    "Workload",
    "__version__",
    "analyze",
    "examine",
    "load_trace",
    "step",
]

_LAZY = {
    "Aside": "hostgap.profiling.aside",
    "Analysis": "hostgap.analysis.examine",
    "Options": "hostgap.analysis.examine",
    "analyze": "hostgap.analysis.analyze",
    "examine": "hostgap.analysis.examine",
    "Diagnosis": "hostgap.diagnosis.model",
    "load_trace": "hostgap.trace.load",
    "step": "hostgap.profiling.marks",
    "Trace": "hostgap.trace.model",
    "Workload": "hostgap.profiling.workload",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
    return value
