"""Where in a timeline a finding is: what to outline, and the places to look at."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.causes import Cause
from hostgap.analysis.examine import Analysis
from hostgap.diagnosis.model import Diagnosis, Finding

MOST = 40  # events of a finding that are outlined
_NEAR_NS = 50_000  # events closer than this are looked at together

# Findings that are about time and name no calls: the idle time they speak of.
_CAUSES: dict[str, Cause] = {
    "HG306": Cause.COMPILE,
    "HG403": Cause.COMPILE,
    "HG501": Cause.GC,
    "HG502": Cause.PYTHON,
    "HG503": Cause.INPUT_WAIT,
    "HG505": Cause.PYTHON,
    "HG506": Cause.PREEMPTED,
    "HG508": Cause.PREEMPTED,
    "HG509": Cause.GIL,
    "HG510": Cause.REMOTE_WAIT,
    "HG512": Cause.NO_WORK,
}


@dataclass(frozen=True, slots=True)
class Evidence:
    """Of one finding: calls (rows of api_calls), idle pieces (rows of the parts of all devices, one
    after the other), and intervals to look at, in order. Times are ns on the GPU's clock."""

    calls: NDArray[np.int64]
    parts: NDArray[np.int64]
    spots: list[tuple[int, int]]


def finding_ids(findings: list[Finding]) -> list[str]:
    """`HG101-1`, `HG101-2`, ...: what the address of a finding is."""
    seen: Counter[str] = Counter()
    ids = []
    for finding in findings:
        seen[finding.code] += 1
        ids.append(f"{finding.code}-{seen[finding.code]}")
    return ids


def evidence_of(analysis: Analysis, diagnosis: Diagnosis) -> list[Evidence]:
    """The evidence of every finding, in their order."""
    api, gpu = analysis.trace.api_calls, analysis.trace.gpu_ops
    start, end = analysis.clock.to_gpu(api.start), analysis.clock.to_gpu(api.end).copy()
    # a call is looked at together with what it launched
    launched = np.flatnonzero(gpu.call >= 0)
    np.maximum.at(end, gpu.call[launched], gpu.end[launched])
    result = []
    for finding in diagnosis.findings:
        calls = np.array([row for row in finding.evidence if row < len(api)], np.int64)[:MOST]
        calls = calls[np.argsort(start[calls], kind="stable")]
        parts = np.zeros(0, np.int64)
        spans = list(zip(start[calls].tolist(), end[calls].tolist(), strict=True))
        if len(calls) == 0 and finding.code in _CAUSES:
            parts, spans = _longest(analysis, _CAUSES[finding.code])
        result.append(Evidence(calls, parts, _spots(spans)))
    return result


def _longest(analysis: Analysis, cause: Cause) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
    """The longest idle pieces with a cause, in order of time."""
    tables = [device.parts for device in analysis.devices.values()]
    if not tables:
        return np.zeros(0, np.int64), []
    code = np.concatenate([parts.cause for parts in tables])
    start = np.concatenate([parts.start for parts in tables])
    end = np.concatenate([parts.end for parts in tables])
    mine = np.flatnonzero(code == cause)
    mine = mine[np.argsort(start[mine] - end[mine], kind="stable")][:MOST]
    mine = mine[np.argsort(start[mine], kind="stable")]
    return mine, list(zip(start[mine].tolist(), end[mine].tolist(), strict=True))


def _spots(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Intervals to look at one after the other: neighbours together."""
    spots: list[tuple[int, int]] = []
    for low, high in spans:
        if spots and low - spots[-1][1] <= max(_NEAR_NS, (spots[-1][1] - spots[-1][0]) // 4):
            spots[-1] = (spots[-1][0], max(spots[-1][1], high))
        else:
            spots.append((low, high))
    return spots
