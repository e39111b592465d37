"""Recorded traces: nothing is left over, causes are found, figures are those of another count."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hostgap.analysis.analyze import analyze
from hostgap.analysis.examine import Analysis, Options, examine
from hostgap.analysis.timeline import lane
from hostgap.diagnosis.model import DeviceMetrics
from hostgap.errors import HostgapError
from hostgap.trace.load import load_trace
from hostgap.trace.model import Trace

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_traces"
CASES = ROOT.parent / "shared" / "cases"
DESCRIBED = {entry["name"]: entry for entry in json.loads((SAMPLES / "samples.json").read_text())}
KINETO = [name for name, entry in DESCRIBED.items() if entry["file"].endswith(".json.gz")]
HOST_CAUSES = {"sync", "copy_call", "launch_call", "dispatch", "python", "launch_latency"}


@cache
def sample(name: str) -> Analysis:
    return examine(load_trace(SAMPLES / DESCRIBED[name]["file"]))


def device_of(name: str, window: str = "steps") -> DeviceMetrics:
    trace = sample(name).trace
    (device,) = analyze(trace, Options(window=window)).devices  # type: ignore[arg-type]
    return device


def residuals(analysis: Analysis) -> Iterator[int]:
    for device in analysis.devices.values():
        busy, low, high = lane(analysis.trace.gpu_ops, device.rows).busy, device.low, device.high
        inside = busy.end.clip(low, high) - busy.start.clip(low, high)
        yield high - low - int(inside.sum()) - sum(device.pieces.by_cause().values())


# --- the bundled ones -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", DESCRIBED)
@pytest.mark.parametrize("window", ["steps", "trace"])
def test_samples_leave_nothing_over(name: str, window: str) -> None:
    analysis = examine(sample(name).trace, Options(window=window))  # type: ignore[arg-type]
    assert list(residuals(analysis))
    assert set(residuals(analysis)) == {0}
    for device in analysis.devices.values():
        if name not in KINETO:
            continue  # without the framework's operators most of the host's time is `untraced`
        idle = {cause.label: ns for cause, ns in device.pieces.by_cause().items()}
        vague = idle.get("untraced", 0) + idle.get("unattributable", 0)
        assert vague <= 0.02 * sum(idle.values())


@pytest.mark.parametrize("name", KINETO)
def test_samples_have_the_steps_they_are_described_with(name: str) -> None:
    described = DESCRIBED[name]
    diagnosis = analyze(sample(name).trace)
    assert diagnosis.trace.integrity.verdict == "ok"
    assert diagnosis.steps.source == "annotation"
    assert diagnosis.steps.count == described["steps"] - 1  # the first fills the pipeline
    assert len(diagnosis.steps.classes) == 1
    kernels = sum(described["kernels_per_step"][1:])
    assert diagnosis.devices[0].kernels == kernels
    # the recorder's own median is of the same steps
    durations = sorted(diagnosis.steps.durations_ns)
    middle = (durations[1] + durations[2]) / 2
    assert middle / 1e6 == pytest.approx(described["traced_step_ms"], rel=1e-4)


@pytest.mark.parametrize(
    ("name", "launches", "graphs", "syncs", "copies"),
    [  # per step, as sample_traces/README.md gives them
        ("eager", 1_228, 0, 0, 17),
        ("eager_item", 1_228, 0, 1, 18),
        ("cuda_graph", 0, 1, 0, 0),
        ("compile", 372, 0, 0, 0),
        ("compile_graphs", 0, 1, 0, 0),
        ("gpu_bound", 4, 0, 0, 0),
        ("eager_item_nsys", 1_228, 0, 1, 18),
        ("cuda_graph_nsys", 0, 1, 0, 0),
    ],
)
def test_counts_per_step(name: str, launches: int, graphs: int, syncs: int, copies: int) -> None:
    per_step = analyze(sample(name).trace).steps.per_step
    assert per_step is not None
    assert (per_step.launches, per_step.graph_launches) == (launches, graphs)
    assert (per_step.sync_calls, per_step.copies, per_step.allocs) == (syncs, copies, 0)


@pytest.mark.parametrize("name", sorted(set(DESCRIBED) - set(KINETO)))
def test_exports_have_the_steps_of_their_ranges(name: str) -> None:
    steps = analyze(sample(name).trace).steps
    assert steps.source == "nvtx"
    assert steps.count == DESCRIBED[name]["steps"] - 1
    median = sum(sorted(steps.durations_ns)[1:3]) / 2
    assert median / 1e6 == pytest.approx(DESCRIBED[name]["traced_step_ms"], rel=1e-4)
    kernels = DESCRIBED[name]["kernels_per_step"][0]
    graph_is_one_row = name == "cuda_graph_nsys"
    assert analyze(sample(name).trace).devices[0].kernels == 4 * (
        1 if graph_is_one_row else kernels
    )


@pytest.mark.parametrize("name", ["eager", "eager_item", "compile"])
def test_eager_steps_wait_for_the_host(name: str) -> None:
    device = device_of(name)
    assert device.active_utilization is not None
    assert device.active_utilization < 0.1
    host = sum(ns for cause, ns in device.idle_by_cause.items() if cause in HOST_CAUSES)
    assert host > 0.95 * device.idle_ns
    assert "graph_internal" not in device.idle_by_cause


@pytest.mark.parametrize("name", ["cuda_graph", "compile_graphs"])
def test_graphs_wait_for_themselves(name: str) -> None:
    device = device_of(name)
    assert device.active_utilization is not None
    assert device.active_utilization > 0.8
    own = ("graph_internal", "launch_call", "launch_latency", "queue_gap")
    assert sum(device.idle_by_cause.get(cause, 0) for cause in own) > 0.99 * device.idle_ns


def test_the_control_has_nothing_to_fix() -> None:
    device = device_of("gpu_bound")
    assert device.active_utilization is not None
    assert device.active_utilization > 0.99
    assert set(device.idle_by_cause) == {"queue_gap"}


def test_the_item_of_every_step_is_found() -> None:
    syncs = analyze(sample("eager_item").trace).syncs
    (item,) = [sync for sync in syncs if sync.copy == "d2h"]
    assert (item.call, item.count) == ("cudaStreamSynchronize", 4)
    assert item.site is not None
    assert item.site.function == "decode_until_eos"
    assert analyze(sample("eager").trace).syncs == []


# --- public ones ----------------------------------------------------------------------------------

PUBLIC = [
    path
    for folder in ("kineto", "malformed")
    for path in sorted((CASES / folder).glob("*"))
    if path.name not in ("reference.json", "expected.json")
]
NO_CASES = pytest.mark.skipif(not PUBLIC, reason="no ../shared/cases beside this checkout")


@cache
def readable(path: Path) -> Trace | None:
    try:
        return load_trace(path)
    except HostgapError:
        return None  # the reader's tests say which files it must refuse


@NO_CASES
def test_public_traces_can_be_read() -> None:
    assert sum(readable(path) is not None for path in PUBLIC) > 70


@NO_CASES
@pytest.mark.parametrize("path", PUBLIC, ids=lambda path: path.name)
def test_public_traces(path: Path) -> None:
    trace = readable(path)
    if trace is None:
        return
    for window in ("steps", "trace"):
        options = Options(window=window)  # type: ignore[arg-type]
        assert set(residuals(examine(trace, options))) <= {0}
        for device in analyze(trace, options).devices:
            assert sum(device.idle_by_cause.values()) == device.idle_ns
            for stream in device.streams:
                assert stream.active_ns + stream.idle_ns == device.window_ns
                assert sum(stream.idle_by_cause.values()) == stream.idle_ns
            for share in (
                device.kernel_utilization,
                device.active_utilization,
                device.utilization_without_collectives,
            ):
                assert share is None or 0 <= share <= 1


REFERENCE: dict[str, Any] = (
    json.loads((CASES / "kineto" / "reference.json").read_text()) if PUBLIC else {}
)


@NO_CASES
@pytest.mark.parametrize("name", REFERENCE)
def test_busy_time_is_that_of_an_independent_count(name: str) -> None:
    trace = readable(CASES / "kineto" / name)
    if trace is None:
        return
    found = {str(d.device): d for d in analyze(trace, Options(window="trace")).devices}
    expected = REFERENCE[name].get("devices") or {}
    assert set(found) == {device for device, figures in expected.items() if figures["events"]}
    for device, figures in expected.items():
        if not figures["events"]:
            continue
        mine = found[device]
        assert (mine.kernels, mine.window_ns) == (figures["kernels"], ns(figures["window_any_us"]))
        assert mine.active_ns == ns(figures["busy_us"])
        assert mine.kernel_busy_ns == ns(figures.get("kernel_busy_us", 0))
        gaps = figures["gaps"]
        assert mine.gaps.total_ns == ns(gaps["total_us"])
        assert (mine.gaps.over_1us, mine.gaps.over_10us) == (gaps["n_gt1us"], gaps["n_gt10us"])
        streams = {str(s.stream): (s.ops, s.active_ns) for s in mine.streams}
        assert streams == {
            stream: (own["events"], ns(own["busy_us"]))
            for stream, own in figures["streams"].items()
        }


def ns(us: float) -> int:
    return round(us * 1_000)
