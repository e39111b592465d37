"""The decode loop: a defect changes how a token is made, and never which."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import Tensor

from hostgap.decoder import host_defects
from hostgap.decoder.defects import DEFECTS, NAIVE, defects_of
from hostgap.decoder.generate import GreedyDecoder
from hostgap.decoder.loop import EOS, DecodeLoop
from hostgap.decoder.model import Decoder, build_decoder
from hostgap.decoder.sampling import Sampling
from hostgap.decoder.workload import Server, decoder_workload, prompt_of, script_of
from hostgap.errors import ConfigError, TargetError
from hostgap.profiling.workload import Workload

SAMPLING = Sampling(temperature=0.9, top_k=50, seed=3)
N_CASES = 4
N_STEPS = 10


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """More of them only get in each other's way at this size."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@cache
def model_with(preset: str, defects: frozenset[str]) -> Decoder:
    return build_decoder(preset, device="cpu", seed=7, defects=defects)


def made(
    preset: str, defects: tuple[str, ...] = (), batch: int = 1, sampling: Sampling | None = None
) -> tuple[Workload, Server]:
    model = model_with(preset, frozenset(defects) & NAIVE)
    workload = decoder_workload(model, batch, defects, sampling)
    assert workload.deliver is not None
    server = workload.deliver.__self__  # type: ignore[attr-defined]
    assert isinstance(server, Server)
    return workload, server


def outcome(workload: Workload, server: Server, cases: range, n_steps: int) -> list[Any]:
    """All that a loop decides and notes, case by case."""
    outcomes = []
    for case in cases:
        assert workload.reset is not None
        workload.reset(case)
        steps = torch.stack([workload.step()[0].clone() for _ in range(n_steps)])
        outcomes.append(
            {
                "tokens": steps.tolist(),
                "delivered": torch.stack(list(server.delivered)).tolist(),
                "history": server.decoded().tolist(),
                "finished": server.finished,
                "lengths": server.loop.lengths.tolist(),
                "page_lens": server.page_lens.tolist(),
            }
        )
    return outcomes


@cache
def expected(preset: str, batch: int, sampling: Sampling | None) -> list[Any]:
    return outcome(*made(preset, (), batch, sampling), range(N_CASES), N_STEPS)


