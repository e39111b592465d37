"""HG204: attention written out as products and a softmax."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import LAUNCH, Event, call, frame, kernel, op
from tests.rules.check import findings, repeated, sample

GEMM = "nvjet_sm90_tst_128x8_64x12_2x1_v_bz_TNT"
POINT = "void at::native::vectorized_elementwise_kernel<8, at::native::BUnaryFunctor>"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10>"
WRITTEN = [
    ("aten::bmm", GEMM),
    ("aten::div", POINT),
    ("aten::add", POINT),
    ("aten::_softmax", SOFTMAX),
    ("aten::copy_", POINT),
    ("aten::bmm", GEMM),
]


def step(t: int, i: int, ops: list[tuple[str, str]], around: str = "") -> Iterator[Event]:
    yield frame("attention.py(5): attend", t, t + len(ops) * 10_000)
    if around:
        yield op(around, t + 100, t + len(ops) * 10_000 - 100)
    for k, (name, work) in enumerate(ops):
        at = t + 200 + k * 10_000
        yield op(name, at, at + 9_000)
        yield call(LAUNCH, at + 4_000, at + 8_000, i + k)
        yield kernel(at + 9_000, at + 12_000, i + k, work)


def test_fires_on_attention_written_out_and_keeps_one_launch() -> None:
    (found,) = findings("HG204", repeated(lambda t, i: step(t, i, WRITTEN), 70_000))
    assert found.site is not None
    assert (found.site.function, found.count_per_step) == ("attend", 1.0)
    assert found.title == "Attention is written out: 6 kernels where one would do"
    assert found.severity == "error"
    # five ops of 9 us go; the one kernel is as long as both products
    assert found.predicted_saving_ns is not None
    assert 4 * 38_000 <= found.predicted_saving_ns <= 4 * 46_000


def test_says_so_where_the_operator_fell_back() -> None:
    sdpa = "aten::scaled_dot_product_attention"
    (found,) = findings("HG204", repeated(lambda t, i: step(t, i, WRITTEN, sdpa), 70_000))
    assert "falls back to its math backend" in found.title
    # the outermost op stays: it launches what is left
    assert found.predicted_saving_ns is not None
    assert found.predicted_saving_ns <= 4 * 46_000


def test_silent_on_a_router_and_across_functions() -> None:
    linear = [("aten::linear", work) if work == GEMM else (name, work) for name, work in WRITTEN]
    assert findings("HG204", repeated(lambda t, i: step(t, i, linear), 70_000)) == []

    def apart(t: int, i: int) -> Iterator[Event]:
        yield from step(t, i, WRITTEN[:3])
        yield from step(t + 40_000, i + 10, WRITTEN[3:])

    assert findings("HG204", repeated(apart, 80_000)) == []


@pytest.mark.parametrize("name", ["eager.json.gz", "eager_item.json.gz", "eager_item.sqlite"])
def test_fires_on_every_layer_of_the_decoder(name: str) -> None:
    (found,) = findings("HG204", sample(name))
    assert found.count_per_step == 16.0
    # product, scale, mask's add, cast, softmax, cast, product: the mask itself stays
    assert found.title == "Attention is written out: 7 kernels where one would do"
    assert found.severity in ("warning", "error")


@pytest.mark.parametrize(
    "name",
    ["gpu_bound.json.gz", "compile.json.gz", "cuda_graph.json.gz", "compile_graphs.json.gz"],
)
def test_silent_on_fused_attention_and_in_graphs(name: str) -> None:
    assert findings("HG204", sample(name)) == []
