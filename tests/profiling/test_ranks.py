"""Ranks: processes that run one target together, on a CPU with gloo."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest

from hostgap.cli import run
from hostgap.errors import ConfigError, HostgapError, TargetError
from hostgap.profiling import requests as r
from hostgap.profiling.bench import Comparison, Variant
from hostgap.profiling.lockstep import agreed, here, line_up
from hostgap.profiling.protocol import ProfileOptions
from hostgap.profiling.rank_group import RankGroup, _to_blame, devices_for
from hostgap.profiling.ranked import profile_ranks
from hostgap.profiling.rundir import read_measurement, refuse_run_dir, write_measurement
from hostgap.profiling.target import TargetSpec
from hostgap.ranks.inputs import find_inputs
from tests.profiling import cpu_child
from tests.profiling.build import measurement

torch = pytest.importorskip("torch", reason="torch is not installed")
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")

TARGET = """
import os, signal, time
import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
assert dist.get_rank() == rank and dist.get_world_size() == int(os.environ["WORLD_SIZE"]) == 2
steps = 0

def step():
    global steps
    steps += 1
    total = torch.ones(3)
    dist.all_reduce(total)
    assert total.tolist() == [2.0] * 3
    if rank == 1 and steps == 4:
        {fault}
    return total
"""


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Child processes as if there were GPUs."""
    monkeypatch.setattr("hostgap.profiling.worker._BEGIN", cpu_child.BEGIN)


def target(tmp_path: Path, fault: str = "pass") -> TargetSpec:
    path = tmp_path / "job.py"
    path.write_text(TARGET.format(fault=fault), encoding="utf-8")
    return TargetSpec(target=f"{path}:step", ranks=2)


def small(**more: Any) -> ProfileOptions:
    return ProfileOptions(warmup=5, steps=3, repeats=3, traced_steps=3, timeout_s=60, **more)


@pytest.mark.usefixtures("on_cpu")
def test_ranks_are_measured_together(tmp_path: Path) -> None:
    spec = TargetSpec(preset="tiny", ranks=2, defects=("rope_unfused", "host_work@1"))
    said: list[str] = []
    measured = profile_ranks(spec, small(stacks=False, device="0,1"), tmp_path, said.append)
    assert said[0] == "timing 2 ranks without a profiler"
    for rank, one in enumerate(measured):
        assert one.status == "complete"
        assert one.problems == []
        assert one.options["ranks"] == 2
        assert one.timing.step.median_ns > 1e6  # the rank without the work waits for it
        write_measurement(tmp_path / f"rank{rank}", one)
        for each in one.passes:
            text = gzip.decompress((tmp_path / f"rank{rank}" / each.file).read_bytes())
            assert json.loads(text)["distributedInfo"]["rank"] == rank
    assert measured[0].timing.steps == measured[1].timing.steps
    found = find_inputs([str(tmp_path)])
    assert found.several
    assert [one.said.rank for one in found.traces] == [0, 1]
    refuse_run_dir(tmp_path, force=True)  # such a folder may be replaced


@pytest.mark.usefixtures("on_cpu")
def test_a_step_function_of_the_users_finds_its_process_group(tmp_path: Path) -> None:
    with RankGroup(target(tmp_path), [None, None], timeout_s=60) as group:
        assert [one.environment.gpu for one in group.welcomes] == ["NVIDIA H200"] * 2
        compared = group.ask(r.Compare(Variant(), Variant(), 5, 3, 3), Comparison)
        assert compared[0].old.steps == compared[1].old.steps == 3


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise ValueError('no such slot')", "raised in step 2: ValueError: no such slot"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "its process died (SIGKILL)"),
    ],
)
def test_a_rank_that_fails_is_named_and_ends_the_others(
    tmp_path: Path, fault: str, message: str
) -> None:
    with RankGroup(target(tmp_path, fault), [None, None], timeout_s=60) as group:
        processes = [child._process for child in group._children]
        begun = time.monotonic()
        with pytest.raises(TargetError) as caught:
            group.ask(r.Measure(Variant(), 5, 3, 3), r.Measured)
        assert caught.value.message.startswith("rank 1: ")
        assert message in caught.value.message
        assert time.monotonic() - begun < 30
        assert all(process.poll() is not None for process in processes)


