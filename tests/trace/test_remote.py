"""Traces that lie elsewhere, through fsspec's memory file system and a local HTTP server."""

from __future__ import annotations

import functools
import http.server
import threading
import time
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

SAMPLES = Path(__file__).parents[2] / "sample_traces"
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


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    pytest.importorskip("aiohttp")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def send_head(self) -> Any:
            if self.path == "/stalls.json":
                time.sleep(3)
            if self.path.startswith("/login"):
                self.path = "/"  # a page in place of what was asked for
            answer = {"/fails.json": 500, "/private.json": 403}.get(self.path)
            if answer is None:
                return super().send_head()
            self.send_error(answer)
            return None

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
