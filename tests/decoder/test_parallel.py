"""The decoder shared out among ranks gives what the whole one gives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hostgap.decoder.defects import RANK_FAULTS, checked_ranks, of_rank
from hostgap.errors import ConfigError

torch = pytest.importorskip("torch", reason="torch is not installed")

from hostgap.decoder.fused import supported  # noqa: E402
from hostgap.decoder.host_defects import HOST_WORK_S, host_work  # noqa: E402
from hostgap.decoder.model import PRESETS, build_decoder  # noqa: E402
from hostgap.decoder.parallel import shard, shared_out  # noqa: E402
from hostgap.decoder.workload import decoder_workload  # noqa: E402
from tests.decoder.rank_main import MODELS, decode  # noqa: E402

RANKS = 2


def test_ranks_decode_the_tokens_of_the_whole_decoder(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.decoder.rank_main"]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(RANKS), str(tmp_path / "meeting")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    told = [json.loads(process.communicate(timeout=120)[0]) for process in processes]
    for index, (preset, defects) in enumerate(MODELS):
        tokens, logits = decode(build_decoder(preset, device="cpu", defects=defects))
        for rank in range(RANKS):
            assert told[rank][index][0] == tokens, (preset, defects)
            ours = torch.tensor(told[rank][index][1])
            torch.testing.assert_close(ours, torch.tensor(logits), rtol=1e-3, atol=1e-3)
        assert told[0][index] == told[1][index]  # bit for bit: nobody has to be asked


def test_a_rank_has_its_part_of_the_weights_and_what_all_have_is_not_copied() -> None:
    whole = build_decoder("tiny", device="cpu")
    parts = [shard(whole, rank, RANKS) for rank in range(RANKS)]
    for part in parts:
        assert part.embed.weight.data_ptr() == whole.embed.weight.data_ptr()
        assert part.new_caches(1)[0].keys.shape[1] == whole.config.n_kv_heads // RANKS
        assert supported(part, 1) == "a model that several ranks share"
    names = ("layers.0.attention.{}qkv_proj.weight", "layers.0.mlp.{}gate_up_proj.weight")
    for name in names:
        full = whole.get_parameter(name.format(""))
        cut = [part.get_parameter(name.format("block.")) for part in parts]
        assert sum(one.shape[0] for one in cut) == full.shape[0]
        rows = {tuple(row) for one in cut for row in one.tolist()}
        assert rows == {tuple(row) for row in full.tolist()}  # each row on one rank


@pytest.mark.parametrize("ranks", [3, 4])
def test_heads_that_cannot_be_shared_out_are_refused(ranks: int) -> None:
    with pytest.raises(ConfigError, match="cannot be shared out evenly") as caught:
        shared_out(PRESETS["tiny"], ranks)
    assert caught.value.hint == "Ranks that divide both: 1, 2."


def test_defects_of_one_rank() -> None:
    names = ("eos_read", "host_work@1", "eos_read@0", "list_upload@0")
    assert of_rank(names, 0) == ("eos_read", "list_upload")
    assert of_rank(names, 1) == ("eos_read", "host_work")
    checked_ranks(names, 2)


@pytest.mark.parametrize(
    ("name", "ranks", "message"),
    [
        ("host_work", 2, "holds up one rank of several"),
        ("host_work@1", 1, "there are no ranks"),
        ("eos_read@2", 2, "ranks run from 0 to 1"),
    ],
)
def test_ranks_that_there_are_not(name: str, ranks: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked_ranks([name], ranks)


def test_a_fault_is_done_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr("hostgap.decoder.host_defects.host_work", lambda: done.append("host_work"))
    monkeypatch.setattr(
        "hostgap.decoder.host_defects.table_upload", lambda *_: done.append("table_upload")
    )
    workload = decoder_workload(build_decoder("tiny", device="cpu"), faults=RANK_FAULTS)
    for _ in range(3):
        workload.step()
    assert done == ["host_work", "table_upload"] * 3


def test_an_unknown_fault() -> None:
    with pytest.raises(ConfigError, match="no fault 'sleep'"):
        decoder_workload(build_decoder("tiny", device="cpu"), faults=["sleep"])


def test_host_work_takes_as_long_as_it_says() -> None:
    import time

    begun = time.perf_counter()
    host_work()
    assert HOST_WORK_S <= time.perf_counter() - begun < 0.5
