from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from hostgap import samples
from hostgap.cli import COMMANDS, run
from hostgap.cli.samples import command
from hostgap.errors import HostgapError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_short_help_is_the_one_in_the_list() -> None:
    assert command.get_short_help_str(limit=200) == COMMANDS["samples"]
    assert command.help is not None
    assert command.help.startswith(COMMANDS["samples"])


def test_every_sample_is_a_trace_with_its_figures() -> None:
    entries = samples.samples()
    assert len({entry.name for entry in entries}) == len(entries) > 0
    for entry in entries:
        if entry.file.endswith(".sqlite"):
            assert entry.read().startswith(b"SQLite format 3\0"), entry.name
        else:
            trace = json.loads(gzip.decompress(entry.read()))
            assert trace["traceEvents"], entry.name
        assert entry.what.endswith("."), entry.name
        assert 0 < entry.unprofiled_step_ms < 1000, entry.name
        assert 0 < entry.traced_step_ms < 1000, entry.name


def test_lists_them_at_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["samples"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert max(map(len, captured.out.splitlines())) <= 80
    for entry in samples.samples():
        assert entry.name in captured.out
        assert f"{entry.unprofiled_step_ms:.2f}" in captured.out


def test_copies_into_the_current_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["samples", "eager"]) == 0
    assert (here / "eager.json.gz").read_bytes() == samples.sample("eager").read()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "Wrote eager.json.gz\nNext: hostgap analyze eager.json.gz\n"


def test_overwrites_only_with_force(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "eager.json.gz").write_text("mine")
    assert run(["samples", "eager"]) == 2
    assert (here / "eager.json.gz").read_text() == "mine"
    assert "--force" in capsys.readouterr().err
    assert run(["samples", "eager", "--force"]) == 0
    assert (here / "eager.json.gz").read_bytes() == samples.sample("eager").read()


def test_copies_to_a_file_or_a_folder(here: Path) -> None:
    (here / "sub").mkdir()
    data = samples.sample("gpu_bound").read()
    assert run(["samples", "gpu_bound", "-o", "sub"]) == 0
    assert (here / "sub" / "gpu_bound.json.gz").read_bytes() == data
    assert run(["samples", "gpu_bound.json.gz", "-o", "plain.json"]) == 0
    assert (here / "plain.json").read_bytes() == gzip.decompress(data)


def test_an_unknown_name_says_what_was_meant(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["samples", "egaer"]) == 2
    assert "did you mean eager?" in capsys.readouterr().err
    assert list(here.iterdir()) == []
    with pytest.raises(HostgapError, match="no sample 'zzz'") as caught:
        samples.sample("zzz")
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("samples: eager")


def test_an_output_without_a_name_is_a_mistake(here: Path) -> None:
    assert run(["samples", "-o", "x.json"]) == 2
    assert list(here.iterdir()) == []
