from __future__ import annotations

import gzip
import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hostgap.errors import HostgapError, TraceError
from hostgap.serving.files import is_complete
from hostgap.serving.metrics import load_between, parse, total, whole
from hostgap.serving.server import Answer, KeyRefused, Server, TooSlow, Unreachable
from hostgap.serving.sglang import Sglang
from hostgap.serving.vllm import Vllm


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8000",
        "ftp://localhost",
        "http://",
        "http://:80",
        "http://host:port",
        "http://host:99999",
        "http://host:0",
        "http://[::1",
        "http://user:pw@host",
        "http://host/?a=b",
        "http://host/#a",
        "http://ho st",
        "http://host\n",
        "http://hö.st",
        "file:///etc/passwd",
    ],
)
def test_no_url(url: str) -> None:
    with pytest.raises(HostgapError) as caught:
        Server.at(url)
    assert "pw" not in caught.value.message


def test_urls() -> None:
    assert Server.at("https://host/engine/").url == "https://host/engine"
    assert Server.at("http://[::1]:8000").url == "http://[::1]:8000"


@pytest.mark.parametrize("key", ["a\nb", "schlüssel"])
def test_no_key(key: str) -> None:
    with pytest.raises(HostgapError, match="API key") as caught:
        Server.at("http://host", key)
    assert key not in caught.value.message


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(Server.at("http://host", "secret"))


