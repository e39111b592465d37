"""HG306: something is compiled inside a steady step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import DEVICE_SYNC, LAUNCH, Event, call, frame, kernel, note
from tests.rules.check import findings, repeated, sample

DYNAMO = "torch/_dynamo/convert_frame.py(1633): _compile"
TRITON = "/usr/lib/python3/dist-packages/triton/runtime/autotuner.py(160): _bench"


def compiled(t: int, i: int, name: str = DYNAMO) -> Iterator[Event]:
    """A compilation of 300 us that runs a kernel and waits for it; then the step's own kernel."""
    yield frame("train.py(4): step", t, t + 390_000)
    yield frame(name, t + 10_000, t + 310_000)
    yield note("_compile.compile_inner (dynamo_timed)", t + 20_000, t + 300_000)
    yield call(LAUNCH, t + 100_000, t + 105_000, i)
    yield kernel(t + 105_000, t + 155_000, i, "candidate")
    yield call(DEVICE_SYNC, t + 106_000, t + 157_000, i + 1)
    yield call(LAUNCH, t + 320_000, t + 325_000, i + 2)
    yield kernel(t + 325_000, t + 385_000, i + 2)


@pytest.mark.parametrize("name", [DYNAMO, TRITON])
def test_fires_on_a_compilation(name: str) -> None:
    (found,) = findings("HG306", repeated(lambda t, i: compiled(t, i, name), 400_000))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("train.py", "step")
    assert (found.count_per_step, found.severity) == (1, "error")
    assert found.title.endswith("4 times, 300 us each")
    assert found.predicted_saving_ns is not None
    assert 4 * 290_000 < found.predicted_saving_ns < 4 * 345_000


def test_silent_on_steps_that_only_run_what_was_compiled() -> None:
    runs = "torch/_inductor/runtime/triton_heuristics.py(1407): run"

    def step(t: int, i: int) -> Iterator[Event]:
        return (e for e in compiled(t, i, runs) if "dynamo_timed" not in e.name)

    assert findings("HG306", repeated(step, 400_000)) == []
    assert findings("HG306", sample("compile.json.gz")) == []
    assert findings("HG306", sample("compile_graphs.json.gz")) == []
    assert findings("HG306", sample("eager.json.gz")) == []
