"""The diagnosis of a run directory: its trace, and what was measured without a profiler."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from hostgap.analysis.analyze import analyze
from hostgap.analysis.borrow import with_frames_of
from hostgap.diagnosis.judge import Judging
from hostgap.diagnosis.model import Diagnosis
from hostgap.errors import TraceError
from hostgap.profiling.measurement import Measurement
from hostgap.profiling.rundir import NAME, read_measurement
from hostgap.trace.load import load_trace
from hostgap.trace.model import Trace


def diagnose_run(folder: Path) -> Diagnosis:
    """Diagnose what `hostgap profile` wrote: savings are those of the unprofiled step.

    Args:
        folder: the run directory.

    Raises:
        HostgapError: no measurement, another schema, or no trace.
    """
    measurement = read_measurement(folder)
    return analyze(load_run(folder, measurement), judging=Judging().of_run(measurement))


def load_run(
    folder: Path, measurement: Measurement, *, progress: Callable[[int], None] | None = None
) -> Trace:
    """The trace of a run: that without stacks, its calls placed by that with stacks.

    Args:
        folder: the run directory.
        measurement: what `read_measurement` gave.
        progress: called now and then with the number of bytes read so far.

    Raises:
        HostgapError: there is no trace, or one that cannot be read.
    """
    trace = load_trace(run_trace(folder, measurement), progress=progress)
    if any(one.mode == "stacks" for one in measurement.passes):
        trace = with_frames_of(trace, load_trace(run_trace(folder, measurement, "stacks")))
    return trace


def run_trace(
    folder: Path, measurement: Measurement, mode: Literal["cpu+cuda", "stacks"] = "cpu+cuda"
) -> Path:
    """The file of one of a run's recordings.

    Raises:
        TraceError: there is none, or it lies outside the folder.
    """
    files = [one.file for one in measurement.passes if one.mode == mode]
    if not files:
        raise TraceError(f"{folder / NAME}: no pass recorded CPU and CUDA", "profile it again")
    path = folder / files[0]
    if Path(os.path.realpath(path)).parent != Path(os.path.realpath(folder)):  # loops end too
        raise TraceError(f"{folder / NAME}: names a trace outside its folder: {files[0]!r}")
    if not path.is_file():
        raise TraceError(f"{path}: the trace that {NAME} names is missing")
    return path
