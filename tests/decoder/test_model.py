"""The reference decoder against an independent one, and the properties that measuring relies on."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hostgap.errors import ConfigError

pytest.importorskip("torch", reason="torch is not installed")

import torch

from hostgap.decoder.generate import GreedyDecoder
from hostgap.decoder.model import PRESETS, Decoder, build_decoder

TINY = PRESETS["tiny"]


@pytest.fixture(scope="module")
def model() -> Decoder:
    return build_decoder("tiny", device="cpu", seed=7)


def prompt_of(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, TINY.vocab_size, (batch, length), generator=generator)


def reference_logits(model: Decoder, tokens: torch.Tensor) -> torch.Tensor:
    """Logits [B, T, V] of whole sequences, written another way than the model: no cache, fused
    causal attention, rotation by complex numbers, library norms."""
    functional = torch.nn.functional
    config, weights = model.config, dict(model.named_parameters())
    length = tokens.shape[1]

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        weight = weights[f"{name}.weight"]
        return functional.rms_norm(x, weight.shape, weight, config.norm_eps)

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, weights[f"{name}.weight"])

    def turn(x: torch.Tensor) -> torch.Tensor:  # [B, heads, T, D]
        half = config.head_dim // 2
        rates = config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(length, dtype=torch.float64), rates)
        pairs = torch.complex(x[..., :half].double(), x[..., half:].double())
        turned = pairs * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((turned.real, turned.imag), dim=-1).to(x.dtype)

    x = weights["embed.weight"][tokens]
    for i in range(config.n_layers):
        attention = f"layers.{i}.attention"
        inner = norm(x, f"layers.{i}.attention_norm")
        query, key, value = (
            linear(inner, f"{attention}.{part}_proj").view(*inner.shape[:2], -1, config.head_dim)
            for part in "qkv"
        )
        mixed = functional.scaled_dot_product_attention(
            turn(norm(query, f"{attention}.q_norm").transpose(1, 2)),
            turn(norm(key, f"{attention}.k_norm").transpose(1, 2)),
            value.transpose(1, 2),
            is_causal=True,
            enable_gqa=True,
        )
        x = x + linear(mixed.transpose(1, 2).flatten(2), f"{attention}.o_proj")
        inner = norm(x, f"layers.{i}.mlp_norm")
        gate = functional.silu(linear(inner, f"layers.{i}.mlp.gate_proj"))
        x = x + linear(gate * linear(inner, f"layers.{i}.mlp.up_proj"), f"layers.{i}.mlp.down_proj")
    return linear(norm(x, "norm"), "lm_head")


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal to float32 rounding; logits are of order 1."""
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (1, 17), (3, 40)])
def test_prefill_gives_the_reference_logits(model: Decoder, batch: int, length: int) -> None:
    prompt = prompt_of(batch, length)
    assert_same(GreedyDecoder(model, batch).prefill(prompt), reference_logits(model, prompt))


@pytest.mark.parametrize("batch", [1, 3])
def test_decoding_with_the_cache_equals_recomputing_everything(model: Decoder, batch: int) -> None:
    decoder = GreedyDecoder(model, batch)
    sequence = prompt_of(batch, 5)
    decoder.prefill(sequence)
    for _ in range(TINY.max_seq_len - 5):  # up to the last slot of the cache
        sequence = torch.cat((sequence, decoder.tokens), dim=1)
        logits = decoder.step()
        expected = reference_logits(model, sequence)[:, -1]
        assert_same(logits, expected)
        assert torch.equal(decoder.tokens, expected.argmax(-1, keepdim=True))
    assert torch.equal(decoder.positions, torch.full((batch, 1), TINY.max_seq_len))


def test_generate_equals_greedy_choice_by_full_recompute(model: Decoder) -> None:
    prompt = prompt_of(2, 6)
    sequence = prompt
    for _ in range(20):
        chosen = reference_logits(model, sequence)[:, -1].argmax(-1, keepdim=True)
        sequence = torch.cat((sequence, chosen), dim=1)
    generated = GreedyDecoder(model, 2).generate(prompt, 20)
    assert torch.equal(generated, sequence[:, 6:])
    # A model that always says the same would pass too little of the above.
    assert all(len(set(row.tolist())) >= 8 for row in generated)


def test_a_prompt_split_in_two_gives_the_same_logits(model: Decoder) -> None:
    prompt, caches = prompt_of(1, 12), model.new_caches(1)
    positions = torch.arange(12)[None]
    first = model(prompt[:, :8], positions[:, :8], caches)
    second = model(prompt[:, 8:], positions[:, 8:], caches)
    assert_same(torch.cat((first, second), dim=1), reference_logits(model, prompt))


