"""HG205: a bias add and an activation, each a kernel behind its product."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import LAUNCH, Event, call, frame, kernel, op
from tests.rules.check import findings, repeated, sample

GEMM = ("aten::mm", "nvjet_sm90_tst_8x64_64x16_2x1_v_bz_TNN")
ADD = (
    "aten::add",
    "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add>",
)
GELU = ("aten::gelu", "void at::native::vectorized_elementwise_kernel<8, at::native::GeluCUDA>")
COPY = ("aten::copy_", "void at::native::vectorized_elementwise_kernel<8, at::native::copy>")


def step(t: int, i: int, ops: list[tuple[str, str]], *, with_ops: bool = True) -> Iterator[Event]:
    yield frame("mlp.py(5): forward", t, t + len(ops) * 10_000)
    for k, (name, work) in enumerate(ops):
        at = t + 200 + k * 10_000
        if with_ops:
            yield op(name, at, at + 9_000)
        yield call(LAUNCH, at + 4_000, at + 8_000, i + k)
        yield kernel(at + 9_000, at + 12_000, i + k, work)


@pytest.mark.parametrize("with_ops", [True, False])
def test_fires_on_bias_and_gelu(with_ops: bool) -> None:
    chain = [GEMM, ADD, GELU, GEMM]
    trace = repeated(lambda t, i: step(t, i, chain, with_ops=with_ops), 50_000)
    (found,) = findings("HG205", trace)
    assert found.site is not None
    assert (found.site.function, found.count_per_step) == ("forward", 1.0)
    assert found.severity == "error"
    # one op of 9 us, or its call of 4 us
    low, high = (7_000, 9_500) if with_ops else (3_000, 4_500)
    assert found.predicted_saving_ns is not None
    assert 4 * low <= found.predicted_saving_ns <= 4 * high


def test_silent_on_one_kernel_a_longer_row_and_other_work() -> None:
    for chain in ([GEMM, GELU, GEMM], [GEMM, ADD, GELU, COPY, GEMM], [GEMM, ADD, COPY, GEMM]):
        assert findings("HG205", repeated(lambda t, i, c=chain: step(t, i, c), 60_000)) == []
    assert findings("HG205", repeated(lambda t, i: step(t, i, [COPY, ADD, GELU]), 60_000)) == []


@pytest.mark.parametrize(
    "name", ["eager.json.gz", "eager_item.sqlite", "gpu_bound.json.gz", "compile.json.gz"]
)
def test_silent_on_real_steps_without_bias(name: str) -> None:
    assert findings("HG205", sample(name)) == []