def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        server = Server.at(f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(Unreachable, match="cannot be reached: Connection refused") as caught:
            server.get("/version")
        assert caught.value.hint
        assert not server.alive()


def test_a_host_of_no_name() -> None:
    with pytest.raises(Unreachable):
        Server.at("http://a..b").get("/version")


def test_a_server_that_hangs() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        server = Server.at(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(TooSlow, match=r"no answer within 0\.2 s"):
            server.get("/version", timeout_s=0.2)


@contextmanager
def answering(status: int, headers: dict[str, str]) -> Iterator[tuple[Server, list[str]]]:
    seen: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield Server.at(f"http://127.0.0.1:{made.server_port}", "secret"), seen
        finally:
            made.shutdown()
            thread.join()


def test_redirects_are_not_followed() -> None:
    with answering(307, {"Location": "/elsewhere"}) as (server, seen):
        with pytest.raises(HostgapError, match="redirects to /elsewhere"):
            server.get("/version")
        assert seen == ["/version"]
        assert server.alive()


def test_forbidden() -> None:
    with answering(403, {}) as (server, _), pytest.raises(KeyRefused, match="HTTP 403"):
        server.get("/version")


def test_a_proxy_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with answering(200, {}) as (server, _):
        assert server.get("/version").status == 200


PAGE = """\
# HELP vllm:x_seconds text
vllm:x_seconds_sum{engine="0",name="a } 3"} 1.5
vllm:x_seconds_sum{engine="1"} 0.5 1700000000
vllm:x_seconds_count{engine="0",name="a } 3"} 10.0
vllm:x_seconds_count{engine="1"} 1e1
vllm:x_seconds_bucket{le="+Inf"} NaN
bare 3
not a sample
broken{a="b"} x
"""


def test_reads_prometheus() -> None:
    samples = parse(PAGE)
    assert total(samples, "vllm:x_seconds_sum") == 2.0
    assert total(samples, "vllm:x_seconds_count") == 20.0
    assert total(samples, "bare") == 3.0
    assert total(samples, "none") is None
    assert set(samples) == {"vllm:x_seconds_sum", "vllm:x_seconds_count", "bare"}


def test_time_between_tokens() -> None:
    names = ["better", "h"]
    before = parse("h_sum 1\nh_count 10")
    load = load_between(before, parse("h_sum 3\nh_count 60"), names, 5.0)
    assert load.latency is not None
    assert (load.latency.mean_ns, load.latency.tokens) == (40_000_000, 50)
    assert (load.latency.metric, load.latency.interval_s) == ("h", 5.0)
    fresh = load_between({}, before, names, 5.0)
    assert fresh.latency is not None
    assert fresh.latency.mean_ns == 100_000_000
    still = load_between(before, before, names, 5.0)
    assert (still.latency, still.tokens) == (None, 0)
    assert still.why_not == "h counted no token in 5.0 s"
    restarted = load_between(parse("h_sum 3\nh_count 60"), before, names, 5.0)
    assert restarted.latency is None
    assert load_between({}, {}, names, 5.0).why_not == "/metrics has no better"
    assert load_between(None, None, names, 5.0).why_not == "the server has no /metrics"


@pytest.mark.parametrize("value", ["-1", "-1e308", "1e300", "+Inf", "NaN", "1e16"])
def test_what_is_no_count_is_not_there(value: str) -> None:
    assert parse(f"a {value}\nb 1") == {"b": {"": 1.0}}


def test_a_sum_that_is_no_count_is_not_there() -> None:
    assert total(parse('a{x="1"} 1e15\na{x="2"} 1e15'), "a") is None


@pytest.mark.parametrize(("seconds", "count"), [(1e15, 1), (1e-15, 1), (5.0, 1e-300)])
def test_a_time_between_tokens_that_is_none(seconds: float, count: float) -> None:
    load = load_between({}, parse(f"h_sum {seconds}\nh_count {count}"), ["h"], 5.0)
    assert load.latency is None
    assert load.why_not


@pytest.mark.parametrize("value", [-1, True, 10**400, 1.5, "3", None])
def test_what_is_no_count_in_json(value: object) -> None:
    assert whole(value) is None
    assert whole(7) == 7


def test_texts_of_a_server_are_printable_and_short() -> None:
    hostile = '"a\\ud800\\u001b[2J\\u202e' + "x" * 10_000 + '"'
    said = [Answer(500, f'{{"message": {hostile}}}').why()]
    said += [Answer(500, "\x1b[31m\ud800").why()]
    said += [Answer(200, f'{{"version": {hostile}}}').text("version") or ""]
    for text in said:
        assert text.isprintable()
        assert text.encode()
        assert 0 < len(text) < 300
    assert Answer(200, '{"version": 3}').text("version") is None


@pytest.mark.parametrize(
    ("name", "role", "text"),
    [
        ("dp1_pp0_tp3_dcp0_ep3_rank11.17.pt.trace.json.gz", "worker", "rank 11 (dp1 pp0 tp3)"),
        ("p_dp0_pp0_tp0_dcp0_ep0_rank0.17.pt.trace.json", "worker", "rank 0 (dp0 pp0 tp0)"),
        ("rank2.17.pt.trace.json.gz", "worker", "rank 2"),
        ("host_12.17.pt.trace.json.gz", "worker", "host_12"),
        ("host_12.async_llm.17.pt.trace.json.gz", "frontend", "frontend (CPU only)"),
    ],
)
def test_files_of_vllm(name: str, role: str, text: str) -> None:
    label = Vllm().label(name)
    assert label is not None
    assert (label.role, label.text) == (role, text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("1763.5-TP-0.trace.json.gz", "TP 0"),
        ("p-1763.5-TP-12-DP-1-PP-0-EP-3.trace.json.gz", "TP 12 DP 1 PP 0 EP 3"),
        ("1763.5-TP-0-DECODE.trace.json.gz", "TP 0 DECODE"),
        ("merged-1763.5.trace.json.gz", None),
        ("merged-1763.5-TP-0.trace.json.gz", None),
        ("1763.5-TP-0-memory.pickle", None),
    ],
)
def test_files_of_sglang(name: str, text: str | None) -> None:
    label = Sglang().label(name)
    assert (label.text if label else None) == text


def test_complete_files(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    whole = gzip.compress(b'{"traceEvents": []}' * 1000)
    assert not is_complete(path)
    for length in (0, 1, 5, 20, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert not is_complete(path), length
    path.write_bytes(whole)
    assert is_complete(path)
    path.write_bytes(whole[:-6] + bytes(6))
    with pytest.raises(TraceError, match="is damaged"):
        is_complete(path)
    plain = tmp_path / "a.json"
    plain.write_text('{"traceEvents": [{}')
    assert is_complete(plain)  # between two events: waiting until it is still tells them apart
    plain.write_text('{"traceEvents": [{"a": 1')
    assert not is_complete(plain)
    plain.write_text('{"traceEvents": []}\n')
    assert is_complete(plain)
