"""Bytes of a file: compression, damage, and what cannot be opened."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from hostgap.errors import TraceError
from hostgap.trace import source as source_module
from hostgap.trace.load import load_trace
from hostgap.trace.source import Source, open_source

rng = random.Random(5)
DATA = json.dumps([{"ph": "X", "name": f"k{rng.random()}", "ts": n} for n in range(3000)]).encode()


def drain(source: Source) -> bytes:
    return b"".join(iter(source.read, b""))


def opened(data: bytes) -> Source:
    return Source(io.BytesIO(data), "t", len(data))


def read(data: bytes) -> bytes:
    source = opened(data)
    out = drain(source)
    assert source.offset == len(out)
    assert source.consumed == len(data)
    assert source.truncated == ""
    return out


@pytest.fixture(params=["isal", "zlib"])
def inflate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both decompressors: what is installed decides which one users get."""
    if request.param == "zlib":
        monkeypatch.setitem(sys.modules, "isal", None)
        assert source_module._zlib() is zlib
    else:
        pytest.importorskip("isal")
        assert source_module._zlib() is not zlib
    return str(request.param)


def test_plain() -> None:
    assert read(DATA) == DATA
    assert read(b"[") == b"["


@pytest.mark.parametrize("level", [0, 1, 9])
def test_gzip(inflate: str, level: int) -> None:
    assert read(gzip.compress(DATA, level)) == DATA


def test_gzip_members_and_padding(inflate: str) -> None:
    members = [gzip.compress(DATA[at : at + 7777]) for at in range(0, len(DATA), 7777)]
    assert len(members) > 10
    assert read(b"".join(members)) == DATA
    assert read(b"".join(members) + b"\0" * 100_000) == DATA
    assert read((b"\0" * 512).join(members)) == DATA
    assert read(gzip.compress(b"") + gzip.compress(DATA) + gzip.compress(b"")) == DATA


def test_gzip_followed_by_something_else(inflate: str) -> None:
    with pytest.raises(TraceError, match="corrupt gzip data near byte"):
        drain(opened(gzip.compress(DATA) + b"\0\0trailing"))


@pytest.mark.parametrize("repeat", [1, 200])
def test_gzip_cut_anywhere(inflate: str, repeat: int) -> None:
    """All that the bytes before the cut hold comes out, and it is said that more was due."""
    text = DATA[:20_000] if repeat == 1 else b'[{"ph":"X"},' * 20_000
    data = gzip.compress(text)
    for cut in range(20, len(data), 10 if repeat == 1 else 1):
        source = opened(data[:cut])
        out = drain(source)
        expected = zlib.decompressobj(wbits=31).decompress(data[:cut])
        assert expected.startswith(out), cut
        assert len(expected) - len(out) <= (8 if inflate == "isal" else 0), cut
        assert source.truncated == "the gzip data end early"


