"""HG106: the host waits for everything on the GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hostgap.trace.load import load_trace
from tests.analysis.build import DEVICE_SYNC, LAUNCH, STREAM_SYNC, build, call, kernel
from tests.rules.check import findings, repeated, sample
from tests.rules.waits import STEP, synchronizing
from tests.trace.nsys_build import Export, step_loop


@pytest.mark.parametrize("name", [DEVICE_SYNC, "cuCtxSynchronize", "hipDeviceSynchronize"])
def test_fires_in_every_step(name: str) -> None:
    (found,) = findings("HG106", repeated(lambda t, i: synchronizing(t, i, name), STEP))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("decode.py", "step")
    assert found.severity == "error"
    # torch.profiler's own, the last one, is told by its name and does not count
    count = 3 if name.endswith("DeviceSynchronize") else 4
    assert (found.count_per_step, found.blocked_ns) == (count / 4, count * 50_000)
    assert found.predicted_saving_ns is not None
    assert count * 25_000 < found.predicted_saving_ns < 4 * 50_000


def test_silent_on_what_an_op_does_inside_and_on_streams() -> None:
    inside = repeated(lambda t, i: synchronizing(t, i, DEVICE_SYNC, "aten::linalg_eigh"), STEP)
    assert findings("HG106", inside) == []
    stream = repeated(lambda t, i: synchronizing(t, i, STREAM_SYNC), STEP)
    assert findings("HG106", stream) == []


@pytest.mark.parametrize("at", [0, -10_000])
def test_silent_on_a_last_one_before_time_zero_too(at: int) -> None:
    trace = build(
        call(LAUNCH, at, at + 10, 1),
        kernel(at + 20, at + 50, by=1),
        call(DEVICE_SYNC, at + 20, at + 60, 2),
        call(DEVICE_SYNC, at + 70, at + 80, 3),  # this is taken for the recorder's own
    )
    assert findings("HG106", trace) == []


def closed(export: Export, at: int, path: Path) -> Path:
    """An export that ends as a script does which calls cudaProfilerStop."""
    export.call("cudaDeviceSynchronize_v3020", at, at + 50_000, 9_000)
    export.call("cudaProfilerStop_v4000", at + 60_000, at + 70_000, 9_001)
    return export.write(path)


def test_silent_on_the_synchronize_that_ends_an_export(tmp_path: Path) -> None:
    marked = load_trace(closed(step_loop(), 510_000, tmp_path / "marked.sqlite"))
    export = step_loop()
    del export.tables["NVTX_EVENTS"]
    unmarked = load_trace(closed(export, 470_000, tmp_path / "unmarked.sqlite"))
    for trace in (marked, unmarked):
        assert any(name == "cudaDeviceSynchronize" for name in trace.names)
        for window in ("steps", "trace"):
            assert findings("HG106", trace, window) == []


def test_fires_on_one_per_step_of_an_export_and_not_on_the_last(tmp_path: Path) -> None:
    export = step_loop()
    for step in range(5):
        t = 1000 + step * 100_000
        export.call("cudaDeviceSynchronize_v3020", t + 50_000, t + 60_000, 8_000 + step)
    (found,) = findings("HG106", load_trace(closed(export, 510_000, tmp_path / "x.sqlite")))
    assert found.count_per_step == 1.0


def test_silent_on_a_lone_one_after_the_last_launch() -> None:
    launches = [
        (call(LAUNCH, t, t + 9, t), kernel(t + 20, t + 90, t)) for t in range(100, 900, 100)
    ]
    events = [event for pair in launches for event in pair]
    trace = build(*events, call(DEVICE_SYNC, 950, 990, 1_000))
    assert findings("HG106", replace(trace, source="nsys")) == []
    later = build(*events, call(DEVICE_SYNC, 750, 790, 1_000))
    (found,) = findings("HG106", replace(later, source="nsys"))
    assert found.count == 1


@pytest.mark.parametrize("name", ["eager.json.gz", "gpu_bound.json.gz", "cuda_graph_graphs.sqlite"])
def test_silent_on_real_steps(name: str) -> None:
    assert findings("HG106", sample(name)) == []