@pytest.mark.usefixtures("on_cpu")
def test_a_rank_that_hangs(tmp_path: Path) -> None:
    with RankGroup(target(tmp_path, "time.sleep(600)"), [None, None], timeout_s=8) as group:
        processes = [child._process for child in group._children]
        with pytest.raises(TargetError, match="no answer within 8 s"):
            group.ask(r.Measure(Variant(), 5, 3, 3), r.Measured)
        assert all(process.poll() is not None for process in processes)


@pytest.mark.usefixtures("on_cpu")
def test_a_rank_that_cannot_be_built_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    args = ["profile", "--ranks", "3", "--preset", "tiny", "--device", "0,1,2", "-o", str(out)]
    assert run(args) == 2
    error = capsys.readouterr().err
    assert "2 key/value heads cannot be shared out evenly among 3 ranks" in error
    assert "rank" in error
    assert list(tmp_path.iterdir()) == []


def test_the_rank_to_blame_is_not_the_one_whose_partner_is_gone() -> None:
    errors: dict[int, BaseException] = {
        0: TargetError("step raised: RuntimeError: Connection closed by peer"),
        1: TargetError("its process died (SIGSEGV)"),
    }
    blamed = _to_blame(errors, 2)
    assert isinstance(blamed, HostgapError)
    assert blamed.message == "rank 1: its process died (SIGSEGV)"
    alike: dict[int, BaseException] = {rank: ConfigError("no CUDA device") for rank in (0, 1)}
    blamed = _to_blame(alike, 2)
    assert isinstance(blamed, ConfigError)
    assert blamed.message == "no CUDA device"  # it is of no one rank


@no_gpu
def test_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert run(["profile", "--ranks", "2"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no CUDA device" in captured.err
    assert "rank" not in captured.err.splitlines()[-2]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--ranks", "0"], "0"),
        (["--ranks", "2", "--device", "3"], "2 ranks need 2 GPUs; --device names 1"),
        (["--ranks", "2", "--batch", "1,8", "--device", "0,1"], "several are for one rank"),
        (["--ranks", "2", "--nvtx"], "start nsys once per rank"),
        (["--defect", "host_work"], "it holds up one rank of several"),
        (["--defect", "host_work@1"], "there are no ranks"),
        (["--ranks", "2", "--defect", "eos_read@2"], "ranks run from 0 to 1"),
    ],
)
def test_what_is_refused(
    args: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["profile", *args, "-o", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_gpus_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 3,1")
    assert devices_for(2) == ["5", "3"]
    assert devices_for(2, "7,8") == ["7", "8"]
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES names 3"):
        devices_for(4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr("hostgap.profiling.rank_group._listed", lambda: ["0"])
    with pytest.raises(ConfigError, match="2 ranks need 2 GPUs; there is 1"):
        devices_for(2)
    monkeypatch.setattr("hostgap.profiling.rank_group._listed", list)
    assert devices_for(2) == ["0", "1"]  # nobody says how many there are


def test_a_process_that_is_no_rank_agrees_with_itself() -> None:
    assert here() is None
    assert agreed(3.5) == 3.5
    line_up()


def test_a_folder_of_ranks_is_only_replaced_where_it_is_one(tmp_path: Path) -> None:
    write = tmp_path / "rank0"
    write.mkdir()
    write_measurement(write, measurement())
    assert read_measurement(write).target == "decoder"
    refuse_run_dir(tmp_path, force=True)
    with pytest.raises(HostgapError, match="exists"):
        refuse_run_dir(tmp_path, force=False)
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(HostgapError, match="is no run of hostgap"):
        refuse_run_dir(tmp_path, force=True)
    (tmp_path / "notes.txt").unlink()
    (write / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(HostgapError, match="is no run of hostgap"):
        refuse_run_dir(tmp_path, force=True)
