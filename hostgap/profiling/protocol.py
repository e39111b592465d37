"""How a target is measured: one process per mode, the ones that time it never having profiled.

Times come from the unprofiled process, counts and names from the traces, and how the profiler
stretches each kind of call from a calibration of the machine. A mode that fails is named and
leaves the others standing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import msgspec

from hostgap.errors import FixFailed, HostgapError, TargetError
from hostgap.profiling import requests as r
from hostgap.profiling.bench import Comparison, Traced, Variant
from hostgap.profiling.measurement import (
    SCHEMA,
    BatchTiming,
    Environment,
    Estimate,
    Inflation,
    Measurement,
    Pass,
    Region,
    Site,
    Waits,
)
from hostgap.profiling.rundir import trace_name
from hostgap.profiling.target import TargetSpec
from hostgap.profiling.worker import TIMEOUT_S, Child

Progress = Callable[[str], None]
# The GPU's work in a recorded step, ns, launches in hand; None where it cannot be said.
GpuWork = Callable[[Traced, Environment], float | None]
MODES: tuple[Literal["cuda", "cpu+cuda", "stacks"], ...] = ("cuda", "cpu+cuda", "stacks")


class ProfileOptions(msgspec.Struct, frozen=True):
    """How much is measured.

    Attributes:
        warmup: steps before anything is measured, at least; it goes on until the step is steady.
        steps: of a timed block.
        repeats: timed blocks.
        traced_steps: recorded by each traced pass.
        stacks: whether a pass with Python stacks is made.
        batches: of a sweep; the first is the one that is traced.
        device: what CUDA_VISIBLE_DEVICES is set to; None leaves it.
        timeout_s: for each process.
    """

    warmup: int = 10
    steps: int = 30
    repeats: int = 15
    traced_steps: int = 6
    stacks: bool = True
    batches: tuple[int, ...] = ()
    device: str | None = None
    timeout_s: float = TIMEOUT_S


def profile_target(
    spec: TargetSpec,
    options: ProfileOptions,
    folder: Path,
    progress: Progress,
    gpu_work: GpuWork,
) -> Measurement:
    """Measure a target; its traces are written into `folder`.

    Args:
        spec: what to run.
        options: how much.
        folder: an existing folder.
        progress: told what is being done, in a few words.
        gpu_work: asked in a sweep about steps that wait for the GPU.

    Raises:
        ConfigError: no torch, no CUDA device, options that do not fit the target.
        TargetError: the target cannot be imported, built or timed.
    """
    run = _Run(spec, options, progress)
    measured, welcome = run.measure(spec, "timing it without a profiler")
    variant = Variant(welcome.defects)

    passes = []
    for mode in MODES if options.stacks else MODES[:-1]:
        path = folder / trace_name(mode)
        record = r.Trace(variant, mode, str(path), options.warmup, options.traced_steps)
        step: Estimate | None = run.attempt(f"recording it ({mode})", record, Estimate)
        if step is None:
            path.unlink(missing_ok=True)  # what was recorded until it failed
        else:
            passes.append(Pass(mode=mode, file=path.name, step=step))
    looking = r.Sites(variant, options.warmup)
    sites: list[Site] | None = run.attempt("finding the lines that wait", looking, list[Site])
    inflation: list[Inflation] | None = run.attempt(
        "calibrating the profiler", r.Calibrate(), list[Inflation]
    )
    return assembled(
        spec,
        welcome,
        measured,
        passes,
        problems=run.problems,
        batches=run.sweep(measured, welcome, folder / trace_name("cuda"), gpu_work),
        regions=whole_step(run.as_one_graph("trying it as one CUDA graph", variant)),
        inflation=inflation or [],
        sites=sites or [],
    )


def assembled(
    spec: TargetSpec,
    welcome: r.Welcome,
    measured: r.Measured,
    passes: Sequence[Pass],
    *,
    problems: Sequence[str] = (),
    batches: Sequence[BatchTiming] = (),
    regions: Sequence[Region] = (),
    inflation: Sequence[Inflation] = (),
    sites: Sequence[Site] = (),
    waits: Waits | None = None,
) -> Measurement:
    """A measurement from what processes answered; the arguments are as its attributes."""
    return Measurement(
        schema=SCHEMA,
        target=spec.target,
        options=_said(spec),
        batches=list(batches),
        status="partial" if problems else "complete",
        problems=list(problems),
        environment=welcome.environment,
        timing=measured.timing,
        span_ns=measured.span_ns,
        graphs=measured.graphs,
        host=measured.host,
        regions=list(regions),
        inflation=list(inflation),
        sites=list(sites),
        passes=list(passes),
        tokens_per_step=measured.tokens,
        waits=waits,
    )


class Attempts:
    """A profile in the making: what fresh processes answer, and what went wrong in them.

    Args:
        spec: what is measured.
        options: how much.
        progress: told what is being done.
        fresh: begins a `Child`, or a `RankGroup`, whose answers are lists.
    """

    def __init__(
        self,
        spec: TargetSpec,
        options: ProfileOptions,
        progress: Progress,
        fresh: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.problems: list[str] = []
        self._spec, self._options, self._progress, self._fresh = spec, options, progress, fresh

    def attempt(
        self,
        doing: str,
        request: r.Request | Sequence[r.Request],
        answer: Any,
        expected: tuple[type[HostgapError], ...] = (),
    ) -> Any | None:
        """What fresh processes answer; None, and a problem noted unless it is an expected error,
        where one of them cannot."""
        self._progress(doing)
        try:
            with self._fresh() as processes:
                return processes.ask(request, answer)
        except HostgapError as error:
            if not isinstance(error, expected):
                self.problems.append(f"{doing}: {error.message}")
            return None

    def as_one_graph(self, doing: str, variant: Variant) -> Any | None:
        """The step compared with itself as one CUDA graph; None where it cannot be captured."""
        if self._spec.kind == "script":
            return None
        options = self._options
        graph = msgspec.structs.replace(variant, fixes=("cuda-graph",))
        request = r.Compare(variant, graph, options.warmup, options.steps, options.repeats)
        # most steps that wait, or that have graphs already; `hostgap fix` says why
        return self.attempt(doing, request, Comparison, (FixFailed, TargetError))


def whole_step(compared: Comparison | None) -> list[Region]:
    """The step as a region; none where it could not be compared with itself as a graph."""
    if compared is None:
        return []
    return [
        Region(
            file=None,
            line=None,
            function=None,
            graph_ns=compared.new.step.median_ns,
            eager_ns=compared.old.step.median_ns,
        )
    ]


class _Run(Attempts):
    """The same with one process at a time, and what is measured at each batch."""

    def __init__(self, spec: TargetSpec, options: ProfileOptions, progress: Progress) -> None:
        super().__init__(spec, options, progress, lambda: self._child(spec))

    def measure(self, spec: TargetSpec, doing: str) -> tuple[r.Measured, r.Welcome]:
        """Time a target in a fresh process that never profiles."""
        options = self._options
        self._progress(doing)
        with self._child(spec) as child:
            variant = Variant(child.welcome.defects)
            request = r.Measure(variant, options.warmup, options.steps, options.repeats)
            measured: r.Measured = child.ask(request, r.Measured)
            return measured, child.welcome

    def sweep(
        self, first: r.Measured, welcome: r.Welcome, recorded: Path, gpu_work: GpuWork
    ) -> list[BatchTiming]:
        """The unprofiled step at each batch, and what of it is the GPU's work.

        Where the step waits for the GPU its host can never be ahead, and the work is a recording's.

        Args:
            first: what was measured at the first batch.
            welcome: of the process that did.
            recorded: a trace of it with CUDA alone; need not exist.
            gpu_work: says it of a trace.
        """
        found = []
        for index, batch in enumerate(self._options.batches):
            spec, measured = msgspec.structs.replace(self._spec, batch=batch), first
            with tempfile.TemporaryDirectory(prefix="hostgap-") as folder:
                if index > 0:
                    doing = f"timing it at batch {batch}"
                    try:
                        measured, welcome = self.measure(spec, doing)
                    except HostgapError as error:
                        self.problems.append(f"{doing}: {error.message}")
                        continue
                    recorded = Path(folder) / trace_name("cuda")
                span, by_trace = measured.span_ns, False
                if span is None:
                    span = self._recorded_work(spec, measured, welcome, recorded, gpu_work)
                    by_trace = span is not None
            step = measured.timing.step
            found.append(BatchTiming(batch=batch, step=step, span_ns=span, recorded=by_trace))
        return found

    def _recorded_work(
        self,
        spec: TargetSpec,
        measured: r.Measured,
        welcome: r.Welcome,
        path: Path,
        gpu_work: GpuWork,
    ) -> float | None:
        """The GPU's work by a trace, which is recorded if there is none at `path`, ns."""
        doing = f"recording it at batch {spec.batch}"
        try:
            if not path.exists():
                self._progress(doing)
                record = r.Trace(
                    Variant(welcome.defects),
                    "cuda",
                    str(path),
                    self._options.warmup,
                    self._options.traced_steps,
                )
                with self._child(spec) as child:
                    child.ask(record, Estimate)
            traced = Traced(path, measured.timing, None, measured.graphs, measured.host)
            return gpu_work(traced, welcome.environment)
        except HostgapError as error:
            self.problems.append(f"{doing}: {error.message}")
            return None

    def _child(self, spec: TargetSpec) -> Child:
        return Child(spec, device=self._options.device, timeout_s=self._options.timeout_s)


def _said(spec: TargetSpec) -> dict[str, str | int | float | bool | list[str]]:
    """What was asked for, as far as it belongs to this kind of target."""
    said: dict[str, str | int | float | bool | list[str]] = {"batch": spec.batch}
    if spec.kind == "script":
        said = {"args": list(spec.args)}
    elif spec.kind == "decoder":
        said["preset"] = spec.preset
        if spec.defects is not None:
            said["defects"] = list(spec.defects)
        if spec.temperature is not None:
            said["temperature"] = spec.temperature
    if spec.ranks > 1:
        said["ranks"] = spec.ranks
    if spec.step_marker is not None:
        said["step_marker"] = spec.step_marker
    return said
