"""The reference decoder against an independent one, and the properties that measuring relies on."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hostgap.errors import ConfigError

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hostgap.decoder.defects import NAIVE, defects_of
from hostgap.decoder.generate import GreedyDecoder
from hostgap.decoder.model import (
    PRESETS,
    Decoder,
    DecoderConfig,
    apply_rotary,
    apply_rotary_fused,
    build_decoder,
)

TINY = PRESETS["tiny"]
ALL = slice(None)


@pytest.fixture(
    scope="module",
    params=[("tiny", NAIVE), ("tiny", ()), ("tiny-gelu", NAIVE), ("tiny-gelu", ())],
    ids=["naive", "clean", "gelu-naive", "gelu-clean"],
)
def model(request: pytest.FixtureRequest) -> Decoder:
    preset, defects = request.param
    return build_decoder(preset, device="cpu", seed=7, defects=defects)


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

    def linear(x: torch.Tensor, name: str, rows: slice = ALL) -> torch.Tensor:
        bias = weights.get(f"{name}.bias")
        return functional.linear(
            x, weights[f"{name}.weight"][rows], None if bias is None else bias[rows]
        )

    def turn(x: torch.Tensor) -> torch.Tensor:  # [B, heads, T, D]
        half = config.head_dim // 2
        rates = config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(length, dtype=torch.float64), rates)
        pairs = torch.complex(x[..., :half].double(), x[..., half:].double())
        turned = pairs * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((turned.real, turned.imag), dim=-1).to(x.dtype)

    q_end = config.n_heads * config.head_dim
    k_end = q_end + config.n_kv_heads * config.head_dim
    x = weights["embed.weight"][tokens]
    for i in range(config.n_layers):
        attention = f"layers.{i}.attention"
        inner = norm(x, f"layers.{i}.attention_norm")
        query, key, value = (
            linear(inner, f"{attention}.qkv_proj", rows).view(*inner.shape[:2], -1, config.head_dim)
            for rows in (slice(q_end), slice(q_end, k_end), slice(k_end, None))
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
        mlp = f"layers.{i}.mlp"
        if config.gelu:
            x = x + linear(functional.gelu(linear(inner, f"{mlp}.fc1")), f"{mlp}.fc2")
            continue
        gate = functional.silu(linear(inner, f"{mlp}.gate_up_proj", slice(config.intermediate)))
        up = linear(inner, f"{mlp}.gate_up_proj", slice(config.intermediate, None))
        x = x + linear(gate * up, f"{mlp}.down_proj")
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
    steps = []
    for _ in range(TINY.max_seq_len - 5):  # up to the last slot of the cache
        sequence = torch.cat((sequence, decoder.tokens), dim=1)
        steps.append(decoder.step())
    expected = reference_logits(model, sequence)[:, 5:]  # causal: each as if it were the last
    assert_same(torch.stack(steps, dim=1), expected)
    assert torch.equal(decoder.tokens, expected[:, -1].argmax(-1, keepdim=True))
    assert torch.equal(sequence[:, 6:], expected[:, :-1].argmax(-1))
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


@pytest.mark.parametrize(
    ("preset", "hint"),
    [
        ("smal", "Did you mean 'small'?"),
        ("huge", "Presets: tiny, tiny-gelu, small, shallow, gelu, 8b."),
    ],
)
def test_an_unknown_preset_is_named_with_those_there_are(preset: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"no decoder preset '{preset}'") as caught:
        build_decoder(preset)
    assert caught.value.hint == hint


def test_8b_has_the_shape_of_qwen3_8b() -> None:
    with torch.device("meta"):
        model = Decoder(PRESETS["8b"])
    assert sum(weight.numel() for weight in model.parameters()) == 8_190_735_360
    assert model.get_parameter("layers.0.attention.qkv_proj.weight").shape == (6144, 4096)
    assert model.get_parameter("layers.0.mlp.gate_up_proj.weight").shape == (24_576, 4096)


@pytest.mark.parametrize("preset", ["tiny", "tiny-gelu"])
def test_a_defect_changes_no_weight(preset: str) -> None:
    naive, clean = (
        dict(build_decoder(preset, device="cpu", defects=defects).named_parameters())
        for defects in (defects_of(preset), ())
    )
    assert naive.keys() == clean.keys()
    assert all(torch.equal(naive[name], clean[name]) for name in naive)
    has_bias = {name for name in naive if name.endswith("bias")}
    assert len(has_bias) == (4 * TINY.n_layers if preset == "tiny-gelu" else 0)


class Counted(TorchDispatchMode):
    """Counts the ops that compute something: on a GPU each would be a kernel."""

    VIEWS = (
        *("view", "_unsafe_view", "t", "permute", "transpose", "expand", "unsqueeze", "slice"),
        *("select", "split", "split_with_sizes", "detach", "alias", "empty", "empty_like"),
    )

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.overloadpacket.__name__
        if name not in self.VIEWS:
            self.counts[name] = self.counts.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


def ops_of_a_step(preset: str, *defects: str) -> dict[str, int]:
    decoder = GreedyDecoder(build_decoder(preset, device="cpu", defects=defects))
    decoder.prefill(torch.ones(1, 4, dtype=torch.int64))
    with Counted() as counted:
        decoder.step()
    return counted.counts


def test_split_projections_are_three_products_instead_of_one() -> None:
    clean, split = ops_of_a_step("tiny"), ops_of_a_step("tiny", "qkv_split")
    # A layer: QKV, output, gate and up, down; and the logits.
    assert clean["mm"] == 4 * TINY.n_layers + 1
    assert split["mm"] == 7 * TINY.n_layers + 1
    assert {**clean, "mm": 0} == {**split, "mm": 0}


def test_gelu_has_no_gate_to_split() -> None:
    clean, split = ops_of_a_step("tiny-gelu"), ops_of_a_step("tiny-gelu", "qkv_split")
    assert clean["addmm"] == 4 * TINY.n_layers
    assert split["addmm"] == 6 * TINY.n_layers


def test_unfused_attention_makes_its_mask_in_every_layer() -> None:
    clean, unfused = ops_of_a_step("tiny"), ops_of_a_step("tiny", "attention_unfused")
    assert "bmm" not in clean
    assert "_softmax" not in clean
    assert unfused["bmm"] == 2 * TINY.n_layers
    assert unfused["_softmax"] == TINY.n_layers
    assert clean["arange"] == 1
    assert unfused["arange"] == TINY.n_layers


def test_unfused_bias_and_gelu_are_ops_of_their_own() -> None:
    clean, unfused = ops_of_a_step("tiny-gelu"), ops_of_a_step("tiny-gelu", "bias_gelu_unfused")
    assert "erf" not in clean
    assert clean["gelu"] == unfused["erf"] == TINY.n_layers
    assert sum(unfused.values()) == sum(clean.values()) + 6 * TINY.n_layers


def test_unfused_rotary_embedding_is_about_20_ops() -> None:
    config = TINY
    query = torch.randn(1, config.n_heads, 1, config.head_dim, dtype=torch.bfloat16)
    key = torch.randn(1, config.n_kv_heads, 1, config.head_dim, dtype=torch.bfloat16)
    with Counted() as counted:
        apply_rotary(query, key, torch.tensor([[5]]), torch.ones(config.head_dim // 2))
    assert 16 <= sum(counted.counts.values()) <= 22


def test_what_is_compiled_as_a_whole_compiles_no_rotary_embedding_of_its_own() -> None:
    query, key = torch.randn(1, 4, 1, 16), torch.randn(1, 2, 1, 16)
    arguments = (query, key, torch.tensor([[5]]), torch.rand(8))
    whole = torch.compile(apply_rotary_fused, backend="eager", fullgraph=True)
    for actual, expected in zip(whole(*arguments), apply_rotary(*arguments), strict=True):
        assert torch.equal(actual, expected)


def test_a_model_built_by_hand_is_naive_too() -> None:
    config = DecoderConfig(64, 2, 32, 4, 2, 8, 64, 16)
    assert Decoder(config).defects == NAIVE


def test_the_package_does_not_need_torch_to_be_imported() -> None:
    code = "import sys, hostgap, hostgap.decoder; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
