"""Links, loops, pipes, devices, folders: an error of a line, and nothing is waited for."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from hostgap.diagnosis.run import run_trace
from hostgap.errors import TraceError
from hostgap.profiling import rundir
from hostgap.profiling.measurement import Measurement
from hostgap.profiling.rundir import NAME, read_measurement
from tests.hard.build import event, hostgap, launches, write
from tests.profiling import build

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes and devices of POSIX")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "t.json", launches(5))


def test_a_link_is_followed(trace: Path) -> None:
    link = trace.with_name("link.json")
    link.symlink_to(trace.name)
    assert hostgap("analyze", link).code == 0


def loop(folder: Path) -> Path:
    first, second = folder / "loop.json", folder / "pool.json"
    first.symlink_to(second.name)
    second.symlink_to(first.name)
    return first


def test_links_in_a_circle(tmp_path: Path) -> None:
    ran = hostgap("analyze", loop(tmp_path))
    assert ran.code == 2
    assert "symbolic links" in ran.error


def test_an_output_that_links_to_itself(trace: Path) -> None:
    out = loop(trace.parent / "..").with_name("loop.json")
    ran = hostgap("analyze", trace, "-o", out, "--force")
    assert ran.code in (0, 2)
    assert "internal error" not in ran.error


def test_links_in_a_circle_as_a_trace_of_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    loop(folder)
    with pytest.raises(TraceError, match=r"outside its folder|is missing"):
        run_trace(folder, measurement("loop.json"))


@pytest.mark.parametrize("name", ["fifo", "/dev/zero", "/dev/null"])
@pytest.mark.parametrize("command", ["analyze", "redact"])
def test_what_is_no_file(command: str, name: str, tmp_path: Path) -> None:
    path = Path(name)
    if name == "fifo":
        path = tmp_path / name
        os.mkfifo(path)
    more = ["-o", tmp_path / "out.json"] if command == "redact" else []
    ran = hostgap(command, path, *more, timeout=20)
    assert ran.code == 2
    assert "is not a regular file" in ran.error
    assert not (tmp_path / "out.json").exists()


def measurement(file: str) -> Measurement:
    found = build.measurement()
    one = msgspec.structs.replace(found.passes[0], file=file)
    return msgspec.structs.replace(found, passes=[one])


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_a_measurement_that_is_no_file(kind: str, tmp_path: Path) -> None:
    """A pipe would be waited for, and a device read until memory ends."""
    path = tmp_path / NAME
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    ran = hostgap("analyze", tmp_path, timeout=20)
    assert ran.code == 2
    assert ran.peak_mib < 200
    with pytest.raises(TraceError, match=rf"{NAME}: cannot be read: (not a regular file|Is a dir)"):
        read_measurement(tmp_path)


def test_a_measurement_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rundir, "LARGEST", 100)
    (tmp_path / NAME).write_bytes(b" " * 101)
    with pytest.raises(TraceError, match="more than 100 bytes"):
        read_measurement(tmp_path)


@pytest.mark.parametrize("file", ["../t.json", "/etc/passwd", "a/b.json", "..", ""])
def test_a_run_names_nothing_outside_itself(file: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(msgspec.json.encode(measurement(file)))
    with pytest.raises(TraceError, match="outside its folder"):
        read_measurement(tmp_path)


def test_a_run_links_to_nothing_outside_itself(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "t.json").symlink_to(write(tmp_path / "secret.json", launches(3)))
    with pytest.raises(TraceError, match="outside its folder"):
        run_trace(folder, measurement("t.json"))


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_file_without_permission(trace: Path) -> None:
    trace.chmod(0)
    ran = hostgap("analyze", trace)
    assert ran.code == 2
    assert "Permission denied" in ran.error


def test_a_path_inside_gzip_is_not_used(trace: Path) -> None:
    """The header of a gzip file may name any path: nothing is written there."""
    import gzip

    path = trace.with_name("t.gz")
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="../../evil", mode="wb", fileobj=raw) as out,
    ):
        out.write(trace.read_bytes())
    before = sorted(p.name for p in trace.parent.parent.iterdir())
    assert hostgap("analyze", path).code == 0
    assert sorted(p.name for p in trace.parent.parent.iterdir()) == before


@pytest.mark.parametrize("file", ["/dev/zero", "/etc/passwd", "pipe.py"])
def test_frames_name_files_that_are_not_read(file: str, trace: Path) -> None:
    """A frame may name any file; only small Python files are opened for the line of a call."""
    if file == "pipe.py":
        os.mkfifo(trace.with_name(file))
    wait = event("cuda_runtime", "cudaStreamSynchronize", 450, 300, correlation=99)
    frame = event("python_function", f"{file}(1): step", 440, 400)
    path = write(trace, [*launches(5), *launches(12)[10:], wait, frame])
    ran = hostgap("analyze", path, "--format", "json", cwd=trace.parent, timeout=20)
    assert ran.code == 0
    assert "root:" not in ran.out


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("command", ["gate", "report", "compare", "baseline", "config"])
def test_files_of_hostgaps_own_that_are_none(command: str, kind: str, trace: Path) -> None:
    path = trace.with_name("own.json")
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    if command == "baseline":
        ran = hostgap("gate", trace, "--baseline", path, timeout=30)
    elif command == "config":
        path.rename(trace.with_name("hostgap.toml"))
        assert hostgap("analyze", trace, cwd=trace.parent, timeout=30).code == 0
        return
    elif command == "compare":
        ran = hostgap("compare", trace, path, timeout=30)
    else:
        more = ["-o", trace.with_name("o.html")] if command == "report" else []
        ran = hostgap(command, path, *more, timeout=30)
    assert ran.code == 2, ran.error
    assert "not a regular file" in ran.error
    assert ran.peak_mib < 250


def test_a_configuration_that_is_too_large(trace: Path) -> None:
    config = trace.with_name("hostgap.toml")
    config.write_bytes(b"#" * (9 << 20))
    ran = hostgap("analyze", trace, cwd=trace.parent)
    assert ran.code == 2
    assert "more than 8,388,608 bytes" in ran.error
