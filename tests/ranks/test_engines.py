"""Where ranks are read: a pool of processes, a Dask cluster; and what happens when workers die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from hostgap.analysis.examine import Options
from hostgap.cli import run
from hostgap.diagnosis.judge import Judging
from hostgap.errors import HostgapError
from hostgap.ranks import engines
from hostgap.ranks.diagnose import diagnose_set
from hostgap.ranks.engines import Dask, Local
from hostgap.ranks.job import Job, Outcome
from tests.ranks.build import Job as Built
from tests.ranks.build import write

ROOT = Path(__file__).parents[2]
KILLER = '''
"""A rule that kills the process it runs in, for some traces."""
import os, pathlib, signal
from hostgap.diagnosis.rule import Rule

class Killer(Rule):
    code = "HG999"
    name = "killer"
    title = "kills"
    advice = "none"

    def find(self, context, options):
        name = pathlib.Path(context.trace.file)
        if name.with_suffix(".kill").exists():
            if not name.with_suffix(".again").exists():
                name.with_suffix(".kill").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return iter(())
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(Built(6, host_us={2: 220}), tmp_path, name="rank{}.json")
    return tmp_path


@pytest.fixture
def killing(tmp_path_factory: pytest.TempPathFactory) -> Judging:
    rules = tmp_path_factory.mktemp("rules")
    (rules / "hg999_killer.py").write_text(KILLER)
    return Judging(folders=(rules,))


def jobs(folder: Path, judging: Judging) -> list[Job]:
    paths = sorted(folder.glob("*.json"))
    return [Job(i, str(path), 1, Options(), judging) for i, path in enumerate(paths)]


def comparable(outcomes: Sequence[Outcome]) -> list[bytes]:
    ordered = sorted(outcomes, key=lambda one: one.index)
    return [msgspec.json.encode(one.diagnosis) for one in ordered]


def test_a_pool_gives_what_one_process_gives(folder: Path) -> None:
    alone = diagnose_set([str(folder)], engine=Local(1))
    together = diagnose_set([str(folder)], engine=Local(2))
    assert msgspec.json.encode(alone) == msgspec.json.encode(together)


def test_a_killed_worker_takes_nothing_with_it(folder: Path, killing: Judging) -> None:
    (folder / "rank1.kill").touch()
    (folder / "rank4.kill").touch()
    outcomes = list(Local(2).outcomes(jobs(folder, killing)))
    assert sorted(one.index for one in outcomes) == list(range(6))
    assert all(one.diagnosis is not None for one in outcomes)
    assert not list(folder.glob("*.kill"))


def test_a_rank_that_kills_each_worker_is_given_up(folder: Path, killing: Judging) -> None:
    (folder / "rank1.kill").touch()
    (folder / "rank1.again").touch()
    outcomes = list(Local(2).outcomes(jobs(folder, killing)))
    assert sorted(one.index for one in outcomes) == list(range(6))
    failed = [one for one in outcomes if one.diagnosis is None]
    assert [one.index for one in failed] == [1]
    assert "was killed, each time" in str(failed[0].error)


def test_one_bad_trace_does_not_end_the_others(folder: Path) -> None:
    (folder / "rank3.json").write_text('{"traceEvents": [')
    found = diagnose_set([str(folder)], engine=Local(2))
    assert (found.summary.ranks, found.summary.failed, found.summary.compared) == (6, 1, 5)
    bad = found.ranks[3]
    assert (bad.label, bad.status, bad.diagnosis) == ("rank 3", "failed", None)
    assert bad.error is not None


def test_a_bug_that_one_trace_meets_loses_no_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hostgap.ranks import job

    real = job.load_trace

    def failing(path: str) -> object:
        if "rank3" in path or "all" in path:
            raise ZeroDivisionError("by zero")
        return real(path)

    monkeypatch.setattr(job, "load_trace", failing)
    found = diagnose_set([str(folder)], engine=Local(1))
    assert (found.summary.failed, found.summary.compared) == (1, 5)
    assert "internal error: ZeroDivisionError" in str(found.ranks[3].error)
    with pytest.raises(RuntimeError, match="by zero"):
        diagnose_set([str(folder / "rank3.json")], engine=Local(1))


def test_no_worker_outlives_its_pool(folder: Path) -> None:
    outcomes = Local(2).outcomes(jobs(folder, Judging()))
    next(outcomes)
    outcomes.close()  # type: ignore[attr-defined]
    import multiprocessing

    assert multiprocessing.active_children() == []


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_interrupted_at_once_and_cleanly(tmp_path: Path) -> None:
    write(Built(24, steps=400), tmp_path, name="rank{}.json")
    process = subprocess.Popen(
        [sys.executable, "-m", "hostgap", "analyze", str(tmp_path), "--jobs", "2", "-o", "r.json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    time.sleep(2.5)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, error = process.communicate(timeout=30)
    if process.returncode == 0:
        pytest.skip("the machine was faster")
    assert process.returncode == 130
    assert error == b"hostgap: interrupted\n"
    assert not list(tmp_path.glob("*r.json*"))


# --- Dask ---


@pytest.mark.filterwarnings("ignore")
def test_dask_with_a_worker_killed_midway(
    folder: Path, killing: Judging, capfd: pytest.CaptureFixture[str]
) -> None:
    distributed = pytest.importorskip("distributed")
    (folder / "rank1.kill").touch()
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        outcomes = list(Dask(cluster.scheduler_address).outcomes(jobs(folder, killing)))
        assert not list(folder.glob("*.kill")), "no worker was killed"
        assert sorted(one.index for one in outcomes) == list(range(6))
        local = list(Local(1).outcomes(jobs(folder, killing)))
        assert comparable(outcomes) == comparable(local)
        # and as the command has it
        shown = []
        for where in (["--engine", "dask", "--scheduler", cluster.scheduler_address], ["--jobs=1"]):
            assert run(["analyze", str(folder), "--format", "json", *where]) == 0
            shown.append(capfd.readouterr().out)
        assert shown[0] == shown[1]


@pytest.mark.filterwarnings("ignore")
def test_dask_gives_up_a_rank_that_kills_each_worker(folder: Path, killing: Judging) -> None:
    distributed = pytest.importorskip("distributed")
    (folder / "rank1.kill").touch()
    (folder / "rank1.again").touch()
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        outcomes = list(Dask(cluster.scheduler_address).outcomes(jobs(folder, killing)))
    assert sorted(one.index for one in outcomes) == list(range(6))
    assert [one.index for one in outcomes if one.diagnosis is None] == [1]


def test_dask_without_a_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(engines, "TIMEOUT_S", "1s")
    with pytest.raises(HostgapError, match="no Dask scheduler answers"):
        list(Dask("tcp://127.0.0.1:9").outcomes([]))


@pytest.mark.parametrize("address", ["", "rubbish", "tcp://", "tcp://host", "a b:1", "tcp://h:x"])
def test_dask_with_no_address(address: str) -> None:
    pytest.importorskip("distributed")
    with pytest.raises(HostgapError, match="that is no address"):
        list(Dask(address).outcomes([]))


def test_dask_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(HostgapError) as caught:
        list(Dask("tcp://127.0.0.1:9").outcomes([]))
    assert caught.value.hint == "pip install 'hostgap[dask]'"
