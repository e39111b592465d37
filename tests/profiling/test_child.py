"""Child processes: what they answer, and what is said when they cannot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hostgap.cli import run
from hostgap.errors import ConfigError, TargetError
from hostgap.profiling import requests as r
from hostgap.profiling.bench import Built, Proof, Variant
from hostgap.profiling.child import Session
from hostgap.profiling.target import TargetSpec
from hostgap.profiling.worker import Child, _raised
from tests.profiling.build import measurement
from tests.profiling.cpu_child import BEGIN

torch = pytest.importorskip("torch", reason="torch is not installed")
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session in this process, as if there were a GPU; what needs none runs on the CPU."""
    here = measurement().environment
    monkeypatch.setattr("hostgap.profiling.environment.environment", lambda: here)
    return Session()


def test_a_variant_is_built_and_proved_against_another(session: Session) -> None:
    spec = TargetSpec(preset="tiny", defects=("eos_read", "list_upload", "qkv_split"))
    welcome = session.handle(r.Hello(spec))
    assert welcome.defects == ("eos_read", "list_upload", "qkv_split")
    as_is, fixed = Variant(welcome.defects), Variant(("list_upload",))
    assert isinstance(session.handle(r.Build(as_is)), Built)
    proof = session.handle(r.Prove(as_is, fixed, 8, 1e-3))
    assert isinstance(proof, Proof)
    assert proof.equal, proof.why
    assert proof.steps >= 8


def test_a_child_ends_with_a_hostgap_that_is_killed(tmp_path: Path) -> None:
    """However busy it is: its GPU must be given back."""
    target = tmp_path / "long.py"
    target.write_text(
        "import os, pathlib, time\n"
        "def step():\n"
        f"    pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n"
        "    time.sleep(600)\n",
        encoding="utf-8",
    )
    parent = (
        "from hostgap.profiling import requests as r, worker\n"
        "from hostgap.profiling.bench import Variant\n"
        "from hostgap.profiling.target import TargetSpec\n"
        f"worker._BEGIN = {BEGIN!r}\n"
        f"with worker.Child(TargetSpec(target={str(target)!r} + ':step')) as child:\n"
        "    child.ask(r.Measure(Variant(), 1, 5, 1), r.Measured)\n"
    )
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", parent], cwd=root)
    pid = 0
    for _ in range(600):
        if (tmp_path / "pid").exists() and (text := (tmp_path / "pid").read_text(encoding="utf-8")):
            pid = int(text)
            break
        time.sleep(0.1)
    assert pid
    process.kill()
    process.wait()
    for _ in range(100):
        if not running(pid):
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError("it went on")


def running(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")


@no_gpu
def test_without_a_gpu_a_child_says_so() -> None:
    with pytest.raises(ConfigError, match="no CUDA device") as caught:
        Child(TargetSpec(preset="tiny"))
    assert caught.value.hint is not None
    assert "hostgap samples" in caught.value.hint


@no_gpu
def test_profile_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["profile"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no CUDA device" in captured.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere.py"], "no such script"),
        (["--batch", "0"], "not a list of batch sizes"),
        (["--batch", "1,x"], "not a list of batch sizes"),
        (["decodr"], "no target 'decodr'"),
        (["decoder", "--", "--fast"], "only a script takes arguments"),
        (["--temperature", "0"], "0"),
        (["--steps", "1"], "1"),
    ],
)
def test_what_profile_refuses(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["profile", *args]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.splitlines()) <= 2


def test_an_existing_folder_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("x", encoding="utf-8")
    assert run(["profile", "-o", str(tmp_path)]) == 2
    assert "is no run of hostgap" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "message", "hint"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "died (SIGSEGV)", None),
        (
            "import sys; print('no driver', file=sys.stderr); sys.exit(9)",
            "exit code 9",
            "no driver",
        ),
        ("import time; time.sleep(60)", "no answer within 1 s", None),
    ],
)
def test_a_process_that_dies_or_hangs(
    monkeypatch: pytest.MonkeyPatch, code: str, message: str, hint: str | None
) -> None:
    monkeypatch.setattr("hostgap.profiling.worker._BEGIN", code)
    with pytest.raises(TargetError) as caught:
        Child(TargetSpec(target="mine:step"), timeout_s=1.0 if "sleep" in code else 30.0)
    assert message in caught.value.message
    assert caught.value.hint == hint


