"""From which batch on the GPU, and no longer its host, limits a decode step."""

from __future__ import annotations

from collections.abc import Iterable

from hostgap.analysis.step_classes import decode_batch
from hostgap.diagnosis import model as m

BOUND = 0.05  # share of the step that the GPU must idle for the host to limit it


def by_batch(runs: Iterable[m.StepsSummary]) -> m.Batches | None:
    """Decode steps by their batch, over one run or several.

    A step that its host limits takes as long for one request as for many: the first batch from
    which on the GPU idles for less than 5 % of the step is where more requests begin to cost time.

    Args:
        runs: steps of each run; serving engines name the batch in their annotations.

    Returns:
        None where fewer than two batches are known.
    """
    found: dict[int, list[m.StepClass]] = {}
    for steps in runs:
        for step_class in steps.classes:
            batch = decode_batch(step_class.label)
            if batch is not None and step_class.duration_median_ns > 0:
                found.setdefault(batch, []).append(step_class)
    if len(found) < 2:
        return None
    points = [_point(batch, found[batch]) for batch in sorted(found)]
    bound = [point.batch for point in points if point.idle_share >= BOUND]
    free = [point.batch for point in points if not bound or point.batch > max(bound)]
    return m.Batches(points=points, host_bound_below=free[0] if bound and free else None)


def _point(batch: int, classes: list[m.StepClass]) -> m.BatchPoint:
    steps = sum(len(c.steps) for c in classes)
    duration = sum(c.duration_median_ns * len(c.steps) for c in classes) / steps
    idle = sum(c.per_step.idle_ns * len(c.steps) for c in classes) / steps
    share = min(1.0, idle / duration)
    return m.BatchPoint(batch=batch, steps=steps, duration_ns=round(duration), idle_share=share)
