"""What benchmarks/fuzz found, each as small as it goes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from hostgap.analysis.analyze import analyze
from hostgap.analysis.bounds import MOST_DEVICES, MOST_STREAMS, MOST_THREADS
from hostgap.analysis.calibration import step_alone
from hostgap.analysis.examine import Options
from hostgap.diagnosis.judge import Judging
from hostgap.errors import HostgapError, TraceError
from hostgap.gate.subject import load_subject
from hostgap.output.json import render_json
from hostgap.profiling.rundir import NAME, read_measurement
from hostgap.trace import sqlite as sqlite_module
from hostgap.trace.columns import MAX_NAME
from hostgap.trace.load import load_trace
from hostgap.trace.redact import redact
from tests.hard.build import event, launches, steps, write
from tests.profiling.build import measurement

LONG = 2**50 / 1000  # us that no event lasts
KERNEL, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"


# --- figures that are none ---------------------------------------------------------------------


@pytest.mark.parametrize("step_ns", [0.0, 0.4, -1.0, float("nan"), float("inf"), 2.0**63])
def test_an_unprofiled_step_that_is_no_time(step_ns: float) -> None:
    """Below half a nanosecond it was rounded to 0, and divided by."""
    with pytest.raises(HostgapError, match="is no time"):
        step_alone(step_ns)


@pytest.mark.parametrize("kind", ["kernel", "cuda_runtime", "cpu_op", "python_function"])
def test_events_of_years_are_not_added_up(kind: str, tmp_path: Path) -> None:
    """The sum of three did not fit in 64 bits; HG203 reported what it became."""
    events = launches(5)
    events += [event(kind, f"gemm{i}", 600 + i, 2**61 / 1000, correlation=50 + i) for i in range(4)]
    trace = load_trace(write(tmp_path / "t.json", events))
    assert trace.report.unreadable_times == 4
    diagnosis = analyze(trace)
    assert not diagnosis.problems
    assert diagnosis.devices[0].window_ns < 1_000_000


@pytest.mark.parametrize(("length", "kept"), [(LONG, 5), (LONG - 0.001, 6)])
def test_how_long_an_event_can_last(length: float, kept: int, tmp_path: Path) -> None:
    events = [*launches(5), event("kernel", "long", 600, length, device=0, stream=7)]
    assert len(load_trace(write(tmp_path / "t.json", events)).gpu_ops) == kept


# --- ops and calls that lack each other --------------------------------------------------------


def test_copies_before_the_first_step(tmp_path: Path) -> None:
    """Ops of no step have the number -1: the last step got them, or there was no step to get."""
    copy = "Memcpy HtoD (Pageable -> Device)"
    events = [
        event("cuda_runtime", "cudaMemcpyAsync", 0, 5, correlation=900),
        event("gpu_memcpy", copy, 10, 60, correlation=900, device=0, stream=7),
        event("cuda_runtime", "cudaLaunchKernel", 80, 5, correlation=901),
        event("kernel", "k", 90, 20, correlation=901, device=0, stream=7),
        event("user_annotation", "ProfilerStep#1", 5000, 100),
        event("user_annotation", "ProfilerStep#2", 6000, 100),
    ]
    for window in ("steps", "trace"):
        diagnosis = analyze(
            load_trace(write(tmp_path / "t.json", events)),
            Options(window=window),  # type: ignore[arg-type]
        )
        assert diagnosis.problems == []


def test_a_calibrated_trace_without_calls(tmp_path: Path) -> None:
    """The fit looked up the call of kernels that have none, in a table of no rows."""
    events = [e for e in launches(40) if e["cat"] == "kernel"]
    trace = load_trace(write(tmp_path / "t.json", [*events, *steps(4)]))
    assert len(trace.api_calls) == 0
    for ms in (0.3, 1.5, 1e6):
        judging = Judging(calibration=step_alone(ms * 1e6))
        assert analyze(trace, judging=judging).problems == []


# --- ids without end ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "most", "says"),
    [
        ("device", MOST_DEVICES, "devices"),
        ("stream", MOST_STREAMS, "streams"),
        ("tid", MOST_THREADS, "threads that launch work"),
    ],
)
def test_another_id_in_every_event(field: str, most: int, says: str, tmp_path: Path) -> None:
    """20,000 devices took hours and gigabytes."""
    trace = load_trace(write(tmp_path / "t.json", launches(most + 1, **{field: lambda i: i})))
    with pytest.raises(TraceError, match=f"{most + 1:,} {says}, of which {most:,}"):
        analyze(trace)


def test_many_devices_are_fine(tmp_path: Path) -> None:
    trace = load_trace(write(tmp_path / "t.json", launches(200, device=lambda i: i % 64)))
    assert len(analyze(trace).devices) == 64


# --- redaction ---------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", [b"\0", b"\0\0\0\n", b"\n\0 \0"])
def test_padding_behind_a_trace_is_left_out(padding: bytes, tmp_path: Path) -> None:
    """It became a string behind the document, which no reader takes."""
    path = write(tmp_path / "t.json", launches(3))
    path.write_bytes(path.read_bytes() + padding)
    done = redact(path, tmp_path / "out.json")
    assert done.notes == ()
    assert len(load_trace(tmp_path / "out.json").gpu_ops) == 3


def export(path: Path, **tables: list[tuple[Any, ...]]) -> Path:
    """A small export of Nsight Systems; a table's first row names its columns."""
    rows = {
        KERNEL: [("start", "end", "deviceId", "streamId", "correlationId", "demangledName")],
        RUNTIME: [("start", "end", "globalTid", "correlationId", "nameId")],
        "StringIds": [("id", "value"), (1, "k"), (2, "cudaLaunchKernel")],
    }
    rows[KERNEL] += [(i * 100 + 10, i * 100 + 60, 0, 7, i + 1, 1) for i in range(40)]
    rows[RUNTIME] += [(i * 100, i * 100 + 5, 1 << 24, i + 1, 2) for i in range(40)]
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA page_size = 512")
        for table, (columns, *values) in (rows | tables).items():
            database.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
            marks = ", ".join("?" * len(columns))
            database.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
    return path