def test_little_room_is_enough_for_all_that_is_timed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text(
        "import hostgap\n"
        "at = 0\n"
        "def body():\n"
        "    global at\n"
        "    at += 1\n"
        "    assert at <= 6\n"
        "def reset(case):\n"
        "    global at\n"
        "    at = 0\n"
        "ready = hostgap.Workload(body=body, reset=reset, room=6, tokens=3)\n",
        encoding="utf-8",
    )
    monkeypatch.setattr("hostgap.profiling.worker._BEGIN", BEGIN)
    with Child(TargetSpec(target=f"{tmp_path / 'job.py'}:ready")) as child:
        measured = child.ask(r.Measure(Variant(), 2, 2, 3), r.Measured)
        assert measured.span_ns is not None
        assert measured.tokens == 3
        with pytest.raises(TargetError, match="room for 6 steps; 7 are needed") as caught:
            child.ask(r.Measure(Variant(), 2, 4, 3), r.Measured)
        assert caught.value.hint == (
            "give the Workload room for 7; a timed block takes fewer with --steps"
        )


def test_a_script_that_exits_says_what_it_wrote_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = tmp_path / "job.py"
    job.write_text(
        "import argparse\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--model', required=True)\n"
        "parser.parse_args()\n",
        encoding="utf-8",
    )
    monkeypatch.setattr("hostgap.profiling.worker._BEGIN", BEGIN)
    with Child(TargetSpec(target=str(job))) as child, pytest.raises(TargetError) as caught:
        child.ask(r.Measure(Variant(), 2, 2, 2), r.Measured)
    assert caught.value.message == f"{job} exited with code 2 before its first step"
    assert caught.value.hint == "job.py: error: the following arguments are required: --model"


def test_what_a_target_prints_is_not_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = (
        "import os\n"
        "from hostgap.profiling import child, environment\n"
        "from tests.profiling.build import measurement\n"
        "environment.environment = lambda: measurement().environment\n"
        "load = child.load_target\n"
        "def loud(spec):\n"
        "    print('weights'); os.write(1, b'from C'); return load(spec)\n"
        "child.load_target = loud\n"
    )
    monkeypatch.setattr("hostgap.profiling.worker._BEGIN", noisy + "child.main()")
    with Child(TargetSpec(preset="tiny")) as child:
        assert "rope_unfused" in child.welcome.defects
        assert child.last_line() is not None


def test_closing_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import hostgap.profiling.environment as e\n"
        "from tests.profiling.build import measurement\n"
        "e.environment = lambda: measurement().environment\n"
        "from hostgap.profiling.child import main; main()"
    )
    monkeypatch.setattr("hostgap.profiling.worker._BEGIN", code)
    with Child(TargetSpec(preset="tiny")) as child:
        process = child._process
        os.kill(process.pid, signal.SIGINT)  # Ctrl-C reaches the whole group
        child.ask(r.Drop(Variant()), None)
        assert process.poll() is None
    assert process.returncode is not None


def test_what_a_target_starts_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "time.sleep(60)"
    )
    monkeypatch.setattr("hostgap.profiling.worker._BEGIN", code)
    begun = time.monotonic()
    with pytest.raises(TargetError, match="no answer"):
        Child(TargetSpec(target="mine:step"), timeout_s=1.0)
    assert time.monotonic() - begun < 20  # and not when the grandchild, which has the pipe, ends


def test_the_traceback_of_the_child_is_the_cause_of_the_error() -> None:
    failure = r.Failure("TargetError", "it raised", None, "Traceback: in serve.py, line 7")
    error = _raised(failure)
    assert isinstance(error, TargetError)
    assert "serve.py, line 7" in str(error.__cause__)
    assert _raised(r.Failure("internal", "KeyError: 3")).exit_code == 70
