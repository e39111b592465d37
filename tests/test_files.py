from __future__ import annotations

import errno
import gzip
import os
from pathlib import Path

import pytest

from hostgap.errors import HostgapError
from hostgap.files import atomic_output, compressed


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_appears_complete_at_the_end(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    with atomic_output(out, force=False) as stream:
        stream.write(b"abc")
        assert not out.exists()
    assert out.read_bytes() == b"abc"
    assert names(tmp_path) == ["r.json"]


def write_and_fail(out: Path, error: type[BaseException]) -> None:
    with atomic_output(out, force=True) as stream:
        stream.write(b"half")
        raise error


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write_and_fail(tmp_path / "r", KeyboardInterrupt)
    assert names(tmp_path) == []


def test_no_moment_is_left_at_which_a_signal_leaves_the_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def stopped(self: Path, mode: str) -> None:
        opened(self, mode).close()
        raise SystemExit(143)

    monkeypatch.setattr(Path, "open", stopped)
    with pytest.raises(SystemExit), atomic_output(tmp_path / "r", force=False):
        pytest.fail("the block ran")
    assert names(tmp_path) == []
    monkeypatch.undo()
    with pytest.raises(SystemExit):
        write_and_fail(tmp_path / "r", SystemExit)
    assert names(tmp_path) == []


@pytest.mark.parametrize("letter", ["a", "é", "日"])
def test_a_name_as_long_as_the_system_allows(tmp_path: Path, letter: str) -> None:
    out = tmp_path / (letter * (255 // len(letter.encode())))
    with atomic_output(out, force=False) as stream:
        stream.write(b"abc")
    assert names(tmp_path) == [out.name]


def test_a_link_into_a_missing_folder_names_that_folder(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone" / "r")
    with pytest.raises(HostgapError, match="gone: no such"), atomic_output(link, force=False):
        pytest.fail("the block ran")


def test_a_failure_keeps_the_old_file(tmp_path: Path) -> None:
    out = tmp_path / "r"
    out.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError):
        write_and_fail(out, ZeroDivisionError)
    assert out.read_bytes() == b"old"
    assert names(tmp_path) == ["r"]


def test_refuses_to_overwrite(tmp_path: Path) -> None:
    out = tmp_path / "r"
    out.write_bytes(b"old")
    with pytest.raises(HostgapError, match="exists") as caught, atomic_output(out, force=False):
        pytest.fail("the block ran")
    assert caught.value.hint == "use --force to overwrite it"
    with atomic_output(out, force=True) as stream:
        stream.write(b"new")
    assert out.read_bytes() == b"new"


def test_refuses_a_file_that_appeared_meanwhile(tmp_path: Path) -> None:
    out = tmp_path / "r"
    with pytest.raises(HostgapError, match="exists"), atomic_output(out, force=False):
        out.write_bytes(b"someone else's")
    assert out.read_bytes() == b"someone else's"
    assert names(tmp_path) == ["r"]


def test_a_folder_and_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(HostgapError, match="is a folder"), atomic_output(tmp_path, force=True):
        pytest.fail("the block ran")
    with (
        pytest.raises(HostgapError, match="no such folder"),
        atomic_output(tmp_path / "no" / "r", force=False),
    ):
        pytest.fail("the block ran")


def test_a_symlink_keeps_being_one(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"old")
    link.symlink_to(real)
    with atomic_output(link, force=True) as stream:
        stream.write(b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    with (
        pytest.raises(HostgapError, match="cannot be written: No space left"),
        atomic_output(tmp_path / "r", force=False),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert names(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_device_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.md").symlink_to("/dev/full")
    with (
        pytest.raises(HostgapError, match=r"r\.md: cannot be written: No space"),
        atomic_output(tmp_path / "r.md", force=False) as out,
    ):
        out.write(b"x")


def test_a_device_is_written_directly() -> None:
    with atomic_output(Path("/dev/null"), force=False) as stream:
        stream.write(b"abc")
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize("name", ["x.json.gz", "x.json.zst", "x.json"])
def test_compression_follows_the_name(tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    with atomic_output(out, force=False) as stream, compressed(stream, out.name) as text:
        text.write(b"hello " * 1000)
    data = out.read_bytes()
    if name.endswith(".gz"):
        assert data[3] & 0x08 == 0, "the gzip header holds a file name"
        assert data[4:8] == b"\0\0\0\0", "the gzip header holds a time"
        data = gzip.decompress(data)
    elif name.endswith(".zst"):
        zstandard = pytest.importorskip("zstandard")
        data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    assert data == b"hello " * 1000
