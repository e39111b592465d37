"""The timeline's data: columns come back as they were, and nothing is lost without being said."""

from __future__ import annotations

import base64
import itertools
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import traces
from hypothesis import given
from hypothesis import strategies as st

from hostgap import examine, load_trace
from hostgap.analysis.causes import Cause
from hostgap.analysis.examine import Analysis
from hostgap.analysis.metrics import diagnose
from hostgap.diagnosis.judge import Judging, judge
from hostgap.report import thinning
from hostgap.report.geometry import geometry
from hostgap.report.kernels import kernels
from hostgap.report.names import LEFT_OUT, Names
from hostgap.report.overview import covered
from hostgap.report.packing import LARGEST, Packer
from hostgap.report.timeline import timeline

SAMPLES = Path(__file__).parents[2] / "sample_traces"


class Unpacked:
    """What timeline_data.js does, in Python."""

    def __init__(self, blob: str) -> None:
        self.bytes = np.frombuffer(zlib.decompress(base64.b64decode(blob)), np.uint8)

    def column(self, spec: list[int]) -> np.ndarray[Any, Any]:
        offset, planes, n = spec
        data = self.bytes[offset : offset + planes * n].reshape(planes, n).astype(np.int64)
        return sum((data[i] << (8 * i) for i in range(planes)), np.zeros(n, np.int64))

    def summed(self, spec: list[int]) -> np.ndarray[Any, Any]:
        return np.cumsum(self.column(spec))


def made(path: Path) -> tuple[Analysis, dict[str, Any], list[str]]:
    analysis = examine(load_trace(path))
    diagnosis = judge(diagnose(analysis), analysis, Judging())
    found = timeline(analysis, diagnosis)
    assert found is not None
    return analysis, *found


# --- packing -------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, LARGEST))))
def test_columns_come_back(columns: list[list[int]]) -> None:
    packer = Packer()
    specs = [packer.add(np.array(values, np.int64)) for values in columns]
    unpacked = Unpacked(packer.blob())
    for values, spec in zip(columns, specs, strict=True):
        assert unpacked.column(spec).tolist() == values


def test_what_a_script_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="beyond"):
        Packer().add(np.array([LARGEST + 1]))


# --- names ---------------------------------------------------------------------------------------


def test_names_are_short_safe_and_each_there_once() -> None:
    texts = ("rare", "a\u202eb", "k" * 10_000, "f of T object at 0x7f01", "f of T object at 0x7f02")
    names = Names(texts, np.array([1, 5, 2, 3, 3], np.int64))
    assert names.texts[0] == ""
    assert names.texts[1] == r"a\u202eb"  # the commonest first
    assert names.texts.count("f of T") == 1
    assert max(map(len, names.texts)) < 300
    shown = [names.texts[i] for i in names.of(np.array([0, -1, 3, 4]))]
    assert shown == ["rare", "", "f of T", "f of T"]


def test_very_many_names_are_cut_and_counted() -> None:
    texts = tuple(f"{i:06}" + "n" * 100 for i in range(40_000))
    names = Names(texts, np.ones(len(texts), np.int64))
    assert names.left_out == 10_000
    assert names.texts[names.of(np.array([39_999]))[0]] == LEFT_OUT
    assert sum(map(len, names.texts)) < 2_500_000


