"""A whole measurement, on a CPU as if there were a GPU: what of it is kept, and what fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from hostgap.errors import ConfigError, TraceError
from hostgap.profiling import requests as r
from hostgap.profiling.bench import Traced
from hostgap.profiling.measurement import Environment, Measurement
from hostgap.profiling.protocol import ProfileOptions, profile_target
from hostgap.profiling.target import TargetSpec
from hostgap.profiling.worker import Child
from tests.profiling import cpu_child

pytest.importorskip("torch", reason="torch is not installed")

OPTIONS = ProfileOptions(
    warmup=2, steps=3, repeats=3, traced_steps=3, stacks=False, batches=(1, 3), timeout_s=60
)


class Work:
    """A reader of traces that says what it is told to."""

    def __init__(self, answer: float | Exception | None) -> None:
        self.asked: list[Path] = []
        self._answer = answer

    def __call__(self, traced: Traced, environment: Environment) -> float | None:
        assert traced.span_ns is None
        assert traced.path.stat().st_size > 0
        assert environment.gpu == "NVIDIA H200"
        self.asked.append(traced.path)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Sweep:
    monkeypatch.setattr("hostgap.profiling.worker._BEGIN", cpu_child.BEGIN_WAITING)
    return Sweep(tmp_path)


class Sweep:
    """Measures the tiny decoder at batches 1 and 3."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []

    def __call__(self, work: Work) -> Measurement:
        return profile_target(
            TargetSpec(preset="tiny"), OPTIONS, self.folder, self.said.append, work
        )


def test_steps_that_wait_have_their_gpu_s_work_from_a_recording(sweep: Sweep) -> None:
    work = Work(5e5)
    measured = sweep(work)
    assert measured.problems == []
    assert [(b.batch, b.span_ns, b.recorded) for b in measured.batches] == [
        (1, 5e5, True),
        (3, 5e5, True),
    ]
    assert work.asked[0] == sweep.folder / "cuda.json.gz"  # there is one already
    assert "recording it at batch 3" in sweep.said
    assert not work.asked[1].parent.exists()
    assert {path.name for path in sweep.folder.iterdir()} == {"cuda.json.gz", "cpu_cuda.json.gz"}


def test_a_recording_that_does_not_say_it(sweep: Sweep) -> None:
    measured = sweep(Work(None))
    assert measured.problems == []
    assert [(b.span_ns, b.recorded) for b in measured.batches] == [(None, False)] * 2


def test_a_recording_that_cannot_be_read_is_a_problem_and_the_times_stay(sweep: Sweep) -> None:
    measured = sweep(Work(TraceError("it has no events")))
    assert measured.status == "partial"
    assert measured.problems == [
        "recording it at batch 1: it has no events",
        "recording it at batch 3: it has no events",
    ]
    assert [(b.batch, b.span_ns, b.recorded) for b in measured.batches] == [
        (1, None, False),
        (3, None, False),
    ]


def test_a_pass_that_may_fail_takes_nothing_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("hostgap.profiling.worker._BEGIN", cpu_child.BEGIN)
    ask = Child.ask

    def gone(self: Child, request: r.Request, answer: Any) -> Any:
        if isinstance(request, r.Compare):
            raise ConfigError("no CUDA device")
        return ask(self, request, answer)

    monkeypatch.setattr(Child, "ask", gone)
    options = msgspec.structs.replace(OPTIONS, batches=())
    measured = profile_target(
        TargetSpec(preset="tiny"), options, tmp_path, lambda _: None, Work(None)
    )
    assert measured.status == "partial"
    assert measured.problems == ["trying it as one CUDA graph: no CUDA device"]
    assert measured.regions == []
    assert len(measured.passes) == 2
