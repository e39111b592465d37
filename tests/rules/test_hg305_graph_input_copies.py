"""HG305: tensors are copied into a graph's inputs before each replay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hostgap.trace.load import load_trace
from tests.analysis.build import (
    COPY_CALL,
    D2D,
    GRAPH,
    LAUNCH,
    STREAM_SYNC,
    Event,
    call,
    copy,
    frame,
    kernel,
    op,
)
from tests.rules.check import SAMPLES, findings, repeated, sample

FOREACH = "void multi_tensor_apply_kernel<UnaryOpFunctor<long, 2>, at::native::Copy<long, long> >"
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<long>>"
UPLOAD = "Memcpy HtoD (Pinned -> Device)"


def replay(t: int, i: int, kind: str = D2D, before: str = FILL) -> Iterator[Event]:
    """Three copies, the generator's state, a replay, and a wait for it."""
    yield frame("serve.py(9): decode", t, t + 95_000)
    for k in range(3):
        at = t + 10_000 * k
        yield op("aten::copy_", at, at + 9_500)
        yield call(LAUNCH if kind == FOREACH else COPY_CALL, at + 4_000, at + 9_000, i + k)
        shown = kernel if kind == FOREACH else copy
        yield shown(at + 9_500, at + 11_000, i + k, kind)
    yield call(LAUNCH, t + 32_000, t + 36_000, i + 4)
    yield kernel(t + 36_500, t + 37_500, i + 4, before)
    yield call(GRAPH, t + 40_000, t + 45_000, i + 5)
    yield kernel(t + 45_000, t + 85_000, i + 5)
    yield call(STREAM_SYNC, t + 46_000, t + 86_000, i + 6)


@pytest.mark.parametrize("kind", [D2D, FOREACH])
def test_fires_on_copies_before_a_replay(kind: str) -> None:
    (found,) = findings("HG305", repeated(lambda t, i: replay(t, i, kind), 100_000))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("serve.py", "decode")
    assert (found.count_per_step, found.severity) == (3, "error")
    assert found.title.startswith("3 copies a step into the inputs")
    # 28 us of ops, behind a wait and so exposed
    assert found.predicted_saving_ns is not None
    assert 4 * 20_000 < found.predicted_saving_ns < 4 * 32_000


def test_silent_on_uploads_and_on_copies_for_something_else() -> None:
    assert findings("HG305", repeated(lambda t, i: replay(t, i, UPLOAD), 100_000)) == []
    assert findings("HG305", repeated(lambda t, i: replay(t, i, before="gemm"), 100_000)) == []


@pytest.mark.parametrize("name", ["eager.json.gz", "cuda_graph.json.gz", "compile_graphs.json.gz"])
def test_silent_on_real_steps(name: str) -> None:
    assert findings("HG305", sample(name)) == []


def test_fires_on_real_compiled_training_steps() -> None:
    path = SAMPLES.parents[1] / "shared" / "cases" / "kineto" / "nv_3060_cuda13_cudagraph.json"
    if not path.exists():
        pytest.skip("the recorded case is not here")
    found = findings("HG305", load_trace(path))
    # inputs of the forward graph and of the backward one, each copied in one launch
    assert [finding.count_per_step for finding in found] == [1, 1]
    assert all(finding.severity == "info" for finding in found)
