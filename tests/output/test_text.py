"""The terminal report: what it says, that it fits, and that nothing in a trace can disturb it."""

from __future__ import annotations

import gzip
import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hostgap
from hostgap.analysis.examine import Options
from hostgap.diagnosis.model import Diagnosis
from hostgap.output import summary
from hostgap.output.markdown import render_markdown
from hostgap.output.terminal import WIDTH
from hostgap.output.text import render_text

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
SAMPLES = sorted((ROOT / "sample_traces").glob("*.json.gz"))


def text_of(diagnosis: Diagnosis, *, color: bool = False) -> str:
    out = io.StringIO()
    render_text(diagnosis, out, color=color)
    return out.getvalue()


def diagnosis_of(path: Path, window: str = "steps") -> Diagnosis:
    return hostgap.analyze(hostgap.load_trace(path), Options(window=window))


@pytest.mark.parametrize("name", ["eager_item", "cuda_graph"])
def test_golden(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reviewed by eye; change the files only together with a look at them."""
    monkeypatch.chdir(ROOT)
    shown = text_of(diagnosis_of(Path(f"sample_traces/{name}.json.gz")))
    assert shown == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
@pytest.mark.parametrize("window", ["steps", "trace"])
def test_fits_and_adds_up(path: Path, window: str) -> None:
    diagnosis = diagnosis_of(path, window)
    lines = text_of(diagnosis).splitlines()
    # the last line is a command to copy: it is never broken
    assert all(len(line) <= WIDTH for line in lines[:-1])
    for device in diagnosis.devices:
        rows = summary.breakdown(device)
        shown = [0 if row.percent == "<1 %" else int(row.percent.split()[0]) for row in rows]
        assert sum(shown) == 100
        assert sum(row.ns for row in rows) == device.window_ns
        assert {row.label for row in rows} >= set(device.idle_by_cause)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=24))
def test_whole_percents_add_up(parts: list[int]) -> None:
    percents = summary.whole_percents(parts)
    total = sum(parts)
    assert sum(percents) == (100 if total else 0)
    for part, percent in zip(parts, percents, strict=True):
        assert not total or abs(percent - 100 * part / total) < 1


@pytest.mark.parametrize(
    ("ns", "shown"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.00 us"),
        (12_345, "12.3 us"),
        (999_900, "1.00 ms"),
        (2_164_000, "2.16 ms"),
        (131_946_103, "132 ms"),
        (61e9, "61.0 s"),
    ],
)
def test_duration(ns: float, shown: str) -> None:
    assert summary.duration(ns) == shown


def test_amount_names_the_unit_once() -> None:
    assert summary.amount_of(33.0e6, 35.4e6) == "33.0 of 35.4 ms"
    assert summary.amount_of(548e3, 3.1e6) == "548 us of 3.10 ms"


HOSTILE = "\x1b[2J[bold red]\r\n\x00\u202e`|*<b>&\x9b\ud800 at::x"


def hostile_trace(folder: Path) -> Path:
    """A trace whose every name tries to escape from where it is shown."""
    common = {"ph": "X", "pid": 1, "tid": 1}
    events = [
        {**common, "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 90},
        {**common, "cat": "python_function", "name": f"{HOSTILE}.py(3): f", "ts": 0, "dur": 95},
        {**common, "cat": "cpu_op", "name": HOSTILE, "ts": 5, "dur": 80},
    ]
    for i, start in enumerate((10, 60)):
        launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start, "dur": 5}
        kernel = {"cat": "kernel", "name": HOSTILE, "ts": start + 10, "dur": 3, "pid": HOSTILE}
        events.append({**common, **launch, "args": {"correlation": i + 1}})
        events.append({**common, **kernel, "args": {"correlation": i + 1, "stream": HOSTILE}})
    events.append(
        {
            **common,
            "cat": "cuda_runtime",
            "name": "cudaDeviceSynchronize",
            "ts": 66,
            "dur": 12,
            "args": {"correlation": 9},
        }
    )
    path = folder / "hostile.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_control_characters_and_markup_are_inert(tmp_path: Path) -> None:
    diagnosis = diagnosis_of(hostile_trace(tmp_path))
    plain = text_of(diagnosis)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800]", plain)
    assert "[bold red]" in plain  # shown, not obeyed
    colored = text_of(diagnosis, color=True)
    assert "\x1b[2J" not in colored


def test_markdown_escapes_names(tmp_path: Path) -> None:
    shown = render_markdown(diagnosis_of(hostile_trace(tmp_path)))
    assert "<b>" not in shown.replace("\\<b\\>", "")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e\ud800]", shown)
    for line in shown.splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 5


def test_unmeasurable_says_why_and_gives_no_zero(tmp_path: Path) -> None:
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
    events = [{**launch, "ts": i, "dur": 1, "args": {"correlation": i}} for i in range(1, 11)]
    path = tmp_path / "blind.json"
    path.write_text(json.dumps({"traceEvents": events}))
    diagnosis = diagnosis_of(path)
    for shown in (text_of(diagnosis), render_markdown(diagnosis)):
        assert "Nothing can be measured" in shown
        assert "10 launches seen" in shown
        assert "0 %" not in shown
    assert diagnosis.trace.integrity.verdict == "unmeasurable"


def test_color_only_when_asked() -> None:
    diagnosis = diagnosis_of(SAMPLES[0])
    assert "\x1b[" not in text_of(diagnosis, color=False)
    assert "\x1b[" in text_of(diagnosis, color=True)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_whatever_the_encoding(encoding: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, newline="")
    render_text(diagnosis_of(SAMPLES[0]), stream)
    stream.flush()
    shown = raw.getvalue().decode(encoding)
    assert shown.startswith("GPU idle")
    assert "?" not in shown
    assert ("█" in shown) == (encoding == "utf-8")


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("eager", "launch-bound"),
        ("eager_item", "launch-bound"),
        ("compile", "host-bound"),
        ("cuda_graph", "gpu-bound"),
        ("gpu_bound", "gpu-bound"),
    ],
)
def test_the_verdict_is_the_second_line_but_one(name: str, verdict: str) -> None:
    shown = text_of(diagnosis_of(ROOT / "sample_traces" / f"{name}.json.gz"))
    assert shown.splitlines()[2].startswith(f"{verdict}: ")


def test_a_partial_trace_is_not_called_exact(tmp_path: Path) -> None:
    text = gzip.decompress((ROOT / "sample_traces" / "gpu_bound.json.gz").read_bytes())
    cut = tmp_path / "cut.json"
    cut.write_bytes(text[: text.rindex(b'"ph"')])
    shown = text_of(diagnosis_of(cut))
    assert "HG920" in shown
    assert "partial" in shown
    assert "exact" not in shown
