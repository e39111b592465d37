"""What a measurement without a profiler adds to the diagnosis of a trace."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hostgap.diagnosis import model as m
from hostgap.diagnosis.context import Context
from hostgap.profiling.measurement import Site as MeasuredSite
from hostgap.trace.model import Int64

ALIKE = 0.3  # by which counts per step of one place may differ, recorded and seen by the site pass
_KINDS = {
    "StreamSynchronize": "stream",
    "DeviceSynchronize": "device",
    "EventSynchronize": "event",
}


def unprofiled(context: Context, kernel_busy_ns: int) -> m.Unprofiled | None:
    """The figures of the unprofiled step, None where it was not measured.

    Args:
        context: the trace, and what was measured.
        kernel_busy_ns: time of the trace's window in which kernels ran.
    """
    measured, replay = context.calibration, context.calibrated
    if measured is None:
        return None
    step = measured.step_ns
    span = context.measurement.span_ns if context.measurement is not None else None
    utilization = None
    if replay is not None:
        if span is None:
            span = replay.fits[0].gpu_ns
        traced = replay.traced_span_ns
        if traced > 0:
            busy = kernel_busy_ns / context.counted_steps
            utilization = min(busy / traced, 1.0) * min(span / step, 1.0)
    return m.Unprofiled(
        step_ns=round(step),
        low_ns=round(measured.low_ns),
        high_ns=round(measured.high_ns),
        exposed_idle_ns=None if span is None else max(0, round(step - span)),
        kernel_utilization=utilization,
        inflation=context.window_ns / context.counted_steps / step,
    )


def exact_site(context: Context, site: m.Site | None, calls: Int64) -> m.Site | None:
    """Where waits are, with the line that the site pass saw, if only one can be meant.

    Args:
        context: the trace, and what was measured.
        site: where they are by the trace.
        calls: rows of api_calls of the waits.
    """
    if context.measurement is None or (site is not None and site.precision == "call"):
        return site
    api, names = context.trace.api_calls, context.trace.names
    kinds: dict[str, int] = {}
    for code in api.name[calls].tolist():
        for ending, kind in _KINDS.items():
            if names[code].endswith(ending):
                kinds[kind] = kinds.get(kind, 0) + 1
    seen = [one for one in context.measurement.sites if one.what in kinds]
    often = [one for one in seen if _as_often(one, kinds[one.what] / context.counted_steps)]
    if site is None or site.file is None:
        # without stacks only the count says which it is
        if len(often) != 1:
            return site
        base = m.Site(file=None, line=None, function=None, op=None, precision="none")
        return _at(site or base, often[0])
    here = [one for one in seen if one.function == site.function and _same(one.file, site.file)]
    both = [one for one in here if one in often]
    if len(here) == 1 or len(both) == 1:
        return _at(site, (both or here)[0])
    lines = tuple(sorted({one.line for one in both or here}))
    return msgspec.structs.replace(site, candidates=lines) if lines else site


def _as_often(one: MeasuredSite, per_step: float) -> bool:
    return abs(one.per_step - per_step) <= ALIKE * max(one.per_step, per_step)


def _same(one: str, other: str) -> bool:
    """Whether two paths may be one file's, of which a trace may have only the end."""
    short, long = sorted((_parts(one), _parts(other)), key=len)
    return long[-len(short) :] == short


def _parts(path: str) -> list[str]:
    parts: Iterable[str] = path.replace("\\", "/").split("/")
    return [part for part in parts if part not in ("", ".")]


def _at(site: m.Site, seen: MeasuredSite) -> m.Site:
    return msgspec.structs.replace(
        site,
        file=site.file or seen.file,
        line=seen.line,
        function=seen.function,
        precision="call",
        candidates=(),
    )
