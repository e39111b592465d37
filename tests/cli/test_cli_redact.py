from __future__ import annotations

import json
from pathlib import Path

import pytest

from hostgap.cli import COMMANDS, run
from hostgap.cli.redact import command

EVENT = {"ph": "X", "cat": "python_function", "name": "/home/al/acme.py(3): f", "ts": 1.5, "dur": 2}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [EVENT], "traceName": "x"}))
    return path


def test_short_help_is_the_one_in_the_list() -> None:
    assert command.get_short_help_str(limit=200) == COMMANDS["redact"]
    assert command.help is not None
    assert command.help.startswith(COMMANDS["redact"])


def test_writes_the_copy_and_one_line(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = trace.with_name("clean.json")
    assert run(["redact", str(trace), "-o", str(out)]) == 0
    assert json.loads(out.read_text())["traceEvents"][0]["name"] == "dir1/acme.py(3): f"
    captured = capsys.readouterr()
    assert captured.out == ""
    size = trace.stat().st_size
    assert captured.err == f"Wrote {out}: 2 strings changed in {size} bytes of JSON\n"


def test_also(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = trace.with_name("clean.json")
    assert run(["redact", str(trace), "-o", str(out), "--also", "ACME", "--also", "zzz"]) == 0
    assert json.loads(out.read_text())["traceEvents"][0]["name"] == "dir1/redacted.py(3): f"
    assert run(["redact", str(trace), "-o", str(out), "--also", "ab"]) == 2
    assert "'ab' is too short" in capsys.readouterr().err


def test_overwrites_only_with_force(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = trace.with_name("clean.json")
    out.write_text("mine")
    assert run(["redact", str(trace), "-o", str(out)]) == 2
    assert out.read_text() == "mine"
    assert "--force" in capsys.readouterr().err
    assert run(["redact", str(trace), "-o", str(out), "--force"]) == 0
    assert out.read_text() != "mine"


def test_the_trace_is_no_output(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The copy is for others; whoever makes it needs the original."""
    before = trace.read_bytes()
    link = trace.with_name("link.json")
    link.symlink_to(trace)
    for source, out in ((trace, trace), (trace, link), (link, trace)):
        assert run(["redact", str(source), "-o", str(out), "--force"]) == 2
        assert "that is what is read" in capsys.readouterr().err
    assert trace.read_bytes() == before


def test_damage_is_announced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "t.json"
    source.write_text('[{"ph": "X", "name": "/home/al')
    assert run(["redact", str(source), "-o", str(tmp_path / "o.json")]) == 0
    err = capsys.readouterr().err
    assert "hostgap: note:" in err
    assert "unfinished string" in err


def test_a_file_that_is_no_trace_is_two_lines_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "t.sqlite"
    source.write_bytes(b"SQLite format 3\0" + bytes(64))
    assert run(["redact", str(source), "-o", str(tmp_path / "o.json")]) == 2
    err = capsys.readouterr().err
    assert "the database is damaged" in err
    assert len(err.splitlines()) <= 2
    assert run(["redact", str(tmp_path / "none.json"), "-o", str(tmp_path / "o.json")]) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["t.sqlite"]
