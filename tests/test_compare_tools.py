"""The comparison with other tools: its oracle, its limits, and what its tables say."""

from __future__ import annotations

import gzip
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hostgap.analysis.examine import Options, examine
from hostgap.analysis.metrics import diagnose
from hostgap.trace.load import load_trace

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
SAMPLES = sorted(
    [*(ROOT / "sample_traces").glob("*.gz"), *(ROOT / "sample_traces").glob("*.sqlite")]
)
LOCAL = (
    "oracle",
    "measure",
    "tools",
    "compare_tables",
    "compare_tools",
    "bench_nsys",
    "make_trace",
)


@pytest.fixture(scope="module")
def benchmark_module() -> Iterator[Any]:
    """Imports a module of the benchmarks: they import each other as the scripts do."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in LOCAL:
            sys.modules.pop(name, None)


# --- the oracle ------------------------------------------------------------------------------


def event(cat: str, ts: str, dur: str, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": cat, "ts": ts, "dur": dur, "args": args}


def test_the_oracle_by_hand(benchmark_module: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    events = [
        event("kernel", "5108607203809.867", "2.000", correlation=1),
        event("kernel", "5108607203810.867", "3.001", correlation=2),  # 1 us of it beside the first
        event("gpu_memcpy", "5108607203820.000", "0.500", correlation=3),
        event("cuda_runtime", "5108607203800.000", "1.000", correlation=1),
        event("cuda_driver", "5108607203801.000", "1.000", correlation=2),
        event("cuda_runtime", "5108607203802.000", "1.000", correlation=3),
        event("cuda_sync", "5108607203830.000", "9.000", stream=7),
        event("cpu_op", "5108607203800.000", "90.000"),
    ]
    text = json.dumps({"traceEvents": events})
    for key in ("ts", "dur"):  # Kineto writes numbers
        for one in events:
            text = text.replace(f'"{key}": "{one[key]}"', f'"{key}": {one[key]}')
    path.write_text(text)
    found = benchmark_module("oracle").answers_of(path)
    assert (found.window_ns, found.busy_ns, found.idle_ns) == (10_633, 4_501, 6_132)
    assert (found.kernel_window_ns, found.kernel_busy_ns) == (4_001, 4_001)
    assert (found.gpu_ops, found.kernels, found.launches) == (3, 2, 2)


def test_events_one_by_one_are_those_of_the_whole(benchmark_module: Any, tmp_path: Path) -> None:
    oracle = benchmark_module("oracle")
    path = tmp_path / "t.json"
    packed = ROOT / "sample_traces" / "compile_graphs.json.gz"
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    assert oracle.answers_of(path, apart=True) == oracle.answers_of(path)
    assert oracle.answers_of(path) == oracle.answers_of(packed)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_hostgap_has_the_exact_figures(path: Path, benchmark_module: Any) -> None:
    exact = benchmark_module("oracle").answers_of(path)
    found = diagnose(examine(load_trace(path), Options(window="trace")))
    (device,) = found.devices
    assert (device.window_ns, device.active_ns, device.idle_ns) == (
        exact.window_ns,
        exact.busy_ns,
        exact.idle_ns,
    )
    assert device.kernel_busy_ns == exact.kernel_busy_ns
    assert device.kernels == exact.kernels
    assert found.counts.launches + found.counts.graph_launches == exact.launches


# --- limits ----------------------------------------------------------------------------------


def test_a_command_that_passes_a_limit_is_stopped(benchmark_module: Any) -> None:
    measure = benchmark_module("measure")
    forever = measure.Command("x", [sys.executable, "-c", "import time; time.sleep(600)"])
    with pytest.raises(measure.Passed, match="more than 1 s"):
        measure.attempt(forever, measure.Limits(seconds=1))
    if sys.platform == "linux":
        code = "import time; kept = b'x' * 200_000_000; time.sleep(600)"
        greedy = measure.Command("x", [sys.executable, "-c", code])
        with pytest.raises(measure.Passed, match="more than 100 MB of memory"):
            measure.attempt(greedy, measure.Limits(seconds=60, mb=100))


def test_a_command_that_fails_says_why(benchmark_module: Any, tmp_path: Path) -> None:
    measure = benchmark_module("measure")
    bad = measure.Command("x", [sys.executable, "-c", "raise SystemExit('no such trace')"])
    with pytest.raises(measure.Failed, match=r"exit code 1: no such trace") as raised:
        measure.attempt(bad)
    assert not isinstance(raised.value, measure.Passed)
    out = tmp_path / "out"
    good = measure.Command("x", [sys.executable, "-c", "print('said')"], out=out)
    run = measure.attempt(good, measure.Limits(seconds=60))
    assert out.read_text() == "said\n"
    assert run.cpu_s > 0
    assert run.peak_mb > 1


def test_nsys_where_there_is_one(
    benchmark_module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = benchmark_module("peer_tools")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tools.nsys_tools() == []
    assert tools.nsys_version() == ""
    nsys = tmp_path / "nsys"
    text = 'Time (%),Total Time (ns),Instances,Name\n60.0,600,3,"f(int, int)"\n40.0,400,2,g'
    nsys.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n\n{text}\n\nEND\n")
    nsys.chmod(0o755)
    stats, analyze = tools.nsys_tools()
    benchmark_module("measure").attempt(stats.command(tmp_path / "x.sqlite", tmp_path))
    assert stats.said(tmp_path).kernels == 5
    assert analyze.said(tmp_path).kernels is None
    (tmp_path / "stats.csv").write_text("SKIPPED: x.sqlite does not contain CUDA kernel data.\n")
    assert stats.said(tmp_path).note.startswith("SKIPPED")


# --- tables ----------------------------------------------------------------------------------


def test_what_did_not_run_is_said(benchmark_module: Any) -> None:
    tables, tools = benchmark_module("compare_tables"), benchmark_module("peer_tools")
    oracle = {
        "window_ns": 1000, "busy_ns": 400, "idle_ns": 600, "kernel_window_ns": 900,
        "kernel_busy_ns": 300, "gpu_ops": 3, "kernels": 2, "launches": 1,
    }  # fmt: skip

    def one(name: str, error: str = "", **said: Any) -> dict[str, Any]:
        figures = {"window_ns": 1000, "idle_ns": 600, "kernels": 2, "launches": 1, "note": ""}
        run = {"cpu_s": 2.0, "peak_mb": 50.0, "wall_s": 2.0}
        return {
            name: {"error": error, "runs": [], "said": None}
            if error
            else {"error": "", "runs": [run], "said": figures | said}
        }

    trace = {
        "name": "t.json", "kind": "trace", "mb": 5000.0, "events": None, "oracle": oracle,
        "tools": one("hostgap")
        | one("A", "stopped: more than 8,000 MB of memory")
        | one("A, lean", idle_ns=590.0, launches=None)
        | one("B", "not tried, as it took more than 900 s for s.json")
        | one("C", idle_ns=600.4),
    }  # fmt: skip
    report = {
        "machine": {"cpu": "x"},
        "missing": {"nsys": "not on the PATH"},
        "limits": {},
        "traces": [trace],
    }
    names = ("hostgap", "A", "A, lean", "B", "C")
    some = [tools.Tool(name, None, None) for name in names]
    text = tables.tables(report, some, [])
    assert "nsys: not on the PATH." in text
    assert "| A, CPU s | stopped |" in text
    assert "| B, CPU s | not tried |" in text
    assert "- B, t.json: not tried, as it took more than 900 s for s.json" in text
    (answers,) = (line for line in text.splitlines() if line.startswith("| t.json |"))
    assert "40.0000%, 600 ns, 2, 1 | exact |" in answers
    assert "idle -10 ns; utilization +1.0000 points (no launches)" in answers
    assert answers.endswith("| exact |")  # 0.4 ns are a rounding


def test_a_coarse_figure_is_held_to_its_step(benchmark_module: Any) -> None:
    tables, tools = benchmark_module("compare_tables"), benchmark_module("peer_tools")
    oracle = {"window_ns": 9_040_000, "busy_ns": 1, "kernel_window_ns": 9_040_000,
              "kernel_busy_ns": 4_010_000, "kernels": 2, "launches": 1}  # fmt: skip
    said = {"window_ns": 9_000_000, "idle_ns": 5_000_000, "kernels": 2, "launches": None}
    trace = {"oracle": oracle, "tools": {"D": {"error": "", "said": said}}}
    tool = tools.Tool("D", None, None, only_kernels=True, step_ns=100_000)
    assert tables.verdict(trace, tool) == "right to 0.1 ms (no launches)"
    said["idle_ns"] = 5_200_000
    assert tables.verdict(trace, tool).startswith("idle +170,000 ns")