@pytest.mark.parametrize("sampling", [None, SAMPLING], ids=["greedy", "sampled"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("preset", ["tiny", "tiny-gelu"])
def test_every_defect_alone_and_all_together_give_the_clean_tokens(
    preset: str, batch: int, sampling: Sampling | None
) -> None:
    clean = expected(preset, batch, sampling)
    assert len({str(case["tokens"]) for case in clean}) == N_CASES
    assert any(any(case["finished"]) for case in clean)
    for defects in [*((name,) for name in defects_of(preset)), defects_of(preset)]:
        found = outcome(*made(preset, defects, batch, sampling), range(N_CASES), N_STEPS)
        assert found == clean, defects


def test_every_pair_of_defects_gives_the_clean_tokens() -> None:
    clean = outcome(*made("tiny-gelu", (), 2, SAMPLING), range(1), 7)
    for pair in itertools.combinations(defects_of("tiny-gelu"), 2):
        assert outcome(*made("tiny-gelu", pair, 2, SAMPLING), range(1), 7) == clean, pair


def test_the_loop_decodes_what_the_decoder_decodes() -> None:
    model = model_with("tiny", NAIVE - {"bias_gelu_unfused"})
    loop = DecodeLoop(model, 2, SAMPLING)
    prompt = prompt_of(0, 2, 6, model.config.vocab_size)
    loop.prefill(prompt)
    tokens = [loop.tokens[:, 0].clone()]
    tokens += [loop(torch.full((2,), -1))[0] for _ in range(20)]
    decoded = GreedyDecoder(model, 2, SAMPLING).generate(prompt, 21)
    assert torch.equal(torch.stack(tokens, dim=1), decoded)
    assert torch.equal(loop.history[:, 6:27], decoded)
    assert int(loop.history[:, 27:].abs().sum()) == 0


def test_forced_tokens_are_taken_and_change_what_follows() -> None:
    model = model_with("tiny", frozenset())
    free, forced = DecodeLoop(model, 2), DecodeLoop(model, 2)
    none = torch.full((2,), -1)
    for loop in (free, forced):
        loop.prefill(prompt_of(0, 2, 6, model.config.vocab_size))
        loop(none)
    chosen, _ = free(none)
    other = (chosen + 1) % model.config.vocab_size
    said = torch.tensor([-1, int(other[1])])
    assert torch.equal(forced(said)[0], torch.tensor([int(chosen[0]), int(other[1])]))
    following = [(free(none)[0], forced(none)[0]) for _ in range(4)]
    assert all(torch.equal(one[0], two[0]) for one, two in following)
    assert not all(torch.equal(one[1], two[1]) for one, two in following)


def test_token_0_can_be_forced() -> None:
    loop = DecodeLoop(model_with("tiny", frozenset()), 1)
    loop.prefill(torch.ones(1, 3, dtype=torch.int64))
    assert loop(torch.tensor([0]))[0].tolist() == [0]


def test_a_script_speaks_sometimes_and_ends_a_row() -> None:
    for case in range(N_CASES):
        script = script_of(case, 3, 40, 256)
        assert torch.equal(script, script_of(case, 3, 40, 256))
        assert 0.05 < float((script >= 0).float().mean()) < 0.3
        assert (script == EOS).nonzero().tolist() == [[5 + case, case % 3]]
        assert int(script.max()) < 256


@pytest.mark.parametrize("defects", [(), defects_of("tiny")], ids=["clean", "all"])
def test_reset_begins_exactly_anew(defects: tuple[str, ...]) -> None:
    workload, server = made("tiny", defects, 2, SAMPLING)
    first = outcome(workload, server, range(N_CASES), 10)
    assert outcome(workload, server, range(N_CASES), 10) == first
    assert workload.reset is not None
    workload.reset(3)
    for _ in range(7):
        workload.step()
    assert outcome(workload, server, range(1), 10) == first[:1]


def test_what_a_step_takes_and_gives_stays_the_same() -> None:
    workload, server = made("tiny", (), 3)
    assert workload.cases == N_CASES
    assert workload.tokens == 3
    assert workload.device == "cpu"
    assert list(workload.modules) == [server.loop.model]
    assert len({prompt.shape[1] for prompt in server.prompts}) == N_CASES
    assert workload.feed is not None
    fed = [workload.feed() for _ in range(10)]
    assert {(one[0].shape, one[0].dtype, one[0].device.type) for one in fed} == {
        ((3,), torch.int64, "cpu")
    }
    tokens, logits = workload.step()
    assert tokens.shape == (3,)
    assert tokens.dtype == torch.int64
    assert logits.tensor.shape == (3, server.loop.model.config.vocab_size)


@pytest.mark.parametrize("defects", [(), defects_of("tiny")], ids=["clean", "all"])
def test_the_room_that_is_stated_is_there_in_every_case(defects: tuple[str, ...]) -> None:
    workload, server = made("tiny", defects, 2)
    assert workload.reset is not None
    assert workload.room is not None
    for case in range(N_CASES):
        workload.reset(case)
        for _ in range(workload.room):
            workload.step()
        assert server.decoded().shape == (2, workload.room + 1)
        with pytest.raises(TargetError, match="the decoder's cache is full after"):
            workload.step()


def test_feeding_one_step_ahead_is_allowed_to_the_end() -> None:
    workload, _ = made("tiny")
    assert workload.feed is not None
    assert workload.room is not None
    for _ in range(workload.room + 2):
        (row,) = workload.feed()
        assert row.shape == (1,)


def test_the_host_keeps_so_many_tokens_and_no_more() -> None:
    workload = decoder_workload(model_with("tiny", frozenset()), 1, steps_kept=4)
    server = workload.deliver.__self__  # type: ignore[union-attr]
    tokens = [workload.step()[0].tolist() for _ in range(9)]
    assert [kept.tolist() for kept in server.delivered] == tokens[-4:]


def test_what_is_delivered_may_be_overwritten() -> None:
    _, server = made("tiny", (), 1)
    buffer = torch.tensor([5])
    server.deliver(buffer)
    buffer.fill_(6)
    assert server.delivered[-1].tolist() == [5]


def test_all_that_a_step_changes_on_the_device_is_a_buffer() -> None:
    workload, server = made("tiny", (), 2)
    buffers = dict(server.loop.named_buffers())
    held = {name: (buffer.data_ptr(), buffer._version) for name, buffer in buffers.items()}
    workload.step()
    for name, buffer in server.loop.named_buffers():
        address, version = held[name]
        assert buffer.data_ptr() == address, name
        assert (buffer._version > version) == ("inv_freq" not in name), name


@pytest.mark.parametrize("sampling", [None, SAMPLING], ids=["greedy", "sampled"])
@pytest.mark.parametrize("preset", ["tiny", "tiny-gelu"])
@pytest.mark.parametrize("everything", [False, True], ids=["clean", "all"])
def test_the_body_is_one_graph_without_a_read_by_the_host(
    preset: str, everything: bool, sampling: Sampling | None
) -> None:
    torch._dynamo.reset()  # it compiles one function 8 times and no more
    defects = defects_of(preset) if everything else ()
    workload, server = made(preset, defects, 3, sampling)
    workload.body = torch.compile(workload.body, backend="eager", fullgraph=True, dynamic=False)
    assert outcome(workload, server, range(N_CASES), N_STEPS) == expected(preset, 3, sampling)


def test_a_stale_input_changes_the_tokens() -> None:
    """What the prover of equality relies on: a fix that forgets to refresh its input is seen."""
    workload, server = made("tiny")
    first: list[tuple[Tensor, ...]] = []
    feed = workload.feed
    assert feed is not None

    def stale() -> tuple[Tensor, ...]:
        first.append(feed())
        return first[0]

    workload.feed = stale
    found = outcome(workload, server, range(N_CASES), N_STEPS)
    assert [case["tokens"] for case in found] != [
        case["tokens"] for case in expected("tiny", 1, None)
    ]


def test_garbage_is_made_only_on_purpose() -> None:
    def collections_in_4_steps(*defects: str) -> int:
        workload, _ = made("tiny", defects)
        workload.step()
        gc.collect()
        before = sum(generation["collections"] for generation in gc.get_stats())
        for _ in range(4):
            workload.step()
        return sum(generation["collections"] for generation in gc.get_stats()) - before

    assert collections_in_4_steps("gc_pressure") >= 4
    assert collections_in_4_steps() <= 2


def test_defects_must_exist_and_be_in_the_model() -> None:
    clean = model_with("tiny", frozenset())
    with pytest.raises(ConfigError, match="no decoder defect 'eos_raed'") as caught:
        decoder_workload(clean, 1, ["eos_raed"])
    assert caught.value.hint == "Did you mean 'eos_read'?"
    with pytest.raises(ConfigError, match="built without the defect 'qkv_split'"):
        decoder_workload(clean, 1, ["qkv_split"])
    naive = build_decoder("tiny", device="cpu")
    for defects in (NAIVE, [], defects_of("tiny")):
        assert decoder_workload(naive, 1, defects).cases == N_CASES


def test_every_loop_defect_is_done_somewhere() -> None:
    """All but the two blocking ones, which are the workload's plain path."""
    written = {name for name, defect in DEFECTS.items() if defect.kind == "loop"}
    assert {name for name in written if hasattr(host_defects, name)} == written - {
        "output_blocking",
        "input_blocking",
    }
