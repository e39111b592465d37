"""Lines for a trace without stacks, from another recording of the same steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hostgap.analysis.borrow import with_frames_of
from hostgap.analysis.clock import fit_clock
from hostgap.analysis.host import Host
from hostgap.trace.model import Trace
from tests.analysis.build import Event, build, call, frame, kernel, steps
from tests.rules.check import sample


def sites(trace: Trace) -> list[str]:
    found = Host(trace, fit_clock(trace)).call_sites(np.arange(len(trace.api_calls)))
    return [trace.names[code] if code >= 0 else "" for code in found.tolist()]


def bare(trace: Trace) -> Trace:
    """The trace without its Python frames."""
    f = trace.frames
    return replace(
        trace,
        frames=replace(f, start=f.start[:0], end=f.end[:0], thread=f.thread[:0], name=f.name[:0]),
    )


@pytest.mark.parametrize("name", ["eager_item.json.gz", "cuda_graph.json.gz", "compile.json.gz"])
def test_a_trace_gets_back_the_lines_that_were_taken_from_it(name: str) -> None:
    whole = sample(name)
    stripped = bare(whole)
    assert not any(sites(stripped))
    lent = with_frames_of(stripped, whole)
    here, there = sites(lent), sites(whole)
    same = sum(a == b for a, b in zip(here, there, strict=True))
    assert same >= 0.9 * len(there)  # the closing synchronize is in one step only
    assert lent.gpu_ops is stripped.gpu_ops


def recorded(stacks: bool, launches: int) -> Trace:
    events: list[Event] = []
    for step in range(4):
        t = step * 100_000
        if stacks:
            events.append(frame("serve.py(7): step", t, t + 90_000))
        for i in range(launches):
            at = t + 5_000 + i * 10_000
            events.append(call("cudaLaunchKernel", at, at + 4_000, 100 * step + i))
            events.append(kernel(at + 6_000, at + 8_000, 100 * step + i))
    return build([*events, *steps(0, 100_000, 200_000, 300_000)])


def test_calls_of_another_number_get_no_line() -> None:
    assert set(sites(with_frames_of(recorded(False, 3), recorded(True, 3)))) == {
        "serve.py(7): step"
    }
    assert set(sites(with_frames_of(recorded(False, 3), recorded(True, 4)))) == {""}
