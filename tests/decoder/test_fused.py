"""The fused step against the model whose weights it reads: same logits, same caches.

Without a GPU the kernels run in Triton's interpreter, in float32 and bfloat16; without Triton only
the refusals are tested.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hostgap.errors import ConfigError

pytest.importorskip("torch", reason="torch is not installed")

import torch

from hostgap.decoder import fused
from hostgap.decoder.fused import FusedStep, Gemv, default_plan, supported
from hostgap.decoder.model import PRESETS, Decoder, DecoderConfig, build_decoder

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"


def reason_to_skip() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if ON_GPU:
        return None if torch.cuda.get_device_capability() >= (9, 0) else "no Hopper GPU"
    if "triton" in sys.modules:
        return "Triton was imported before it could be told to interpret"
    os.environ["TRITON_INTERPRET"] = "1"  # read when kernels are decorated, Triton's own included
    try:
        importlib.import_module("hostgap.decoder.kernels")
    finally:
        del os.environ["TRITON_INTERPRET"]
    return None


REASON = reason_to_skip()
runs = pytest.mark.skipif(REASON is not None, reason=str(REASON))
on_gpu = pytest.mark.skipif(not ON_GPU, reason="no CUDA GPU")
# The interpreter computes with numpy, which warns of what a GPU does silently.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    if not ON_GPU:
        monkeypatch.setenv("TRITON_INTERPRET", "1")


# Two layers, because every one is the same code, and sizes that fill no tile.
ODD = DecoderConfig(
    vocab_size=251,
    n_layers=2,
    hidden=72,
    n_heads=6,
    n_kv_heads=2,
    head_dim=16,
    intermediate=168,
    max_seq_len=64,
)
DTYPES = [torch.bfloat16] if ON_GPU else [torch.float32, torch.bfloat16]


def odd_model(dtype: torch.dtype) -> Decoder:
    torch.manual_seed(5)
    model = Decoder(ODD).requires_grad_(False).eval()
    for weight in model.parameters():
        if weight.dim() == 1:
            weight.add_(0.1 * torch.randn_like(weight))
    # As `build_decoder` does: the rotary rates stay float32.
    for weight in model.parameters():
        weight.data = weight.data.to(DEVICE, dtype)
    for buffer_owner in model.layers:
        buffer_owner.attention.inv_freq = buffer_owner.attention.inv_freq.to(DEVICE)
    return model


def exact(model: Decoder) -> Decoder:
    """The same weights in float32."""
    copy = Decoder(model.config).requires_grad_(False).eval()
    copy.load_state_dict(model.state_dict())
    return copy.to(model.embed.weight.device)


def tokens_of(batch: int, length: int, vocabulary: int = 251, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, (batch, length), generator=generator).to(DEVICE)


def assert_close(logits: torch.Tensor, expected: torch.Tensor) -> None:
    """Within rounding of the type: in bfloat16 2 % of the largest logit."""
    tolerance = 1e-5 if logits.dtype == torch.float32 else 2e-2
    error = (logits.float() - expected.float()).abs().max() / expected.float().abs().max()
    assert error < tolerance


@pytest.fixture(params=DTYPES, ids=str)
def model(request: pytest.FixtureRequest) -> Decoder:
    return odd_model(request.param)


def both(model: Decoder, prompt: torch.Tensor) -> Iterator[tuple[Decoder, torch.nn.ModuleList]]:
    """The float32 twin and the model itself, each with caches that hold the prompt."""
    batch, length = prompt.shape
    positions = torch.arange(length, device=DEVICE).expand(batch, length)
    for one in (exact(model), model):
        caches = one.new_caches(batch)
        one(prompt, positions, caches)
        yield one, caches


@runs
@pytest.mark.parametrize(
    ("positions", "changes"),
    [
        ([0], {}),
        ([31], {}),
        ([32], {}),  # a new tile, and in it nothing but this step's own slot
        ([63], {}),
        ([50, 3], {}),  # rows at positions of their own: two splits for one, one for the other
        ([63], {"attend_splits": 1}),
        ([40], {"attend_block": 16, "attend_splits": 2}),
        ([20], {"qkv": Gemv(4, 4), "out": Gemv(16, 8), "gate_up": Gemv(32, 4), "head": Gemv(2, 4)}),
    ],
    ids=str,
)
def test_a_step_gives_the_models_logits_and_caches(
    model: Decoder, positions: list[int], changes: dict[str, object]
) -> None:
    batch = len(positions)
    (twin, expected_caches), (_, caches) = both(model, tokens_of(batch, 63))
    before = [cache.keys.clone() for cache in caches]
    plan = replace(default_plan(model, batch), **changes)  # type: ignore[arg-type]
    step = FusedStep(model, caches, plan=plan)
    at = torch.tensor(positions, device=DEVICE)[:, None]
    tokens = tokens_of(batch, 1, seed=1)
    logits = step(tokens, at)
    assert logits.shape == (batch, ODD.vocab_size)
    assert_close(logits, twin(tokens, at, expected_caches)[:, -1])
    chosen = step.choose(torch.zeros_like(tokens))
    assert torch.equal(chosen, logits.argmax(-1, keepdim=True))
    rows = torch.arange(batch)
    for cache, expected, old in zip(caches, expected_caches, before, strict=True):
        for name in ("keys", "values"):
            written = getattr(cache, name)[rows, :, at[:, 0]]
            assert_close(written, getattr(expected, name)[rows, :, at[:, 0]])
        untouched = torch.ones_like(old, dtype=torch.bool)
        untouched[rows, :, at[:, 0]] = False
        assert torch.equal(cache.keys[untouched], old[untouched])
    assert step.arrived.count_nonzero() == 0


@runs
def test_steps_follow_a_prefill_and_each_other(model: Decoder) -> None:
    prompt = tokens_of(1, 30)
    (twin, expected_caches), (_, caches) = both(model, prompt)
    step = FusedStep(model, caches)
    tokens, at = tokens_of(1, 1, seed=2), torch.tensor([[30]], device=DEVICE)
    for _ in range(4):
        logits = step(tokens, at)
        assert_close(logits, twin(tokens, at, expected_caches)[:, -1])
        step.choose(tokens)
        at += 1


@runs
def test_a_step_repeated_gives_the_same_bits() -> None:
    model = odd_model(DTYPES[0])
    _, (_, caches) = both(model, tokens_of(2, 40))
    step = FusedStep(model, caches)
    tokens, at = tokens_of(2, 1), torch.tensor([[40], [11]], device=DEVICE)
    first = step(tokens, at).clone()
    assert torch.equal(step(tokens, at), first)


@runs
def test_of_equal_logits_the_first_is_chosen() -> None:
    model = odd_model(DTYPES[0])
    step = FusedStep(model, model.new_caches(1))
    tokens, at = tokens_of(1, 1), torch.zeros(1, 1, dtype=torch.int64, device=DEVICE)
    best = int(step(tokens, at).argmax())
    for place in (250, 97, 98, 3):
        model.lm_head.weight[place] = model.lm_head.weight[best]
    step(tokens, at)
    assert step.choose(torch.zeros_like(tokens)).item() == min(best, 3)


@runs
def test_a_position_past_the_cache_writes_nothing_outside_it() -> None:
    model = odd_model(DTYPES[0])
    caches = model.new_caches(2)
    at = torch.tensor([[64], [1000]], device=DEVICE)
    FusedStep(model, caches)(tokens_of(2, 1), at)
    written = caches[0].keys.abs().sum(dim=(1, 3)).nonzero()
    assert written.tolist() == [[0, 63], [1, 63]]


@runs
def test_only_one_token_a_row_is_taken() -> None:
    model = odd_model(DTYPES[0])
    step = FusedStep(model, model.new_caches(1))
    with pytest.raises(ConfigError, match=r"tokens \(1, 2\) at positions \(1, 2\)"):
        step(tokens_of(1, 2), tokens_of(1, 2))


def test_what_cannot_be_fused_is_named() -> None:
    model = build_decoder("tiny", device="cpu")
    assert supported(model, 9) == "a batch of 9: it must be 1 to 8"
    gelu = build_decoder("tiny-gelu", device="cpu")
    reason = "the gelu feed-forward block and its biases have no fused kernels"
    assert supported(gelu, 1) == reason
    with pytest.raises(ConfigError, match=reason) as caught:
        FusedStep(gelu, gelu.new_caches(1))
    assert caught.value.hint is not None
    assert "compute capability 9.0+" in caught.value.hint


def test_without_triton_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_kernels", lambda: None)
    model = build_decoder("tiny", device="cpu")
    assert supported(model, 1) == "Triton is not installed"
    with pytest.raises(ConfigError, match="the fused step cannot run this: Triton is not"):
        FusedStep(model, model.new_caches(1))


def test_every_preset_has_a_plan() -> None:
    for name, config in PRESETS.items():
        if not config.gelu:
            with torch.device("meta"):
                model = Decoder(config)
            for batch in (1, 8):
                splits = default_plan(model, batch).attend_splits
                assert splits & (splits - 1) == 0, name
                assert 1 <= splits * batch * config.n_kv_heads <= 132, name


@runs
@on_gpu
@pytest.mark.parametrize("pdl", [False, True])
@pytest.mark.parametrize("batch", [1, 2, 8])
def test_a_captured_step_decodes_what_single_steps_decode(batch: int, pdl: bool) -> None:
    model = build_decoder("small")
    prompt = tokens_of(batch, 100, model.config.vocab_size)
    (twin, expected_caches), (_, caches) = both(model, prompt)
    step = FusedStep(model, caches, pdl=pdl)
    tokens = tokens_of(batch, 1, model.config.vocab_size, seed=1)
    at = torch.full((batch, 1), 100, device=DEVICE)

    def decode() -> None:
        step(tokens, at)
        step.choose(tokens)
        at.add_(1)

    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        decode()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decode()
    first = tokens_of(batch, 1, model.config.vocab_size, seed=2)
    tokens.copy_(first)
    at.fill_(100)
    replayed = []
    for position in range(100, 140):
        fed = tokens.clone()
        graph.replay()
        expected = twin(fed, torch.full_like(at, position), expected_caches)[:, -1]
        assert_close(step.logits, expected)
        replayed.append(tokens.clone())
    tokens.copy_(first)
    at.fill_(100)
    for token in replayed:
        decode()
        assert torch.equal(tokens, token)
    assert len({token[0].item() for token in replayed}) > 8
