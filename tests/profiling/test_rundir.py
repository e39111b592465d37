"""Run directories: whole or not at all, and read back with care."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hostgap.errors import HostgapError, TraceError
from hostgap.gate.subject import load_subject
from hostgap.profiling.measurement import Estimate, Measurement, Pass, Waits
from hostgap.profiling.rundir import NAME, new_run_dir, read_measurement, write_measurement
from tests.profiling.build import estimate, measurement


def test_written_and_read_back(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with new_run_dir(run, force=False) as part:
        write_measurement(part, measurement())
        assert not run.exists()
    assert read_measurement(run) == measurement()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_run_that_ends_early_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), new_run_dir(tmp_path / "new" / "run", force=False) as part:
        (part / "trace.json.gz").write_bytes(b"half")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_only_runs_are_replaced_and_only_when_asked(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with new_run_dir(run, force=False) as part:
        write_measurement(part, measurement())
    with pytest.raises(HostgapError, match="exists"), new_run_dir(run, force=False):
        pass
    with new_run_dir(run, force=True) as part:
        (part / "new").touch()
    assert [path.name for path in run.iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    with pytest.raises(HostgapError, match="no run of hostgap"), new_run_dir(run, force=True):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(HostgapError, match="is a file"), new_run_dir(tmp_path / "file", force=True):
        pass


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not JSON"),
        (b"[1, 2]", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"{}", "schema None"),
        (b'{"schema": "hostgap.measurement/9"}', "schema 'hostgap.measurement/9'"),
        (b'{"schema": "hostgap.measurement/1"}', "missing required field"),
    ],
)
def test_what_is_no_measurement(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / NAME).write_bytes(text)
    with pytest.raises(TraceError, match=message):
        read_measurement(tmp_path)


@pytest.mark.parametrize("ns", [0.0, -1.0, 1e300])
def test_a_step_that_takes_no_time(tmp_path: Path, ns: float) -> None:
    made = measurement()
    timing = msgspec.structs.replace(made.timing, step=estimate(ns))
    write_measurement(tmp_path, msgspec.structs.replace(made, timing=timing))
    with pytest.raises(TraceError, match="which is no time"):
        read_measurement(tmp_path)
    loose = tmp_path / "loose"
    loose.mkdir()
    (tmp_path / NAME).rename(loose / "one.json")
    with pytest.raises(TraceError, match="which is no time"):
        load_subject(loose)


def test_no_measurement_at_all(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_measurement(tmp_path)


@pytest.mark.parametrize("file", ["../secret.json", "/etc/passwd", "..", "a/b.json", ""])
def test_traces_lie_in_the_folder(tmp_path: Path, file: str) -> None:
    step = Estimate(median_ns=1.0, low_ns=1.0, high_ns=1.0)
    outside = [Pass(mode="cpu+cuda", file=file, step=step)]
    bad: Measurement = msgspec.structs.replace(measurement(), passes=outside)
    write_measurement(tmp_path, bad)
    with pytest.raises(TraceError, match="outside its folder"):
        read_measurement(tmp_path)


@pytest.mark.parametrize(
    ("figure", "ns", "refused"),
    [
        ("wait", -1.0, True),
        ("wait", 1e300, True),
        ("wait", 2e7, True),  # in a step of 1 ms
        ("lost", -1e9, True),
        ("late", -1e6, False),
        ("late", -1e300, True),
        ("late", 9e9, True),
        ("inside", 0.0, False),
    ],
)
def test_waits_that_no_step_has(tmp_path: Path, figure: str, ns: float, refused: bool) -> None:
    usual = Estimate(median_ns=1e5, low_ns=9e4, high_ns=2e5)
    waits = Waits(
        ranks=2, step_ns=1e6, collectives=1.0, replays=0.0, unwatched=0.0, inside=usual,
        wait=usual, caused=usual, late=usual, lost=usual, wait_by_stop_ns=[1e5],
    )  # fmt: skip
    odd = {figure: Estimate(median_ns=ns, low_ns=ns, high_ns=ns)}
    write_measurement(
        tmp_path,
        msgspec.structs.replace(measurement(), waits=msgspec.structs.replace(waits, **odd)),
    )
    if refused:
        with pytest.raises(TraceError, match=f"waits.{figure} is"):
            read_measurement(tmp_path)
    else:
        assert read_measurement(tmp_path).waits is not None


def test_a_folder_that_holds_more_than_a_run_is_not_replaced(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with new_run_dir(run, force=False) as part:
        write_measurement(part, measurement())
    (run / "notes.txt").touch()
    with pytest.raises(HostgapError, match="no run of hostgap"), new_run_dir(run, force=True):
        pass
    other = tmp_path / "project"
    other.mkdir()
    (other / NAME).write_text('{"voltage": 3}', encoding="utf-8")
    with pytest.raises(HostgapError, match="no run of hostgap"), new_run_dir(other, force=True):
        pass
