"""Reports (.nsys-rep), exported through the `nsys` on the PATH; here a script by that name."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from hostgap.trace.load import load_trace
from tests.trace.nsys_build import hostgap, refusal, step_loop, untouched

Nsys = Callable[[str], Path]


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nsys:
    """Puts a script called nsys, and nothing else, on the PATH; it gets `$target` and `$report`."""

    def install(body: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        script = folder / "nsys"
        test = '[ "$1 $2 $3 $4" = "export --type sqlite -o" ] || exit 9\ntarget=$5 report=$6\n'
        script.write_text(f"#!/bin/sh\nPATH={os.defpath}\n{test}{body}\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(folder))
        return folder

    return install


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A report in a folder of its own, where temporary files go to another one."""
    for name in ("reports", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    path = tmp_path / "reports" / "-my run.nsys-rep"
    path.write_bytes(b"\1\2\3")
    return path


def test_a_report_is_exported(
    tmp_path: Path, nsys: Nsys, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = step_loop().write(tmp_path / "made.sqlite")
    nsys(f'[ -f "$report" ] && cp "{made}" "$target" && touch here && echo "Processing [100%]"')
    monkeypatch.chdir(report.parent)
    with untouched(report):
        trace = load_trace(report.name)
    assert trace.file == report.name
    assert len(trace.gpu_ops) == 15
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "echo starting >&2; echo 'no such report' >&2; exit 1",
            "nsys export failed: no such report",
        ),
        ("exit 3", "nsys export failed: exit code 3"),
        (
            "printf 'bad \\377 report' >&2; exit 1",
            "nsys export failed: bad \N{REPLACEMENT CHARACTER}",
        ),
        ("exit 0", "nsys export failed: it wrote no file"),
        ("echo x > $target", "the database is damaged"),
    ],
)
def test_an_export_that_fails(
    tmp_path: Path, nsys: Nsys, report: Path, body: str, reason: str
) -> None:
    nsys(body)
    assert reason in refusal(report)
    assert not list((tmp_path / "temporary").iterdir())


def test_a_damaged_export_is_called_by_the_reports_name(
    tmp_path: Path, nsys: Nsys, report: Path
) -> None:
    made = step_loop(200).write(tmp_path / "made.sqlite")
    made.write_bytes(made.read_bytes()[:20480])
    nsys(f'cp "{made}" "$target"')
    assert "the database is damaged" in refusal(report)
    assert not list((tmp_path / "temporary").iterdir())


def test_no_nsys(report: Path, tmp_path: Path) -> None:
    done = hostgap("analyze", report, path=str(tmp_path))
    assert done.returncode == 2
    assert "no nsys on the PATH" in done.stderr
    assert "nsys export --type sqlite" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 2


def test_an_export_by_the_name_of_a_report_needs_no_nsys(
    report: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.move(step_loop().write(tmp_path / "x.sqlite"), report)
    monkeypatch.setenv("PATH", "")
    assert len(load_trace(report).gpu_ops) == 15


def test_payloads_are_asked_for_where_nsys_can(tmp_path: Path, nsys: Nsys, report: Path) -> None:
    made = step_loop().write(tmp_path / "made.sqlite")
    folder = nsys("exit 9")
    body = f'echo "$*" >> {tmp_path}/asked; cp "{made}" "$6"'
    (folder / "nsys").write_text(f"#!/bin/sh\nPATH={os.defpath}\n{body}\n")
    load_trace(report)
    (asked,) = (tmp_path / "asked").read_text().splitlines()
    assert asked.startswith("export --type sqlite --include-json=true -o ")
