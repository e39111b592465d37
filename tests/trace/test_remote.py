"""Traces that lie elsewhere, through fsspec's memory file system and a local HTTP server."""

from __future__ import annotations

import contextlib
import functools
import http.server
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hostgap
from hostgap.cli import run
from hostgap.errors import TraceError
from hostgap.ranks.inputs import find_inputs
from hostgap.trace import source as source_module
from hostgap.trace.remote import PROTOCOLS, has_pattern, is_url, listed, open_url

fsspec = pytest.importorskip("fsspec")

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_traces"
NAME = "cuda_graph.json.gz"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    system.pipe_file("/job/rank0.json.gz", (SAMPLES / NAME).read_bytes())
    system.pipe_file("/job/rank1.json.gz", (SAMPLES / "eager.json.gz").read_bytes())
    system.pipe_file("/job/notes.txt", b"mine")
    yield system
    system.rm("/job", recursive=True)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the copies are made."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    pytest.importorskip("aiohttp")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def send_head(self) -> Any:
            if self.path == "/stalls.json":
                time.sleep(3)
            if self.path.startswith("/endless"):
                return self.endless()
            if self.path.startswith("/login"):
                self.path = "/"  # a page in place of what was asked for
            answer = {"/fails.json": 500, "/private.json": 403}.get(self.path)
            if answer is None:
                return super().send_head()
            self.send_error(answer)
            return None

        def endless(self) -> None:
            """An export of no known size; `/endless-drip` is slow after its beginning."""
            self.send_response(200)
            if self.path.startswith("/endless-drip"):
                self.send_header("Content-Length", str(8 << 20))
            self.end_headers()
            if self.command == "HEAD":
                return
            with contextlib.suppress(OSError):  # the reader goes
                self.wfile.write((SAMPLES / "eager_item.sqlite").read_bytes())
                while self.path.startswith("/endless-drip"):
                    time.sleep(0.2)
                    self.wfile.write(b" ")
                for _ in range(64):
                    self.wfile.write(bytes(1 << 20))

    handler = functools.partial(Quiet, directory=str(SAMPLES))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_address[1]}"
        listening.shutdown()


def same(url: str, name: str) -> bool:
    one, other = hostgap.load_trace(url), hostgap.load_trace(SAMPLES / name)
    tables = ("gpu_ops", "api_calls", "host_ops", "frames")
    return one.file == url and all(
        (mine == theirs).all()
        for table in tables
        for (_, mine), (_, theirs) in zip(
            getattr(one, table).columns(), getattr(other, table).columns(), strict=True
        )
    )


def test_one_trace_is_read_as_if_it_were_here(memory: Any) -> None:
    assert same("memory://job/rank0.json.gz", NAME)


def test_folders_and_patterns(memory: Any) -> None:
    for url in ("memory://job/", "memory://job/*.gz", "memory://job/rank[01]*"):
        found = find_inputs([url])
        assert [one.said.rank for one in found.traces] == [0, 1]
        assert found.several
        assert all(one.size > 1000 for one in found.traces)
    with pytest.raises(TraceError, match="no trace there"):
        find_inputs(["memory://job/*.txt"])


