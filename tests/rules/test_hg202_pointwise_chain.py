"""HG202: a row of short kernels that fewer could do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.analysis.build import GRAPH, LAUNCH, Event, call, frame, kernel, op
from tests.rules.check import findings, repeated, sample

MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor>"
MEAN = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>"
GEMM = "nvjet_sm90_tst_8x64_64x16_2x1_v_bz_TNN"


def step(t: int, i: int, names: list[str], kernel_ns: int = 2_000) -> Iterator[Event]:
    """A kernel every 10 us from one function, of which 9 us in its framework op."""
    yield frame("model.py(7): norm", t, t + len(names) * 10_000)
    for k, name in enumerate(names):
        at = t + k * 10_000
        yield op("aten::mul", at, at + 9_000)
        yield call(LAUNCH, at + 4_000, at + 8_000, i + k)
        yield kernel(at + 9_000, at + 9_000 + kernel_ns, i + k, name)


def test_fires_once_for_a_chain_and_prices_all_but_one_launch() -> None:
    (found,) = findings("HG202", repeated(lambda t, i: step(t, i, [MUL] * 5), 60_000))
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("model.py", "norm")
    assert (found.count_per_step, found.severity) == (1.0, "error")
    assert found.title == "5 short kernels in a row that could be fused: mul, mul, mul, mul, mul"
    # four ops of 9 us go; the Python between them stays
    assert found.predicted_saving_ns is not None
    assert 4 * 33_000 <= found.predicted_saving_ns <= 4 * 37_000


def test_each_further_reduction_keeps_its_launch() -> None:
    def saving(names: list[str]) -> int:
        (found,) = findings("HG202", repeated(lambda t, i: step(t, i, names), 60_000))
        assert found.predicted_saving_ns is not None
        return found.predicted_saving_ns

    one, two = saving([MUL, MEAN, MUL, MUL, MUL]), saving([MUL, MEAN, MUL, MEAN, MUL])
    assert one - two == pytest.approx(4 * 9_000, rel=0.2)


def test_silent_on_two_kernels_a_gemm_between_long_ones_and_inductor() -> None:
    for names in ([MUL] * 2, [MUL, MUL, GEMM, MUL, MUL], ["triton_poi_fused_add_0"] * 5):
        assert findings("HG202", repeated(lambda t, i, n=names: step(t, i, n), 60_000)) == []
    slow = repeated(lambda t, i: step(t, i, [MUL] * 3, 51_000), 200_000)
    assert findings("HG202", slow) == []
    assert len(findings("HG202", slow, **{"longest-us": 60.0})) == 1


def test_silent_where_the_kernels_stand_in_two_functions() -> None:
    def two(t: int, i: int) -> Iterator[Event]:
        for half in (0, 1):
            yield from step(t + half * 20_000, i + half * 10, [MUL] * 2)

    assert findings("HG202", repeated(two, 60_000)) == []


def test_silent_in_a_graph() -> None:
    def replay(t: int, i: int) -> Iterator[Event]:
        yield call(GRAPH, t, t + 5_000, i)
        for k in range(8):
            yield kernel(t + 6_000 + k * 3_000, t + 8_000 + k * 3_000, i, MUL, node=k + 1)

    assert findings("HG202", repeated(replay, 60_000)) == []


@pytest.mark.parametrize("name", ["eager.json.gz", "eager_item.json.gz"])
def test_fires_on_every_chain_of_the_decoder(name: str) -> None:
    found = findings("HG202", sample(name))
    counted = {(f.site.line, int(f.title.split()[0]), f.count_per_step) for f in found if f.site}
    assert {(size, count) for _, size, count in counted} == {
        (8, 33.0),  # RMSNorm before attention, before the MLP, and the last one
        (8, 32.0),  # RMSNorm of query and key, whose rows are strided
        (7, 16.0),  # Rotary: cos and sin
        (5, 32.0),  # rotate: query and key
        (5, 16.0),  # the mask of attention: four kernels and a copy
    }
    assert {line for line, size, _ in counted if size == 8} == {75}
    assert all(f.severity != "info" for f in found)
    assert sum(f.predicted_saving_share or 0 for f in found) < 0.5


def test_fires_without_stacks_and_ops() -> None:
    found = findings("HG202", sample("eager_item.sqlite"))
    # rotary and what writes the cache run on; the residual's add joins the norm behind it
    sizes = {(int(f.title.split()[0]), f.count_per_step) for f in found}
    assert sizes == {(21, 16.0), (9, 32.0), (8, 32.0), (5, 16.0), (9, 1.0)}


def test_more_than_ten_chains_become_one_finding_a_place() -> None:
    def many(t: int, i: int) -> Iterator[Event]:
        for k in range(24):
            at = t + k * 40_000
            for event in step(at, i + 4 * k, [f"{MUL}{k}"] * 3):
                name = f"model.py({k % 12}): f{k % 12}" if event.table == "frame" else event.name
                yield Event(**{**vars(event), "name": name})

    found = findings("HG202", repeated(many, 1_000_000))
    assert len(found) == 10
    assert sum(f.count_per_step for f in found) == 24


@pytest.mark.parametrize(
    "name",
    [
        "gpu_bound.json.gz",
        "compile.json.gz",
        "cuda_graph.json.gz",
        "compile_graphs.json.gz",
        "cuda_graph_graphs.sqlite",
    ],
)
def test_silent_on_real_steps_that_are_fused_captured_or_large(name: str) -> None:
    assert findings("HG202", sample(name)) == []
