"""Sampling by a hash: the right distribution, and a function of its arguments alone."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from hostgap.decoder.sampling import Sampling, choose, gumbel_noise, mix
from hostgap.errors import ConfigError

LOGITS = torch.tensor([2.0, 1.5, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0])
DRAWS = 40_000


def chi_square(counts: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def drawn(sampling: Sampling, rows: int, n_positions: int) -> torch.Tensor:
    """Tokens [rows, positions] drawn from `LOGITS`."""
    logits = LOGITS.expand(rows, -1)
    positions = torch.arange(n_positions)
    return torch.cat(
        [choose(logits, position.expand(rows, 1), sampling) for position in positions], dim=1
    )


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("rows", [1, 200, DRAWS])
def test_tokens_are_drawn_from_the_softmax(temperature: float, rows: int) -> None:
    # Down the positions of one row, across rows at one position, and both.
    tokens = drawn(Sampling(temperature, seed=11), rows, max(1, DRAWS // rows // 4) * 4)
    counts = tokens.flatten().bincount(minlength=len(LOGITS)).double()
    expected = torch.softmax(LOGITS.double() / temperature, dim=0) * tokens.numel()
    assert chi_square(counts, expected) < 30  # 7 degrees of freedom: one in 10,000


def test_neighbours_are_independent() -> None:
    tokens = drawn(Sampling(seed=5), 400, 100)
    share = torch.softmax(LOGITS.double(), dim=0)
    for one, other in (
        (tokens[:, :-1], tokens[:, 1:]),  # positions
        (tokens[:-1], tokens[1:]),  # rows
        (tokens, drawn(Sampling(seed=6), 400, 100)),  # seeds
        (tokens, drawn(Sampling(seed=5 + (1 << 32)), 400, 100)),
    ):
        pairs = (one * len(LOGITS) + other).flatten().bincount(minlength=64).double()
        expected = torch.outer(share, share).flatten() * one.numel()
        assert chi_square(pairs, expected) < 120  # 63 degrees of freedom: one in 50,000


def test_top_k_leaves_the_likeliest_alone() -> None:
    tokens = drawn(Sampling(top_k=3, seed=1), 2000, 4)
    counts = tokens.flatten().bincount(minlength=len(LOGITS)).double()
    assert counts[3:].sum() == 0
    expected = torch.softmax(LOGITS[:3].double(), dim=0) * tokens.numel()
    assert chi_square(counts[:3], expected) < 20
    # The second and third are equally likely: neither is preferred.
    assert (drawn(Sampling(top_k=2, seed=1), 2000, 1) == 2).any()
    everything = drawn(Sampling(top_k=100, seed=1), 50, 4)
    assert torch.equal(everything, drawn(Sampling(seed=1), 50, 4))


def test_a_low_temperature_is_greedy() -> None:
    logits = torch.randn(50, 300, generator=torch.Generator().manual_seed(0))
    positions = torch.zeros(50, 1, dtype=torch.int64)
    greedy = choose(logits, positions, None)
    assert torch.equal(choose(logits, positions, Sampling(1e-6)), greedy)
    assert torch.equal(greedy, logits.argmax(-1, keepdim=True))


def test_a_row_draws_the_same_whatever_is_beside_it() -> None:
    sampling = Sampling(seed=3)
    logits, positions = LOGITS.expand(6, -1), torch.arange(6)[:, None]
    assert torch.equal(
        choose(logits[:2], positions[:2], sampling), choose(logits, positions, sampling)[:2]
    )


def test_the_random_state_is_neither_used_nor_changed() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = drawn(Sampling(seed=3), 20, 4)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(drawn(Sampling(seed=3), 20, 4), first)


def test_compiled_it_draws_the_same() -> None:
    compiled = torch.compile(choose, backend="aot_eager", fullgraph=True)
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(0))
    for position in (0, 7):
        positions = torch.full((3, 1), position)
        for sampling in (Sampling(seed=9), Sampling(0.7, 20, seed=-1)):
            expected = choose(logits, positions, sampling)
            assert torch.equal(compiled(logits, positions, sampling), expected)


def test_the_hash_is_the_same_for_an_int_and_a_tensor() -> None:
    numbers = [0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xDEADBEEF]
    assert mix(torch.tensor(numbers)).tolist() == [mix(number) for number in numbers]
    assert mix(0) == 0
    assert mix(1) == 0x6D3FA73  # worked out with unsigned 32-bit arithmetic


def test_the_hash_is_a_bijection_that_changes_half_the_bits() -> None:
    numbers = torch.arange(1 << 18) * 16_384 + 5
    hashed = mix(numbers)
    assert hashed.unique().numel() == numbers.numel()
    assert int(hashed.min()) >= 0
    assert int(hashed.max()) < 1 << 32
    changed = hashed ^ mix(numbers ^ 1)
    ones = sum(((changed >> bit) & 1).sum().item() for bit in range(32)) / numbers.numel()
    assert 15.9 < ones < 16.1


def test_the_noise_is_finite_and_gumbel() -> None:
    noise = gumbel_noise(0, torch.arange(40)[:, None], 32_000)
    assert noise.dtype == torch.float32
    assert torch.isfinite(noise).all()
    assert abs(float(noise.mean()) - 0.5772) < 0.01
    assert abs(float(noise.std()) - 1.2825) < 0.01


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_a_temperature_that_divides_by_nothing_is_refused(temperature: float) -> None:
    with pytest.raises(ConfigError, match="it must be positive"):
        Sampling(temperature)


def test_no_candidates_are_refused() -> None:
    with pytest.raises(ConfigError, match="a top_k of 0"):
        Sampling(top_k=0)