def test_every_row_may_stand_at_its_own_position(model: Decoder) -> None:
    long, short = prompt_of(1, 9, seed=1), prompt_of(1, 4, seed=2)
    padded = torch.cat((short, torch.zeros(1, 5, dtype=torch.int64)), dim=1)
    decoder = GreedyDecoder(model, 2)
    logits = decoder.prefill(torch.cat((long, padded)))
    decoder.tokens[1] = logits[1, 3].argmax()
    decoder.positions[1] = 4
    rows = []
    for _ in range(8):
        rows.append(decoder.tokens.clone())
        decoder.step()
    together = torch.cat(rows, dim=1)
    for row, prompt in enumerate((long, short)):
        alone = GreedyDecoder(model).generate(prompt, 8)
        assert torch.equal(together[row : row + 1], alone)


def test_prefill_forgets_what_was_decoded_before(model: Decoder) -> None:
    decoder = GreedyDecoder(model)
    first = decoder.generate(prompt_of(1, 30, seed=1), 30)
    short = prompt_of(1, 3, seed=2)
    again = decoder.generate(short, 10)
    assert torch.equal(again, GreedyDecoder(model).generate(short, 10))
    assert torch.equal(decoder.generate(prompt_of(1, 30, seed=1), 30), first)


def test_decoders_share_weights_and_nothing_else(model: Decoder) -> None:
    one, other = GreedyDecoder(model), GreedyDecoder(model)
    one.prefill(prompt_of(1, 5, seed=1))
    other.prefill(prompt_of(1, 5, seed=2))
    expected = GreedyDecoder(model).generate(prompt_of(1, 5, seed=1), 3)
    decoded = [one.tokens.clone()]
    for _ in range(2):
        other.step()
        one.step()
        decoded.append(one.tokens.clone())
    assert torch.equal(torch.cat(decoded, dim=1), expected)


def test_a_step_changes_its_tensors_in_place(model: Decoder) -> None:
    decoder = GreedyDecoder(model)
    held = dict(decoder.caches.named_buffers(), tokens=decoder.tokens, positions=decoder.positions)
    assert len(held) == 2 + 2 * TINY.n_layers
    decoder.prefill(prompt_of(1, 4))
    before = {name: tensor.clone() for name, tensor in held.items()}
    decoder.step()
    assert decoder.tokens is held["tokens"]
    assert decoder.positions is held["positions"]
    assert [name for name in held if torch.equal(held[name], before[name])] == []


def test_a_step_is_one_graph_without_a_read_by_the_host(model: Decoder) -> None:
    """`fullgraph` refuses anything that would need a tensor's value on the host."""
    decoder = GreedyDecoder(model)
    expected = decoder.generate(prompt_of(1, 4), 6)
    step = torch.compile(decoder.step, backend="eager", fullgraph=True)
    decoder.prefill(prompt_of(1, 4))
    decoded = [decoder.tokens.clone()]
    for _ in range(5):
        step()
        decoded.append(decoder.tokens.clone())
    assert torch.equal(torch.cat(decoded, dim=1), expected)


def test_weights_depend_on_the_seed_alone() -> None:
    first, same = (build_decoder("tiny", device="cpu", seed=3) for _ in range(2))
    torch.manual_seed(99)
    other = build_decoder("tiny", device="cpu", seed=4)
    for name, weight in first.named_parameters():
        assert torch.equal(weight, same.get_parameter(name)), name
        assert not torch.equal(weight, other.get_parameter(name)), name


def test_bfloat16_keeps_the_rotary_rates_in_float32() -> None:
    model = build_decoder("tiny", device="cpu", dtype=torch.bfloat16)
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in model.buffers()} == {torch.float32}
    assert {cache.dtype for cache in model.new_caches(1).buffers()} == {torch.bfloat16}
    logits = GreedyDecoder(model).prefill(prompt_of(1, 20)).float()
    exact = reference_logits(build_decoder("tiny", device="cpu"), prompt_of(1, 20))
    assert (logits - exact).norm() / exact.norm() < 0.03


@pytest.mark.parametrize(
    ("batch", "length", "n_tokens", "message"),
    [
        (2, 4, 1, "a prompt of batch 2 for a decoder of 1"),
        (1, 0, 1, "a prompt of 0 tokens; it must have 1 to 63"),
        (1, 64, 1, "a prompt of 64 tokens; it must have 1 to 63"),
        (1, 60, 6, "6 tokens asked for; there is room for 1 to 5"),
        (1, 60, 0, "0 tokens asked for; there is room for 1 to 5"),
    ],
)
def test_what_does_not_fit_is_refused(
    model: Decoder, batch: int, length: int, n_tokens: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        GreedyDecoder(model).generate(prompt_of(batch, length), n_tokens)


def test_the_room_that_is_stated_is_there(model: Decoder) -> None:
    prompt = prompt_of(1, 60)
    generated = GreedyDecoder(model).generate(prompt, 5)
    sequence = torch.cat((prompt, generated), dim=1)
    expected = reference_logits(model, sequence[:, :-1])[:, 59:].argmax(-1)
    assert torch.equal(generated, expected)


def test_an_unknown_preset_is_named_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="no decoder preset 'huge'") as caught:
        build_decoder("huge")
    assert caught.value.hint == "Presets: tiny, small."


def test_the_package_does_not_need_torch_to_be_imported() -> None:
    code = "import sys, hostgap, hostgap.decoder; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