# --- bins ----------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 200), min_size=2, max_size=20, unique=True),
    st.lists(st.integers(-10, 210), min_size=2, max_size=9, unique=True),
)
def test_bins_hold_what_is_covered(cuts: list[int], edges: list[int]) -> None:
    points = sorted(cuts)[: len(cuts) // 2 * 2]
    intervals = list(itertools.batched(points, 2)) if hasattr(itertools, "batched") else []
    intervals = intervals or list(zip(points[::2], points[1::2], strict=True))
    start, end = (np.array([one[i] for one in intervals], np.int64) for i in (0, 1))
    cells = sorted(edges)
    expected = [
        sum(max(0, min(high, b) - max(low, a)) for a, b in intervals)
        for low, high in itertools.pairwise(cells)
    ]
    assert covered(start, end, np.array(cells, np.int64)).tolist() == expected


# --- timelines -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["eager_item.json.gz", "cuda_graph.json.gz", "eager_item.sqlite"])
def test_every_event_is_there(name: str) -> None:
    analysis, data, notes = made(SAMPLES / name)
    trace, unpacked = analysis.trace, Unpacked(data["blob"])
    sources = {
        "stream": trace.gpu_ops,
        "calls": trace.api_calls,
        "ops": trace.host_ops,
        "frames": trace.frames,
    }
    assert not any("merged" in note for note in notes)
    for kind, source in sources.items():
        table = data["tables"][kind]
        start = unpacked.summed(table["start"])
        assert len(start) == len(source)
        length = unpacked.column(table["dur"])
        assert length.sum() == np.maximum(source.end - source.start, 0).sum()
        assert not unpacked.column(table["many"]).any()
    call = unpacked.column(data["tables"]["stream"]["call"])
    assert np.array_equal(call - 1, trace.gpu_ops.call)  # both in order of start


def test_idle_pieces_and_bins_add_up_to_the_diagnosis() -> None:
    analysis, data, _ = made(SAMPLES / "eager_item.json.gz")
    unpacked = Unpacked(data["blob"])
    (device,) = analysis.devices.values()
    parts = data["tables"]["parts"]
    cause, length = unpacked.column(parts["cause"]), unpacked.column(parts["dur"])
    by_cause = device.pieces.by_cause()
    assert {Cause(c): int(length[cause == c].sum()) for c in np.unique(cause)} == by_cause
    binned = {
        one["series"]: int(unpacked.column(one["column"]).sum())
        for one in data["overview"]["devices"][0]
    }
    assert {Cause(c): ns for c, ns in binned.items() if c >= 0} == by_cause


def test_rows_do_not_overlap() -> None:
    _, data, _ = made(SAMPLES / "eager_item.json.gz")
    unpacked = Unpacked(data["blob"])
    for kind in ("stream", "calls", "ops", "frames"):
        table = data["tables"][kind]
        start, length = unpacked.summed(table["start"]), unpacked.column(table["dur"])
        key = unpacked.column(table["lane"]) * 100 + unpacked.column(table["depth"])
        for row in np.unique(key):
            mine = key == row
            assert (start[mine][1:] >= (start + length)[mine][:-1] - 1000).all()


def test_large_traces_are_merged_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinning, "BUDGET", 12_000)
    analysis, data, notes = made(SAMPLES / "eager_item.json.gz")
    unpacked = Unpacked(data["blob"])
    shown, merged = 0, 0
    for kind in ("stream", "calls", "ops", "frames"):
        many = unpacked.column(data["tables"][kind]["many"])
        shown += int((many == 0).sum())
        merged += int(many.sum())
    trace = analysis.trace
    tables = (trace.gpu_ops, trace.api_calls, trace.host_ops, trace.frames)
    total = sum(len(table) for table in tables)
    assert shown + merged == total
    assert shown < 14_000
    assert any(f"{merged:,} are merged" in note for note in notes)
    low, high = data["detail"]
    first = analysis.steps.boundaries[analysis.chosen.start]
    assert 0 < low < high
    assert any(one["spots"] and low <= one["spots"][0][0] for one in data["findings"].values())
    assert first == low + min(int(analysis.clock.to_gpu(t.start[:1])[0]) for t in tables if len(t))


def test_times_of_another_age_are_left_out(tmp_path: Path) -> None:
    trace = traces.steps()
    for event in trace.events:
        event["ts"] += 1.7e15
    trace.event("cpu_op", "early", 0, 5)
    _, data, notes = made(trace.write(tmp_path / "ages.json"))
    assert any("as long: 1 of the events" in note for note in notes)
    assert data["length"] < 10**7
    assert "early" not in data["names"]
    assert len(data["steps"]) == 6


def test_findings_name_the_calls_that_they_are_about(tmp_path: Path) -> None:
    _, data, _ = made(traces.steps().write(tmp_path / "steps.json"))
    unpacked = Unpacked(data["blob"])
    marks = data["findings"]["HG201-1"]
    assert len(unpacked.column(marks["calls"])) > 0
    assert all(0 <= low < high <= data["length"] for low, high in marks["spots"])


def test_whole_graphs_are_drawn_too() -> None:
    _, data, _ = made(SAMPLES / "cuda_graph_graphs.sqlite")
    assert data["tables"]["stream"]["start"][2] == 5


# --- kernels -------------------------------------------------------------------------------------


def test_kernels_are_counted_and_shaped(tmp_path: Path) -> None:
    path = traces.steps(count=6, kernels=20).write(tmp_path / "steps.json")
    found = kernels(examine(load_trace(path)), geometry(path))
    assert found.count == 5 * 20  # all steps but the first, which fills the pipeline
    assert found.total_ns == 5 * 20 * 2_000
    assert [kernel.name for kernel in found.rows] == ["gemm_0", "gemm_1", "gemm_2"]
    assert sum(kernel.count for kernel in found.rows) == found.count
    first = found.rows[0]
    assert (first.kind, first.median_ns, first.interval_ns) == ("gemm", 2_000, 20_000)
    assert first.geometry is not None
    assert (first.geometry.grid, first.geometry.block) == ((4, 2, 1), (128, 1, 1))
    assert first.geometry.occupancy == pytest.approx(0.37)


def test_geometry_of_what_cannot_be_read_is_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"traceEvents": [{"ph": "X", ', encoding="utf-8")
    assert geometry(broken) == {}
    assert geometry(SAMPLES / "eager_item.sqlite") != {}
