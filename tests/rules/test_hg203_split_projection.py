"""HG203: several matrix products of, likely, the same input."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import LAUNCH, Event, call, frame, kernel, op
from tests.rules.check import findings, not_applicable, repeated, sample

GEMM = "nvjet_sm90_tst_8x64_64x16_2x1_v_bz_TNN"
SILU = "void at::native::vectorized_elementwise_kernel<8, at::native::silu_kernel>"
MUL = "void at::native::vectorized_elementwise_kernel<8, at::native::BinaryFunctor<MulFunctor>>"
ADD = "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add>"
FLASH = "void flash_fwd_kernel"
Ops = list[tuple[str, str]]


def step(t: int, i: int, ops: Ops) -> Iterator[Event]:
    """One run of a module; a launch every 10 us."""
    yield frame("nn.Module: Attention_0", t, t + len(ops) * 10_000)
    yield frame("model.py(9): forward", t + 100, t + len(ops) * 10_000 - 100)
    for k, (name, work) in enumerate(ops):
        at = t + 200 + k * 10_000
        yield op(name, at, at + 9_000)
        yield call(LAUNCH, at + 4_000, at + 8_000, i + k)
        yield kernel(at + 9_000, at + 12_000, i + k, work)


LINEAR = ("aten::linear", GEMM)


def titles(ops: Ops) -> list[str]:
    found = findings("HG203", repeated(lambda t, i: step(t, i, ops), 100_000))
    assert all(f.count_per_step == 1.0 for f in found)
    return [f.title for f in found]


def test_fires_on_projections_in_a_row_and_prices_their_launches() -> None:
    trace = repeated(lambda t, i: step(t, i, [LINEAR] * 3), 40_000)
    (found,) = findings("HG203", trace)
    assert found.title == "3 linear layers in a row, likely of the same input"
    assert found.severity == "error"
    # two ops of 9 us go, and one kernel is as long as three were
    assert found.predicted_saving_ns is not None
    assert 4 * 10_000 <= found.predicted_saving_ns <= 4 * 18_500


def test_fires_on_gate_and_up_and_before_attention() -> None:
    gate = [LINEAR, ("aten::silu", SILU), LINEAR, ("aten::mul", MUL)]
    assert titles(gate) == ["2 projections, gate and up, likely of the same input"]
    norm = ("aten::add", ADD)
    qkv = [LINEAR, norm, LINEAR, norm, LINEAR, ("aten::flash", FLASH), LINEAR]
    assert titles(qkv) == ["3 projections before one attention, likely of the same input"]


def test_silent_on_layers_that_feed_each_other() -> None:
    relu = ("aten::relu", "void vectorized_elementwise_kernel<4, relu>")
    assert titles([LINEAR, relu, LINEAR, relu, LINEAR]) == []
    # products that no linear layer makes
    assert titles([("aten::mm", GEMM)] * 3) == []


@pytest.mark.parametrize("name", ["eager.json.gz", "eager_item.json.gz"])
def test_fires_on_the_decoder_twice_a_layer(name: str) -> None:
    found = findings("HG203", sample(name))
    assert [(f.title.split(",")[0], f.count_per_step) for f in found] == [
        ("3 projections before one attention", 16.0),
        ("2 projections", 16.0),
    ]
    assert all(f.site and f.site.file == "hostgap/decoder/model.py" for f in found)


def test_needs_framework_ops() -> None:
    assert "framework ops" in not_applicable("HG203", sample("eager_item.sqlite"))


@pytest.mark.parametrize("name", ["gpu_bound.json.gz", "compile.json.gz", "compile_graphs.json.gz"])
def test_silent_on_chained_products_and_in_graphs(name: str) -> None:
    assert findings("HG203", sample(name)) == []
