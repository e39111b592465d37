"""A variant's trace, read and diagnosed."""

from __future__ import annotations

from pathlib import Path

from hostgap.analysis.analyze import analyze
from hostgap.diagnosis.judge import Judging
from hostgap.diagnosis.model import Diagnosis
from hostgap.fixes.kernels import kernel_counts
from hostgap.profiling.bench import Traced
from hostgap.profiling.measurement import SCHEMA, Environment, Measurement
from hostgap.trace.load import load_trace


class Diagnoser:
    """Reads each trace once, for its diagnosis and its kernels.

    Args:
        environment: where the variants ran.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._kernels: dict[Path, dict[str, float]] = {}

    def diagnose(self, traced: Traced) -> Diagnosis:
        """What is wrong with the variant; savings are those of its unprofiled step."""
        trace = load_trace(traced.path)
        measured = Measurement(
            schema=SCHEMA,
            target="",
            options={},
            status="complete",
            problems=[],
            environment=self._environment,
            timing=traced.timing,
            span_ns=traced.span_ns,
            graphs=traced.graphs,
            host=traced.host,
            inflation=[],
            sites=[],
            passes=[],
        )
        diagnosis = analyze(trace, None, Judging().of_run(measured))
        self._kernels[traced.path] = kernel_counts(trace, diagnosis.steps.total)
        return diagnosis

    def kernels(self, traced: Traced) -> dict[str, float]:
        """How often each kernel ran in a step, of a trace that was diagnosed before."""
        return self._kernels[traced.path]


def gpu_work(traced: Traced, environment: Environment) -> float | None:
    """What of a variant's unprofiled step is the GPU's work, ns; None where its trace has none.

    Raises:
        TraceError: the trace cannot be read.
    """
    said = Diagnoser(environment).diagnose(traced).unprofiled
    if said is None or said.exposed_idle_ns is None:
        return None
    return float(said.step_ns - said.exposed_idle_ns)
