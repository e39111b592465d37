"""Malformed traces as met in the wild, where the collection stands beside the repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hostgap.errors import TraceError
from hostgap.trace.load import load_trace
from hostgap.trace.model import GpuKind, Role

FOLDER = Path(__file__).parents[3] / "shared" / "cases" / "malformed"
EXPECTED: dict[str, Any] = {}
if (FOLDER / "expected.json").is_file():
    EXPECTED = json.loads((FOLDER / "expected.json").read_text())


@pytest.mark.skipif(not EXPECTED, reason="the collection of malformed traces is not here")
@pytest.mark.parametrize("name", EXPECTED)
def test_counts(name: str) -> None:
    case = EXPECTED[name]
    figures = case["expect"] or {}
    try:
        trace = load_trace(FOLDER / name)
    except TraceError as error:
        refused = error
    else:
        refused = None
    if refused is not None:
        assert case["class"] in ("refuse", "repair")
        assert "\n" not in refused.message
        return
    report = trace.report
    if case["class"] == "refuse":
        assert report.truncated or report.damaged
        return
    assert case["class"] != "repair" or report.repaired
    roles = [Role(role) for role in trace.api_calls.role]
    gpu = trace.gpu_ops
    kernels = int(((gpu.kind == GpuKind.KERNEL) & (gpu.device == 0)).sum())  # of one device
    for figure, value in (
        ("launches", roles.count(Role.LAUNCH)),
        ("graphs", roles.count(Role.GRAPH_LAUNCH)),
        ("kernels", kernels),
    ):
        if figure in figures:
            assert value == figures[figure], figure
    if "window" in figures and len(trace.devices) == 1:
        assert int(gpu.end.max() - gpu.start.min()) == round(figures["window"] * 1000)