def test_a_set_from_elsewhere(memory: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", "memory://job/", "--jobs", "1"]) == 0
    assert capsys.readouterr().out.startswith("2 traces: GPUs idle")


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("memory://job/no.json", "no such file"),
        ("memory://job", "is a folder"),
        ("ftp://host/x.json", "reads no such URL"),
        ("simplecache::memory://job/rank0.json.gz", "no such"),
        ("file:///etc/passwd", "reads no such URL"),
        ("reference://x", "reads no such URL"),
    ],
)
def test_refusals(memory: Any, url: str, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", url]) == 2
    error = capsys.readouterr().err
    assert word in error
    assert len(error.splitlines()) <= 2


def test_http(server: str) -> None:
    assert same(f"{server}/{NAME}", NAME)
    assert same(f"{server}/eager_item.sqlite", "eager_item.sqlite")
    names = [name.rpartition("/")[2] for name, _ in listed(f"{server}/")]
    assert NAME in names


def test_http_failures(
    server: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hostgap.trace.remote.PATIENCE_S", 0.5)
    for url, said in (
        (f"{server}/no.json", "no such file"),
        (f"{server}/fails.json", "the server answers 500"),
        (f"{server}/private.json", "the server answers 403"),
        (f"{server}/stalls.json", "no answer within 0.5 s"),
        (f"{server}/login.json", "/login.json: this is a web page"),
        (f"{server}/login.sqlite", "/login.sqlite: this is a web page"),
        ("http://127.0.0.1:9/x.json", "onnect"),
    ):
        assert run(["analyze", url]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert len(error.splitlines()) <= 2


def test_a_server_that_does_not_answer_is_given_up_in_the_time_that_is_said(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hostgap.trace.remote.PATIENCE_S", 1.4)
    begin = time.monotonic()
    with pytest.raises(TraceError, match=r"no answer within 1\.4 s"):
        open_url(f"{server}/stalls.json")
    assert time.monotonic() - begin < 2.4  # twice as long with a second question


def test_a_copy_of_no_known_size_ends_at_the_limit(
    server: str, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    monkeypatch.setattr("hostgap.trace.load.MOST_BYTES", 8 << 20)
    with pytest.raises(TraceError, match=r"endless\.sqlite: more than 8,388,608 bytes"):
        hostgap.load_trace(f"{server}/endless.sqlite")
    assert not any(temporary.iterdir())


def test_a_copy_leaves_room_on_the_disk(
    server: str, memory: Any, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    blocks = itertools.count()

    def usage(_: Path) -> Any:
        free = (1 << 30) + (6 - 2 * next(blocks) << 20)
        return types.SimpleNamespace(total=100 << 30, free=free)

    monkeypatch.setattr("hostgap.trace.remote.shutil.disk_usage", usage)
    memory.pipe_file("/job/large.sqlite", bytes(7 << 20))
    with pytest.raises(TraceError, match=r"no room for a copy in .*: 1\.1 GB are free") as caught:
        hostgap.load_trace("memory://job/large.sqlite")
    assert next(blocks) == 1  # before anything was read
    assert "TMPDIR" in (caught.value.hint or "")
    with pytest.raises(TraceError, match="no room for a copy"):
        hostgap.load_trace(f"{server}/endless.sqlite")
    assert not any(temporary.iterdir())


def test_a_file_that_is_longer_than_announced(memory: Any, temporary: Path) -> None:
    memory.pipe_file("/job/more.sqlite", bytes(5 << 20))
    real = memory.__class__.info
    memory.__class__.info = lambda self, path: {**real(self, path), "size": 1 << 20}
    try:
        with pytest.raises(TraceError, match="more than the 1,048,576 bytes that the server"):
            hostgap.load_trace("memory://job/more.sqlite")
    finally:
        memory.__class__.info = real
    assert not any(temporary.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_in_a_download_says_so_and_no_more(
    server: str, temporary: Path, number: signal.Signals
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "hostgap", "analyze", f"{server}/endless-drip.sqlite"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 30
    while not list(temporary.glob("hostgap-*/trace")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert error == (b"hostgap: interrupted\n" if number == signal.SIGINT else b"")
    assert not any(temporary.iterdir())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("connection lost"), "connection lost"),
        (TimeoutError(), "the server stopped answering"),
    ],
)
def test_a_connection_that_breaks_off_is_an_error_of_the_file(
    memory: Any, error: Exception, said: str
) -> None:
    class Broken:
        def read(self, _: int) -> bytes:
            raise error

        def close(self) -> None:
            pass

    real = memory.__class__._open
    memory.__class__._open = lambda *_, **__: Broken()
    try:
        with pytest.raises(TraceError, match=f"cannot be read: {said}"):
            hostgap.load_trace("memory://job/rank0.json.gz")
    finally:
        memory.__class__._open = real


def test_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setitem(__import__("sys").modules, "fsspec", None)
        with pytest.raises(TraceError) as caught:
            open_url("https://host/x.json")
        assert caught.value.hint == "pip install 'hostgap[remote]'"
    monkeypatch.setattr(
        fsspec.core, "url_to_fs", lambda *_: (_ for _ in ()).throw(ImportError("install s3fs"))
    )
    with pytest.raises(TraceError) as caught:
        open_url("s3://bucket/x.json")
    assert caught.value.hint == "pip install s3fs"


def test_what_is_a_url() -> None:
    assert all(is_url(f"{protocol}://x") for protocol in PROTOCOLS)
    assert not is_url("C:\\traces\\x.json")
    assert not is_url("a/b:c//d.json")
    assert has_pattern("s3://b/*.json")
    assert not has_pattern("https://h/x.json?a=[1]*")


def test_more_events_than_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hostgap.trace import kineto

    monkeypatch.setattr(kineto, "MOST_ROWS", 8192)
    with pytest.raises(TraceError, match=r"more than 8,192 events") as caught:
        hostgap.load_trace(SAMPLES / "eager.json.gz")
    assert "--steps" in str(caught.value.hint)


def test_a_file_that_expands_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gzip

    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (4 << 20)))
    monkeypatch.setattr(source_module, "MOST_BYTES", 1 << 20)
    with pytest.raises(TraceError, match=r"more than 1,048,576 bytes when decompressed"):
        hostgap.load_trace(path)
