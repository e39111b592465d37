from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hostgap.cli import COMMANDS, run
from hostgap.cli.attach import command
from hostgap.serving import attach, files, vllm
from tests.serving.fake import Fake, FakeSglang, FakeVllm, served


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "LOAD_S", 0.1)
    monkeypatch.setattr(files, "POLL_S", 0.05)
    monkeypatch.setattr(files, "SETTLE_S", 0.3)
    monkeypatch.setattr(vllm, "_POLL_S", 0.02)
    monkeypatch.delenv("HOSTGAP_API_KEY", raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "traces"
    made.mkdir()
    return made


@pytest.fixture
def server(folder: Path) -> Iterator[FakeVllm]:
    fake = FakeVllm(folder, ranks=2)
    with served(fake):
        yield fake


def line(fake: Fake, out: Path, *more: str) -> list[str]:
    engine = "vllm" if isinstance(fake, FakeVllm) else "sglang"
    where = ["--trace-dir", str(fake.folder), "-o", str(out), "--timeout", "5"]
    return ["attach", fake.url, "--engine", engine, *where, *more]


def test_short_help_is_the_one_in_the_list() -> None:
    assert command.get_short_help_str(limit=200) == COMMANDS["attach"]
    assert command.help is not None
    assert command.help.startswith(COMMANDS["attach"])


def test_vllm(server: FakeVllm, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(line(server, out)) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"vllm 0.33.0 at {server.url}, 4 requests running\n")
    assert "Time between tokens without the profiler: 12.50 ms (mean of" in said.out
    first, second, frontend = said.out.split("\n== ")[1:]
    for number, part in enumerate((first, second)):
        assert part.startswith(f"rank {number} (dp0 pp0 tp{number}): hostgap-")
        assert "GPU idle" in part
    assert frontend.startswith("frontend (CPU only): hostgap-")
    assert frontend.endswith("not diagnosed.\n")
    traces = sorted(path.name for path in out.glob("*.pt.trace.json.gz"))
    results = sorted(out.glob("*.diagnosis.json"))
    assert (len(traces), len(results)) == (3, 2)
    for result in results:
        diagnosis = json.loads(result.read_text())
        assert diagnosis["schema"] == "hostgap.diagnosis/1"
        assert diagnosis["steps"]["source"] == "annotation"
        assert f"{result.name.removesuffix('.diagnosis.json')}.pt.trace.json.gz" in traces
    # one line for each thing that was done
    done = [text for text in said.err.splitlines() if text.startswith("hostgap: recording")]
    assert len(done) == 1
    assert said.err.endswith(f"Wrote {out}: traces, diagnoses, serving.json\n")


def test_sglang(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(FakeSglang(folder, metrics=False)) as fake:
        assert run(line(fake, tmp_path / "out")) == 0
    said = capsys.readouterr().out
    assert "without the profiler: unknown: the server has no /metrics" in said
    assert said.count("\n== TP 0: hostgap-") == 1


def test_the_folder_is_asked_for(
    server: FakeVllm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert run(["attach", server.url, "--engine", "vllm", "-o", out]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "--trace-dir is missing" in first
    assert "--profiler-config" in second
    assert server.asked == []


def test_a_trace_that_supports_no_verdict(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.serving import fake as module

    nothing = module.frontend_trace()
    monkeypatch.setattr(module, "worker_trace", lambda _: nothing)
    with served(FakeSglang(folder)) as fake:
        assert run(line(fake, tmp_path / "out")) == 3
    (result,) = (tmp_path / "out").glob("*.diagnosis.json")
    assert json.loads(result.read_text())["trace"]["integrity"]["verdict"] == "unmeasurable"


def test_a_file_that_is_no_trace(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(FakeSglang(folder, damage="text")) as fake:
        assert run(line(fake, tmp_path / "out")) == 2
    assert "hostgap: error: " in capsys.readouterr().err


def test_one_rank_that_cannot_be_read_leaves_the_others(
    server: FakeVllm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from tests.serving import fake as module

    whole, made = module.worker_trace, []

    def one_damaged(step: str) -> bytes:
        made.append(step)
        return whole(step) if len(made) > 1 else gzip.compress(b'{"traceEvents": "none"}')

    monkeypatch.setattr(module, "worker_trace", one_damaged)
    out = tmp_path / "out"
    assert run(line(server, out)) == 3
    said = capsys.readouterr()
    assert said.err.count("hostgap: warning: ") == 1
    assert len(list(out.glob("*.diagnosis.json"))) == 1
    assert "GPU idle" in said.out


def test_key_of_the_environment(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOSTGAP_API_KEY", "very-secret")
    with served(FakeSglang(folder, key="very-secret")) as fake:
        assert run(line(fake, tmp_path / "out")) == 0
        assert fake.keys == {"Bearer very-secret"}
        assert run(line(fake, tmp_path / "other", "--api-key", "not-so-secret")) == 2
    said = capsys.readouterr()
    assert "secret" not in said.out + said.err
    for path in (tmp_path / "out").iterdir():
        assert b"secret" not in path.read_bytes()


def test_nobody_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    fake = FakeVllm(folder, url="http://127.0.0.1:9")
    assert run(line(fake, tmp_path / "out")) == 2
    errors = capsys.readouterr().err.splitlines()
    assert errors[0].startswith("hostgap: error: http://127.0.0.1:9: cannot be reached: ")
    assert len(errors) == 2
    assert not (tmp_path / "out").exists()


def test_ctrl_c(
    server: FakeVllm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(vllm, "_steps", interrupt)
    monkeypatch.setattr(attach, "scrape", lambda _: None)  # no waiting before the recording
    assert run(line(server, tmp_path / "out")) == 130
    assert capsys.readouterr().err.endswith("hostgap: interrupted\n")
    assert [path for method, path, _ in server.asked if method == "POST"] == [
        "/start_profile",
        "/stop_profile",
    ]
    assert not (tmp_path / "out").exists()
