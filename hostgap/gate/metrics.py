"""What a gate can hold against a limit: each metric's direction, kind, and where it comes from."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hostgap.diagnosis.model import Diagnosis, StepClass, SyncSite
from hostgap.errors import ConfigError
from hostgap.units import duration

Kind = Literal["count", "share", "traced time", "step time"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure with a direction.

    Attributes:
        worse: whether it is worse the higher or the lower it is; a budget is its max or its min.
        kind: counts are exact; shares and traced times are of the step as the profiler saw it; the
            step's time is of processes that never had a profiler.
        gpu_side: whether it is read off GPU rows, and so wrong where some were not recorded.
        value: from a diagnosis and the class of steps that is gated; None: not known.
    """

    name: str
    worse: Literal["higher", "lower"]
    kind: Kind
    meaning: str
    gpu_side: bool
    value: Callable[[Diagnosis, StepClass], float | None]

    @property
    def bound(self) -> Literal["max", "min"]:
        """What a budget of it is called."""
        return "max" if self.worse == "higher" else "min"


def is_sync(sync: SyncSite) -> bool:
    """Whether a blocking call is a synchronize, and not a copy that blocks."""
    return "ynchronize" in sync.call or sync.call.endswith(("QueueFinish", "EventWait"))


def _utilization(diagnosis: Diagnosis, _: StepClass) -> float | None:
    """Of the unprofiled step where that was measured, else of the worst device as recorded."""
    if diagnosis.unprofiled is not None and diagnosis.unprofiled.kernel_utilization is not None:
        return diagnosis.unprofiled.kernel_utilization
    known = [device.kernel_utilization for device in diagnosis.devices]
    return min((share for share in known if share is not None), default=None)


def _idle_share(diagnosis: Diagnosis, _: StepClass) -> float | None:
    known = [device.active_utilization for device in diagnosis.devices]
    return max((1 - share for share in known if share is not None), default=None)


def _over_steps(count: Callable[[Diagnosis], int]) -> Callable[[Diagnosis, StepClass], float]:
    """A count of the window by its steps, where none is kept for each class of them."""
    return lambda diagnosis, _: count(diagnosis) / max(1, diagnosis.steps.count)


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "sync_calls_per_step",
            "higher",
            "count",
            "calls in which the host waits for the GPU, less those on the allow list",
            False,
            lambda _, step: step.per_step.sync_calls,
        ),
        Metric(
            "blocking_syncs_per_step",
            "higher",
            "count",
            "the same and copies that block, over all steps",
            False,
            _over_steps(lambda d: d.counts.blocking_syncs),
        ),
        Metric(
            "launches_per_step",
            "higher",
            "count",
            "kernel launches outside graphs",
            False,
            lambda _, step: step.per_step.launches,
        ),
        Metric(
            "graph_launches_per_step",
            "higher",
            "count",
            "replays of CUDA graphs",
            False,
            lambda _, step: step.per_step.graph_launches,
        ),
        Metric(
            "copies_per_step",
            "higher",
            "count",
            "copies that the GPU makes",
            True,
            lambda _, step: step.per_step.copies,
        ),
        Metric(
            "pageable_copies_per_step",
            "higher",
            "count",
            "copies to or from pageable memory, over all steps",
            True,
            _over_steps(lambda d: d.counts.copies.pageable),
        ),
        Metric(
            "allocs_per_step",
            "higher",
            "count",
            "allocations of device memory by CUDA",
            False,
            lambda _, step: step.per_step.allocs,
        ),
        Metric(
            "kernel_utilization",
            "lower",
            "share",
            "share of the step in which kernels run",
            True,
            _utilization,
        ),
        Metric(
            "idle_share",
            "higher",
            "share",
            "share of the step in which the GPU does nothing",
            True,
            _idle_share,
        ),
        Metric(
            "gpu_ops_in_graphs",
            "lower",
            "share",
            "share of GPU operations inside CUDA graphs",
            True,
            lambda diagnosis, _: diagnosis.capture.gpu_ops_in_graphs,
        ),
        Metric(
            "idle_per_step",
            "higher",
            "traced time",
            "idle time of a GPU in a step, as recorded",
            True,
            lambda _, step: step.per_step.idle_ns,
        ),
        Metric(
            "step_time",
            "higher",
            "step time",
            "a step without a profiler",
            False,
            lambda diagnosis, _: diagnosis.unprofiled.step_ns if diagnosis.unprofiled else None,
        ),
    )
}

# What a baseline keeps and is compared by. The others are budgets' only: they follow from these,
# or vary between runs of the same code.
EXACT = (
    "sync_calls_per_step",
    "launches_per_step",
    "graph_launches_per_step",
    "copies_per_step",
    "allocs_per_step",
)


def metric_named(name: str, where: str) -> Metric:
    """The metric of a name as a configuration or the command line spells it.

    Raises:
        ConfigError: there is none; the hint names the nearest.
    """
    found = METRICS.get(name.replace("-", "_"))
    if found is None:
        near = difflib.get_close_matches(name.replace("-", "_"), METRICS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(METRICS)}"
        raise ConfigError(f"{where}: no metric is called {name!r}", hint)
    return found


def shown(metric: Metric, value: float | None) -> str:
    """A value with its unit."""
    if value is None:
        return "n/a"
    if metric.kind == "count":
        return f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"
    if metric.kind == "share":
        return f"{value:.1%}".replace("%", " %")
    return duration(value)
