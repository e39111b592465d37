"""Options that several commands have: what is no value of theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hostgap.cli import run

TRACE = Path(__file__).parents[2] / "sample_traces" / "eager.json.gz"
BUDGET = ["--budget", "sync_calls_per_step=0"]


@pytest.mark.parametrize(
    "command",
    [
        "profile --timeout nan",
        "profile --temperature nan",
        "fix --tolerance nan",
        "fix --time-limit nan",
        "attach http://127.0.0.1:9 --timeout nan",
    ],
)
def test_nan_is_no_number(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command.split()) == 2
    captured = capsys.readouterr()
    assert "nan is no number" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["gate", "a.json", *BUDGET], 2),
        (["gate", str(TRACE), *BUDGET, "-o", "a.json"], 0),
        (["compare", str(TRACE), "a.json"], 2),
        (["compare", str(TRACE), str(TRACE), "-o", "a.json"], 0),
        (["fix", "--published", "-o", "a.json"], 0),
        (["profile", "-o", "a.json", "--defect", "no such"], 2),
    ],
)
def test_links_in_a_circle(
    command: list[str],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.json").symlink_to("b.json")
    Path("b.json").symlink_to("a.json")
    assert run(command) == code
    assert "internal error" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["analyze", ""],
        ["analyze", str(TRACE), ""],
        ["analyze", str(TRACE), "-o", ""],
        ["compare", str(TRACE), ""],
        ["gate", "", *BUDGET],
        ["gate", str(TRACE), "--baseline", ""],
        ["redact", "", "-o", "a.json"],
        ["report", ""],
        ["report", str(TRACE), "--against", ""],
        ["samples", "eager", "-o", ""],
        ["tables", "", "-o", "tables"],
        ["profile", "-o", ""],
    ],
)
def test_an_empty_text_is_not_the_current_folder(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.json.gz").write_bytes(TRACE.read_bytes())
    assert run(command) == 2
    captured = capsys.readouterr()
    assert "an empty text is no path" in captured.err
    assert captured.out == ""
    assert [path.name for path in Path().iterdir()] == ["a.json.gz"]


@pytest.mark.parametrize("command", [["gate", "run", *BUDGET], ["compare", "run", "run"]])
def test_no_output_replaces_a_measurement(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    kept = Path("run/measurement.json")
    kept.parent.mkdir()
    kept.write_text("{}")
    assert run([*command, "-o", str(kept), "--force"]) == 2
    assert "that is what is read" in capsys.readouterr().err
    assert kept.read_text() == "{}"
