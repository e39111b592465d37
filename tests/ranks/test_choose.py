"""`hostgap analyze FOLDER --rank N`: one rank's whole diagnosis."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hostgap.cli import run
from hostgap.errors import TraceError
from hostgap.ranks.choose import choose
from hostgap.ranks.inputs import find_inputs
from tests.ranks.build import Job, write

SAMPLES = Path(__file__).parents[2] / "sample_traces"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    traces = tmp_path / "traces"
    traces.mkdir()
    write(Job(4, host_us={1: 320}), traces)
    return traces


def chosen(rank: int, *given: object) -> str:
    return Path(choose(find_inputs(map(str, given)), rank).name).name


def refusal(capsys: pytest.CaptureFixture[str], *args: object) -> list[str]:
    assert run(["analyze", *map(str, args)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_it_is_the_diagnosis_that_the_set_holds(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def result(*args: str) -> dict[str, Any]:
        assert run(["analyze", str(folder), "--jobs", "1", "--format", "json", *args]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    together = result()
    for one in together["ranks"]:
        assert result("--rank", str(one["rank"])) == one["diagnosis"]


def test_it_is_printed_as_one_trace(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", str(folder), "--rank", "1"]) == 0
    alone = capsys.readouterr().out
    assert run(["analyze", str(folder / "rank1.json.gz")]) == 0
    assert alone == capsys.readouterr().out


def test_an_unknown_rank_lists_those_that_exist(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, folder, "--rank", 9)
    assert said == ["hostgap: error: --rank 9: there is no such rank, but 0 to 3"]
    (folder / "rank1.json.gz").unlink()
    (folder / "settings.json").write_text('{"a": 1}')
    assert refusal(capsys, folder, "--rank", 1)[0].endswith("but 0, 2 to 3")
    assert refusal(capsys, folder / "rank2.json.gz", "--rank", 0)[0].endswith("but 2")


def test_what_the_trace_says_goes_before_its_name(folder: Path) -> None:
    (folder / "rank0.json.gz").rename(folder / "x.json.gz")
    (folder / "rank3.json.gz").rename(folder / "rank0.json.gz")
    assert chosen(0, folder) == "x.json.gz"
    assert chosen(3, folder) == "rank0.json.gz"


def test_traces_that_do_not_say_go_by_their_names(tmp_path: Path) -> None:
    write(Job(2), tmp_path, recorded=False)
    assert chosen(1, tmp_path) == "rank1.json.gz"
    assert chosen(1, tmp_path / "rank*") == "rank1.json.gz"


def test_two_runs_in_one_folder_are_ambiguous(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "again.json.gz").write_bytes((folder / "rank2.json.gz").read_bytes())
    said = refusal(capsys, folder, "--rank", 2)
    assert "several traces are of it" in said[0]
    assert "again.json.gz" in said[0]
    assert len(said) == 2


def test_without_numbers_there_is_nothing_to_choose() -> None:
    with pytest.raises(TraceError, match="neither the traces nor their names"):
        choose(find_inputs([str(SAMPLES / "eager.json.gz"), str(SAMPLES / "compile.json.gz")]), 0)


def test_a_missing_file_is_said_to_be_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, "no/such.json", "--rank", 0)[0].endswith("no/such.json: no such file")


def test_only_the_beginning_of_the_others_is_read(folder: Path) -> None:
    for rank in (0, 2, 3):
        path = folder / f"rank{rank}.json.gz"
        path.write_bytes(path.read_bytes()[:-200])
    (folder / "rank0.json.gz").write_bytes(b"\x1f\x8b\x08\x00damaged")
    assert chosen(1, folder) == "rank1.json.gz"
    assert chosen(0, folder) == "rank0.json.gz"


def test_pipes_are_not_touched_but_for_the_one_chosen(folder: Path) -> None:
    pipe = folder.parent / "rank7.json"
    os.mkfifo(pipe)
    assert chosen(7, folder, pipe) == "rank7.json"
    assert chosen(1, folder, pipe) == "rank1.json.gz"


def test_standard_input_is_no_choice(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--rank" in refusal(capsys, "-", "--rank", 0)[0]
    assert "--rank" in refusal(capsys, SAMPLES, "--rank", -1)[0]


def test_a_page_of_several_traces(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, report = tmp_path / "r.html", tmp_path / "report.html"
    assert run(["analyze", str(folder), "--jobs", "1", "-o", str(page)]) == 0
    assert run(["report", str(folder), "-o", str(report)]) == 0
    assert page.read_bytes() == report.read_bytes()
    assert capsys.readouterr().out == ""
    assert run(["analyze", str(folder), "--jobs", "1", "--format", "html"]) == 0
    assert capsys.readouterr().out.encode() == page.read_bytes()


def test_a_page_without_the_traces_has_no_timelines(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hostgap.report import set as module

    def gone(*_: object, **__: object) -> None:
        raise TraceError("rank0.json.gz: no such file")

    monkeypatch.setattr(module, "load_part", gone)
    page = tmp_path / "r.html"
    assert run(["analyze", str(folder), "--jobs", "1", "-o", str(page)]) == 0
    assert "could not be read again" in page.read_text()
