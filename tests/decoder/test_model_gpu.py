"""The reference decoder on a GPU: capturable as one CUDA graph, and as many launches as it says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from hostgap.decoder.defects import NAIVE
from hostgap.decoder.generate import GreedyDecoder
from hostgap.decoder.loop import DecodeLoop
from hostgap.decoder.model import (
    PRESETS,
    Decoder,
    apply_rotary,
    apply_rotary_fused,
    build_decoder,
)
from hostgap.decoder.sampling import Sampling, choose, gumbel_noise
from hostgap.decoder.workload import prompt_of as prompt_of_case
from hostgap.decoder.workload import script_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")

N_STEPS = 48


@pytest.fixture(
    scope="module",
    params=[("tiny", NAIVE), ("tiny", ()), ("small", NAIVE), ("small", ()), ("gelu", ())],
    ids=["tiny-naive", "tiny-clean", "small-naive", "small-clean", "gelu-clean"],
)
def model(request: pytest.FixtureRequest) -> Decoder:
    preset, defects = request.param
    return build_decoder(preset, defects=defects)


def prompt_of(model: Decoder, batch: int, length: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, model.config.vocab_size, (batch, length), generator=generator)


def captured(step: Callable[[], object]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def kernels_of(work: Callable[[], object]) -> list[str]:
    """The kernels of one run, after two that may compile."""
    work()
    work()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    return [
        event.name
        for event in profiler.events()
        if event.device_type.name == "CUDA" and not event.name.startswith(("Memcpy", "Memset"))
    ]


@pytest.mark.parametrize("batch", [1, 4])
def test_replaying_one_captured_step_decodes_what_eager_decodes(model: Decoder, batch: int) -> None:
    eager, replayed = GreedyDecoder(model, batch), GreedyDecoder(model, batch)
    replayed.prefill(prompt_of(model, batch, 4, seed=0))
    graph = captured(replayed.step)
    # Prompts of other lengths than the one captured with: a position baked in would show here.
    seen: set[int] = set()
    for seed, length in enumerate((1, 7, 15), start=1):
        prompt = prompt_of(model, batch, length, seed)
        expected = eager.generate(prompt, N_STEPS)
        replayed.prefill(prompt)
        decoded = [replayed.tokens.clone()]
        for _ in range(N_STEPS - 1):
            graph.replay()
            decoded.append(replayed.tokens.clone())
        assert torch.equal(torch.cat(decoded, dim=1), expected)
        assert torch.equal(replayed.positions, eager.positions)
        seen.update(expected.flatten().tolist())
    assert len(seen) >= 8  # a decoder that always says the same would prove nothing


def test_no_step_waits_for_the_device(model: Decoder) -> None:
    decoder = GreedyDecoder(model)
    decoder.prefill(prompt_of(model, 1, 4, seed=0))
    decoder.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        decoder.step()
        with pytest.raises(RuntimeError, match="synchronizing"):
            decoder.tokens.item()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_seed_is_the_same_model_on_every_device() -> None:
    prompt = prompt_of(build_decoder("tiny", device="cpu"), 2, 20, seed=5)
    on_cpu = GreedyDecoder(build_decoder("tiny", device="cpu"), 2).prefill(prompt)
    exact = build_decoder("tiny", device="cuda", dtype=torch.float32)
    torch.testing.assert_close(
        GreedyDecoder(exact, 2).prefill(prompt).cpu(), on_cpu, rtol=1e-3, atol=1e-3
    )
    rounded = GreedyDecoder(build_decoder("tiny", device="cuda"), 2).prefill(prompt)
    assert rounded.dtype == torch.bfloat16
    assert (rounded.cpu().float() - on_cpu).norm() / on_cpu.norm() < 0.03


def launches_of_small(*defects: str) -> int:
    decoder = GreedyDecoder(build_decoder("small", defects=defects))
    decoder.prefill(torch.ones(1, 4, dtype=torch.int64))
    return len(kernels_of(decoder.step))


def test_an_eager_step_of_small_launches_about_1230_kernels() -> None:
    launches = launches_of_small(*(NAIVE - {"bias_gelu_unfused"}))
    assert 1150 <= launches <= 1300
    assert launches > 70 * PRESETS["small"].n_layers


@pytest.mark.parametrize("defect", sorted(NAIVE - {"bias_gelu_unfused"}))
def test_each_defect_of_the_model_costs_launches(defect: str) -> None:
    assert launches_of_small(defect) >= launches_of_small() + 2 * PRESETS["small"].n_layers


@pytest.mark.parametrize("batch", [1, 4])
def test_fused_rotary_embedding_is_at_most_3_kernels(batch: int) -> None:
    query = torch.randn(batch, 16, 1, 64, device="cuda", dtype=torch.bfloat16)
    key = torch.randn(batch, 8, 1, 64, device="cuda", dtype=torch.bfloat16)
    positions = torch.arange(100, 100 + batch, device="cuda")[:, None]
    inv_freq = 10_000.0 ** -(torch.arange(0, 64, 2, device="cuda") / 64)
    arguments = (query, key, positions, inv_freq)
    assert len(kernels_of(lambda: apply_rotary_fused(*arguments))) <= 3
    assert len(kernels_of(lambda: apply_rotary(*arguments))) >= 16
    fused, plain = apply_rotary_fused(*arguments), apply_rotary(*arguments)
    torch.testing.assert_close(fused, plain, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("defects", [NAIVE, ()], ids=["naive", "clean"])
@pytest.mark.parametrize("sampling", [None, Sampling(0.8, 40, seed=4)], ids=["greedy", "sampled"])
def test_a_captured_loop_takes_new_inputs_in_every_replay(
    defects: frozenset[str], sampling: Sampling | None
) -> None:
    small = build_decoder("small", defects=defects)
    vocab_size = small.config.vocab_size
    eager, replayed = DecodeLoop(small, 2, sampling), DecodeLoop(small, 2, sampling)
    forced = torch.full((2,), -1, device="cuda")
    replayed.prefill(prompt_of_case(0, 2, 5, vocab_size))
    graph = captured(lambda: replayed(forced))
    for case, length in enumerate((3, 40, 17)):
        prompt = prompt_of_case(case, 2, length, vocab_size)
        script = script_of(case, 2, N_STEPS, vocab_size)
        eager.prefill(prompt)
        replayed.prefill(prompt)
        for row in script:
            eager(row.cuda())
            forced.copy_(row)
            graph.replay()
        for name in ("tokens", "positions", "history", "finished", "lengths"):
            assert torch.equal(getattr(replayed, name), getattr(eager, name)), name


def test_sampling_is_the_same_on_every_device() -> None:
    positions = torch.arange(5)[:, None]
    on_cpu, on_gpu = (gumbel_noise(7, where, 4000) for where in (positions, positions.cuda()))
    torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=1e-4, atol=1e-4)
    logits = torch.randn(5, 4000, generator=torch.Generator().manual_seed(0))
    for sampling in (Sampling(seed=7), Sampling(0.7, 50, seed=8)):
        expected = choose(logits, positions, sampling)
        eager = choose(logits.cuda(), positions.cuda(), sampling)
        # Not dynamic: a seed is a constant of what is compiled, as it is in a loop.
        compiled = torch.compile(choose, fullgraph=True, dynamic=False)
        assert torch.equal(eager.cpu(), expected)
        assert torch.equal(compiled(logits.cuda(), positions.cuda(), sampling), eager)
