"""A variant's trace, read and diagnosed."""

from __future__ import annotations

from pathlib import Path

from hostgap.analysis.analyze import analyze
from hostgap.diagnosis.model import Diagnosis
from hostgap.fixes.kernels import kernel_counts
from hostgap.profiling.bench import Traced
from hostgap.trace.load import load_trace


class Diagnoser:
    """Reads each trace once, for its diagnosis and its kernels."""

    def __init__(self) -> None:
        self._kernels: dict[Path, dict[str, float]] = {}

    def diagnose(self, traced: Traced) -> Diagnosis:
        """What is wrong with the variant."""
        trace = load_trace(traced.path)
        diagnosis = analyze(trace)
        self._kernels[traced.path] = kernel_counts(trace, diagnosis.steps.total)
        return diagnosis

    def kernels(self, traced: Traced) -> dict[str, float]:
        """How often each kernel ran in a step, of a trace that was diagnosed before."""
        return self._kernels[traced.path]