def test_gzip_damage(inflate: str) -> None:
    data = gzip.compress(DATA)
    outcomes = set()
    for at in range(12, len(data), 101):
        source = opened(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        try:
            drain(source)
        except TraceError as error:
            outcomes.add(error.message.split(" near ")[0] if error.hint else "no hint")
        else:
            outcomes.add(source.truncated)
    assert "t: corrupt gzip data" in outcomes
    assert outcomes <= {"t: corrupt gzip data", "the gzip data end early"}


def test_zstd() -> None:
    zstandard = pytest.importorskip("zstandard")
    compress = zstandard.ZstdCompressor().compress
    frames = [compress(DATA[at : at + 7777]) for at in range(0, len(DATA), 7777)]
    skippable = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"
    assert read(compress(DATA)) == DATA
    assert read(b"".join(frames)) == DATA
    assert read(skippable + skippable.join(frames)) == DATA


def test_zstd_cut_or_damaged(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    data = zstandard.ZstdCompressor(write_checksum=True).compress(DATA)
    cut = drain(opened(data[: len(data) // 2]))
    assert DATA.startswith(cut)
    assert len(cut) < len(DATA)
    with pytest.raises(TraceError, match="corrupt zstd data near byte"):
        drain(opened(data[:5000] + b"\xff" * 50 + data[5050:]))
    with pytest.raises(TraceError, match="corrupt zstd data near byte"):
        drain(opened(data + b"trailing"))


def test_zstd_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(TraceError, match="needs the zstandard package") as caught:
        drain(opened(b"\x28\xb5\x2f\xfd" + b"\0" * 20))
    assert caught.value.hint == "pip install 'hostgap[zstd]'"


BOMB = """
import re, sys
from hostgap.trace.source import open_source
# not getrusage: its peak begins with that of the process that started this one
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
with open_source(sys.argv[1]) as small:
    small.read()
start, size = peak(), 0
with open_source(sys.argv[2]) as source:
    while block := source.read():
        size += len(block)
print(size, peak() - start)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux to measure memory")
@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_bomb_is_not_held(kind: str, tmp_path: Path) -> None:
    size = 200 << 20
    pack = gzip.compress
    if kind == "zst":
        pack = pytest.importorskip("zstandard").ZstdCompressor().compress
    (tmp_path / "small").write_bytes(pack(b" " * 100_000))
    (tmp_path / "bomb").write_bytes(pack(b" " * size))
    assert (tmp_path / "bomb").stat().st_size < 1 << 20
    done = subprocess.run(
        [sys.executable, "-c", BOMB, tmp_path / "small", tmp_path / "bomb"],
        capture_output=True,
        check=True,
        timeout=60,
    )
    read_size, growth = map(int, done.stdout.split())
    assert read_size == size
    assert growth < 16 << 10  # KiB


# --- opening --------------------------------------------------------------------------------------


def refusal(path: str | Path) -> TraceError:
    with pytest.raises(TraceError) as caught:
        load_trace(path)
    assert "\n" not in caught.value.message + (caught.value.hint or "")
    assert caught.value.message.startswith(f"{path}: ")
    return caught.value


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "t.json").touch()
    error = refusal(tmp_path / "t.json")
    assert error.message.endswith("the file is empty")
    assert "killed" in (error.hint or "")


def test_missing_file(tmp_path: Path) -> None:
    (tmp_path / "trace.json").touch()
    error = refusal(tmp_path / "trase.json")
    assert error.message.endswith("no such file")
    assert error.hint == f"did you mean {tmp_path / 'trace.json'}?"
    assert refusal(tmp_path / "nothing" / "t.json").hint is None
    assert refusal(tmp_path / "xyz").hint is None


def test_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path).message.endswith("is a folder")
    assert refusal(tmp_path).hint == "give the trace file itself"
    for name in ("b.json.gz", "a.json", "notes.txt"):
        (tmp_path / name).touch()
    expected = f"give one trace file, for example {tmp_path / 'a.json'} (2 such files there)"
    assert refusal(tmp_path).hint == expected


def test_no_permission(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    path = tmp_path / "t.json"
    path.write_text("[]")
    path.chmod(0)
    assert "cannot be opened: Permission denied" in refusal(path).message


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000])
def test_impossible_names(name: str) -> None:
    assert "cannot be opened: " in refusal(name).message


def test_a_file_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "t.json").touch()
    assert "cannot be opened: Not a directory" in refusal(tmp_path / "t.json" / "x").message


def test_pipes_and_devices(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path(os.devnull)):
        error = refusal(path)
        assert error.message.endswith("is not a regular file")
        assert error.hint == "use '-' to read a pipe"


def test_a_read_error() -> None:
    class Broken(io.RawIOBase):
        def read(self, _size: int = -1) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(TraceError, match="t: cannot be read: Input/output error"):
        Source(Broken(), "t")  # type: ignore[arg-type]


class Stdin(io.TextIOWrapper):
    def __init__(self, data: bytes, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(data))
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def test_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = Stdin(gzip.compress(DATA))
    monkeypatch.setattr(sys, "stdin", stdin)
    with open_source("-") as source:
        assert source.name == "stdin"
        assert source.size == 0
        assert drain(source) == DATA
    assert not stdin.buffer.closed


@pytest.mark.parametrize("stdin", [None, Stdin(b"", terminal=True)])
def test_stdin_that_has_nothing(monkeypatch: pytest.MonkeyPatch, stdin: Stdin | None) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    assert refusal("-").message == "-: nothing is piped in"


def test_empty_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(b""))
    with pytest.raises(TraceError, match="stdin: the file is empty"):
        open_source("-")


def test_a_file_while_stdin_is_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(DATA)
    monkeypatch.setattr(sys, "stdin", None)
    with open_source(tmp_path / "t.json") as source:
        assert drain(source) == DATA
        assert source.size == len(DATA)
    assert source._stream.closed