def test_a_damaged_page_is_not_written_back(tmp_path: Path) -> None:
    """VACUUM copies cells as they are: the copy was malformed where the original could be read."""
    path = export(tmp_path / "t.sqlite", FILLER=[("a",), ("x" * 300,), ("y" * 300,)])
    with closing(sqlite3.connect(path)) as database:
        (root,) = database.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'FILLER'"
        ).fetchone()
    data = bytearray(path.read_bytes())
    page = (root - 1) * 512
    at = int.from_bytes(data[page + 5 : page + 7], "big")  # where the cells begin
    data[page + at] = 0x7F  # one cell says that it is shorter than what its header says
    path.write_bytes(data)
    assert len(load_trace(path).gpu_ops) == 40
    try:
        redact(path, tmp_path / "out.sqlite")
    except TraceError as error:
        assert "cannot be redacted" in error.message  # noqa: PT017
        assert not (tmp_path / "out.sqlite").exists()
    else:
        with closing(sqlite3.connect(tmp_path / "out.sqlite")) as database:
            assert database.execute("PRAGMA quick_check").fetchone() == ("ok",)


# --- databases of somebody else ----------------------------------------------------------------


def test_names_in_an_export_are_cut(tmp_path: Path) -> None:
    strings = [("id", "value"), (1, "k<" * MAX_NAME), (2, "cudaLaunchKernel")]
    trace = load_trace(export(tmp_path / "t.sqlite", StringIds=strings))
    assert max(map(len, trace.names)) == MAX_NAME
    assert trace.report.repaired == {"names over 64 KiB": 1}


@pytest.mark.skipif(
    not hasattr(sqlite3.Connection, "setlimit"), reason="Python 3.10 cannot set the limit"
)
def test_a_value_longer_than_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_module, "_LONGEST", 10_000)
    strings = [("id", "value"), (1, "k" * 20_000), (2, "cudaLaunchKernel")]
    path = export(tmp_path / "t.sqlite", StringIds=strings)
    with pytest.raises(TraceError, match="too big"):
        load_trace(path)


def test_a_virtual_table_is_no_table(tmp_path: Path) -> None:
    """Code of an SQLite extension would run over data of somebody else."""
    path = export(tmp_path / "t.sqlite")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DROP TABLE StringIds")
        try:
            database.execute("CREATE VIRTUAL TABLE StringIds USING fts5(id, value)")
        except sqlite3.OperationalError:
            pytest.skip("this SQLite has no full-text search")
        database.execute("INSERT INTO StringIds VALUES (1, 'from the extension')")
    trace = load_trace(path)
    assert len(trace.gpu_ops) == 40
    assert not any("extension" in name for name in trace.names)
    assert np.all(trace.gpu_ops.end > trace.gpu_ops.start)


# --- results of hostgap's own ------------------------------------------------------------------


@pytest.mark.parametrize("main", ["another", None])
def test_a_result_whose_main_class_is_none_of_its_own(main: str | None, tmp_path: Path) -> None:
    """`compare` looked for it, and found the end of the list."""
    path = write(tmp_path / "t.json", [*launches(60), *steps(6)])
    made = analyze(load_trace(path))
    assert made.steps.classes
    made = msgspec.structs.replace(made, steps=msgspec.structs.replace(made.steps, main_class=main))
    result = tmp_path / "r.json"
    result.write_bytes(render_json(made))
    with pytest.raises(TraceError, match="is none of its classes"):
        load_subject(result)


@pytest.mark.parametrize("text", [b"\xff", b"\\ud800", b"\xed\xa0\x80"])
def test_a_measurement_with_text_that_is_none(text: bytes, tmp_path: Path) -> None:
    """The look at its schema leaves the rest undecoded: reading it all then raised as it was."""
    data = msgspec.json.encode(measurement())
    (tmp_path / NAME).write_bytes(data.replace(b'"decoder"', b'"' + text + b'"'))
    with pytest.raises(TraceError, match=r"UTF-8|surrogate|escape|not JSON"):
        read_measurement(tmp_path)
