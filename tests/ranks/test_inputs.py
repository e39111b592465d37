"""Which traces are read: files, folders, patterns, links; and whose they are."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from hostgap.errors import TraceError
from hostgap.ranks import inputs as module
from hostgap.ranks.inputs import find_inputs
from hostgap.ranks.names import is_trace_name, named, recorded_rank, resolved


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{{}} {name}")


def files(*given: object) -> list[str]:
    return [Path(one.name).name for one in find_inputs(map(str, given)).traces]


def test_a_folder_stands_for_the_traces_in_it(tmp_path: Path) -> None:
    touch(tmp_path, "b.json", "a.json.gz", "c.sqlite", "notes.txt", ".hidden.json", "deep/d.json")
    assert files(tmp_path) == ["a.json.gz", "b.json", "c.sqlite"]
    assert find_inputs([str(tmp_path)]).several


def test_patterns(tmp_path: Path) -> None:
    touch(tmp_path, "rank0.json", "rank1.json", "other.txt", "deep/er/rank2.json")
    assert files(tmp_path / "rank*") == ["rank0.json", "rank1.json"]
    assert files(tmp_path / "**" / "*.json") == ["rank2.json", "rank0.json", "rank1.json"]
    with pytest.raises(TraceError, match="no trace matches"):
        find_inputs([str(tmp_path / "no*")])


def test_a_file_whose_name_looks_like_a_pattern(tmp_path: Path) -> None:
    touch(tmp_path, "rank[0].json", "rank0.json")
    found = find_inputs([str(tmp_path / "rank[0].json")])
    assert [Path(one.name).name for one in found.traces] == ["rank[0].json"]
    assert not found.several


def test_a_missing_file_is_its_readers_to_report(tmp_path: Path) -> None:
    assert files(tmp_path / "no.json") == ["no.json"]


def test_each_file_counts_once(tmp_path: Path) -> None:
    touch(tmp_path, "real.json")
    (tmp_path / "link.json").symlink_to("real.json")
    os.link(tmp_path / "real.json", tmp_path / "hard.json")
    found = find_inputs([str(tmp_path), str(tmp_path / "real.json")])
    assert len(found.traces) == 1
    assert len(found.notes) == 3
    assert all("the same file as another" in note for note in found.notes)


def test_a_rank_without_its_measurement_is_left_out_with_a_note(tmp_path: Path) -> None:
    touch(tmp_path, "rank0/measurement.json", "rank1/cpu_cuda.json.gz", "plots/x")
    found = find_inputs([str(tmp_path)])
    assert [Path(one.name).name for one in found.traces] == ["rank0"]
    assert found.notes == (f"{tmp_path}/rank1: left out: no measurement.json in it",)


def test_a_folder_named_twice_counts_once(tmp_path: Path) -> None:
    touch(tmp_path, "a.json", "b.json")
    assert files(tmp_path, f"{tmp_path}/.", tmp_path / "*.json") == ["a.json", "b.json"]


def test_what_is_no_file_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "rank0.json")
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "nowhere.json").symlink_to("gone")
    (tmp_path / "loop.json").symlink_to("loop.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "null.json").symlink_to("/dev/zero")
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.json")
        found = find_inputs([str(tmp_path)])
    names = [Path(one.name).name for one in found.traces]
    assert names == ["loop.json", "rank0.json"]  # a loop is its reader's to report
    assert len(found.notes) == 5
    shown = " ".join(found.notes)
    for word in ("a folder", "a link to nowhere", "not a regular file"):
        assert word in shown


def test_links_to_folders_are_not_followed_round(tmp_path: Path) -> None:
    touch(tmp_path, "a/rank0.json")
    (tmp_path / "a" / "up").symlink_to("..")
    assert files(tmp_path / "**" / "*.json") == ["rank0.json"]


def test_results_beside_traces_are_left_out(tmp_path: Path) -> None:
    touch(tmp_path, "rank0.json")
    (tmp_path / "report.json").write_text('{\n  "schema": "hostgap.diagnosis/1",\n  "x": 1}')
    (tmp_path / "serving.json").write_text("{}")
    found = find_inputs([str(tmp_path)])
    assert [Path(one.name).name for one in found.traces] == ["rank0.json"]
    assert "a result of hostgap's" in found.notes[0]


def test_merged_traces_are_not_counted_twice(tmp_path: Path) -> None:
    touch(tmp_path, "1700-TP-0.trace.json.gz", "1700-TP-1.trace.json.gz")
    touch(tmp_path, "merged-1700.trace.json.gz")
    found = find_inputs([str(tmp_path)])
    assert [one.said.label for one in found.traces] == ["TP 0", "TP 1"]
    assert "repeats the ranks' own files" in found.notes[0]
    # alone, it is what there is
    alone = find_inputs([str(tmp_path / "merged-1700.trace.json.gz")])
    assert len(alone.traces) == 1


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TraceError, match="no trace in this folder"):
        find_inputs([str(tmp_path)])
    with pytest.raises(TraceError, match="cannot be one of several"):
        find_inputs(["-", "a.json"])
    touch(tmp_path, "a.json", "b.json", "c.json")
    monkeypatch.setattr(module, "MOST_TRACES", 2)
    with pytest.raises(TraceError, match="over 2 traces"):
        find_inputs([str(tmp_path)])


@pytest.mark.parametrize(
    ("name", "role", "label", "rank"),
    [
        ("rank3.json", "worker", "rank 3", 3),
        ("kineto_rank_12.json.gz", "worker", "rank 12", 12),
        ("worker1_step_12.1694128201556.pt.trace.json", "worker", "rank 1", 1),
        ("nv_v100_dlrm_rank0.pt.trace.json", "worker", "rank 0", 0),
        ("x_dp0_pp0_tp1_dcp0_ep1_rank1.17.pt.trace.json.gz", "worker", "rank 1 (dp0 pp0 tp1)", 1),
        ("host_12.async_llm.17.pt.trace.json.gz", "frontend", "frontend (CPU only)", None),
        ("1700000000.5-TP-3.trace.json.gz", "worker", "TP 3", 3),
        ("a-TP-1-DP-1.trace.json.gz", "worker", "TP 1 DP 1", None),
        ("merged-17.trace.json.gz", "merged", "merged", None),
        ("outranked7.json", "worker", "outranked7.json", None),
        ("../../etc/rank9999999999.json", "worker", "../../etc/rank9999999999.json", None),
        ("trace.json", "worker", "trace.json", None),
    ],
)
def test_names(name: str, role: str, label: str, rank: int | None) -> None:
    said = named(name)
    assert (said.role, said.label, said.rank) == (role, label, rank)


def test_trace_names() -> None:
    assert is_trace_name("x.pt.trace.json.gz")
    assert not is_trace_name("measurement.json")
    assert not is_trace_name("x.json.part")


@pytest.mark.parametrize(
    ("info", "rank"),
    [
        ({"rank": 3, "world_size": 8}, 3),
        ({"rank": 0, "world_size": 1}, None),
        ({"rank": "3", "world_size": 8}, None),
        ({"rank": True, "world_size": 8}, None),
        ({"rank": -1, "world_size": 8}, None),
        ([], None),
        (None, None),
    ],
)
def test_recorded_ranks(info: object, rank: int | None) -> None:
    assert recorded_rank({"distributedInfo": info}) == rank


def test_ranks_by_what_traces_or_names_say() -> None:
    assert resolved([1, 0], [None, 5]) == ([1, 0], None)
    assert resolved([0, 0], [0, 1]) == ([0, 1], None)
    assert resolved([None, 0], [1, None]) == ([1, 0], None)
    assert resolved([0, 0], [None, None])[1] == "several traces are of rank 0: separate runs?"
    assert resolved([0, None], [None, None])[1] is not None
