"""What a run says of itself in text."""

from __future__ import annotations

import io

import msgspec

from hostgap.output.measured import host_bound_below, render_measurement
from hostgap.profiling.measurement import BatchTiming, Measurement, Region, Site
from tests.profiling.build import estimate, measurement


def text(made: Measurement) -> str:
    out = io.StringIO()
    render_measurement(made, out)
    return out.getvalue()


def batches(*points: tuple[int, float, float | None]) -> list[BatchTiming]:
    return [
        BatchTiming(batch=batch, step=estimate(step * 1e6), span_ns=span and span * 1e6)
        for batch, step, span in points
    ]


def test_the_step_and_how_long_the_gpu_waits() -> None:
    said = text(msgspec.structs.replace(measurement(), span_ns=2.763e6))
    assert said.startswith("Without a profiler a step takes 3.070 ms (3.039 to 3.101)")
    assert "10.0% of it the GPU waits for its host" in " ".join(said.split())
    assert "Traced, CPU and CUDA: 4.600 ms, 1.50 times as long." in said
    assert "it waits for the GPU in between." in " ".join(text(measurement()).split())
    assert max(len(line) for line in said.splitlines()) <= 80


def test_lines_that_wait_are_shown_as_text_and_cut() -> None:
    sites = [
        Site(what="stream", file=f"/x/\x1b[31mserve{i}.py", line=i, function="[bold]f", per_step=1)
        for i in range(12)
    ]
    said = text(msgspec.structs.replace(measurement(), sites=sites))
    assert "\x1b" not in said
    assert "serve0.py:0 [bold]f (stream)" in said
    assert "and 4 more" in said


def test_below_which_batch_the_host_sets_the_pace() -> None:
    assert host_bound_below(batches((1, 3.0, 2.0), (8, 3.1, 3.0))) == "Host-bound below batch 8."
    assert "at every batch" in host_bound_below(batches((1, 3.0, 2.99), (8, 9.0, 9.0)))
    assert "up to batch 8, the largest" in host_bound_below(batches((1, 3.0, 1.0), (8, 3.0, 2.0)))
    assert "cannot be said" in host_bound_below(batches((1, 3.0, None), (8, 3.0, 2.0)))
    said = text(
        msgspec.structs.replace(measurement(), batches=batches((1, 3.0, 2.0), (8, 3.1, 3.0)))
    )
    assert "Host-bound below batch 8." in said
    assert "387.5" in said
    assert "~" not in said


def test_work_of_a_recording_is_said_to_be_one() -> None:
    points = [
        msgspec.structs.replace(one, recorded=True) for one in batches((1, 3.0, 2.0), (8, 3.1, 3.0))
    ]
    said = text(msgspec.structs.replace(measurement(), batches=points))
    assert "~2.000" in said
    assert "~ of a recording: the step itself waits for the GPU" in said
    assert "Host-bound below batch 8." in said


def test_what_the_step_takes_as_one_graph() -> None:
    def of(graph: float, eager: float) -> str:
        region = Region(file=None, line=None, function=None, graph_ns=graph, eager_ns=eager)
        return text(msgspec.structs.replace(measurement(), regions=[region]))

    assert "As one CUDA graph it takes 2.700 ms, 8.00 times as fast" in of(2.7e6, 21.6e6)
    assert "1.10 times as long: leave it as it is." in of(3.3e6, 3.0e6)
