from __future__ import annotations

import gzip
import json
import re
import socket
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostgap.errors import HostgapError, TraceError
from hostgap.trace import rewrite
from hostgap.trace.redact import own_names, redact
from hostgap.trace.rewrite import Rewriter
from hostgap.trace.scrub import Scrubber
from tests.trace.figures import figures
from tests.trace.scan import scan

TRACE: dict[str, Any] = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150754820096}],
    "host_name": "trainer-17.acme.example",
    "username": "alice.smith",
    "tw_job": "secretproject",
    "env": {"HF_TOKEN": "hunter2-token", "nested": [{"x": ["deep-secret", 1.5]}], "n": 3},
    "argv": ["python", "--api-key", "hunter2-key"],
    "distributedInfo": {
        "backend": "nccl",
        "rank": 0,
        "world_size": 2,
        "pg_config": [{"pg_name": "0", "ranks": [0, 1], "master_addr": "10.7.6.5"}],
        "hosts": "trainer-17,trainer-18.acme.com",
    },
    "with_stack": 1,
    "trace_id": "B4754C8218BC4C318F355AAFC229E7B2",
    "displayTimeUnit": "ms",
    "baseTimeNanoseconds": 1767189312000000000,
    "note": "recorded by alice.smith in /home/alice.smith/runs on 10.7.6.5",
    "traceEvents": [
        {
            "ph": "X",
            "cat": "python_function",
            "name": "/home/alice.smith/llm/decode.py(74): step",
            "pid": 100,
            "tid": 100,
            "ts": 1712195495505540.100,
            "dur": 20.5,
            "args": {"Python id": 1, "Python parent id": None},
        },
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::mm",
            "pid": 100,
            "tid": 100,
            "ts": 1712195495505541,
            "dur": 1e1,
            "args": {
                "External id": 1,
                "Call stack": "/home/alice.smith/llm/decode.py(75): step;main.py(1): <module>",
                "kernel_file": "/tmp/torchinductor_alice.smith/ab/cab.py",
                "Concrete Inputs": ["", "0.5", "[]"],
            },
        },
        {
            "ph": "X",
            "cat": "kernel",
            "name": 'void k<"a\\b">(float*)',
            "pid": 0,
            "tid": 7,
            "ts": 1712195495505550,
            "dur": 100,
            "args": {"device": 0, "stream": 7, "correlation": 1, "grid": [1, 1, 1]},
        },
        {
            "ph": "M",
            "name": "process_name",
            "pid": 100,
            "tid": 0,
            "ts": 0,
            "args": {"name": "python3 -m acme.serve --api-key hunter2-key"},
        },
        {
            "ph": "M",
            "name": "process_labels",
            "pid": 100,
            "tid": 0,
            "ts": 0,
            "args": {"labels": "CPU trainer-17"},
        },
    ],
    "ERROR": ["ERROR:2026-01-08 08:51:59 865:3386 X.cpp:47] no /home/alice.smith/libx.so"],
    "traceName": "/home/alice.smith/trainer-17_865.pt.trace.json",
}
SECRETS = ["alice", "trainer-17", "hunter2", "secretproject", "deep-secret", "10.7.6.5", "B4754C82"]
SECRETS += ["acme.com", "/home", "trainer-18"]

STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.S)


def run(text: bytes, *, size: int = 1 << 16, **options: Any) -> bytes:
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    return b"".join(Rewriter(Scrubber(**options)).run(pieces))


def test_nothing_secret_stays_and_every_figure_does() -> None:
    text = json.dumps(TRACE).encode()
    assert len(scan(text, SECRETS)) == len(SECRETS), "scan does not find what is there"
    clean = run(text)
    assert scan(clean, SECRETS) == []
    assert figures(clean) == figures(text)
    kept = json.loads(clean)
    assert kept["env"] == kept["argv"] == kept["traceName"] == "redacted"
    assert kept["distributedInfo"]["pg_config"][0]["ranks"] == [0, 1]
    assert kept["traceEvents"][0]["name"] == "dir1/decode.py(74): step"
    assert kept["traceEvents"][1]["args"]["Concrete Inputs"] == ["", "0.5", "[]"]
    assert kept["traceEvents"][3]["args"]["name"] == "python"
    assert set(kept) == set(TRACE)


@pytest.mark.parametrize("indent", [None, 1, 4])
def test_how_the_text_is_cut_makes_no_difference(
    indent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = json.dumps(TRACE, indent=indent).encode()
    whole = run(text)
    for block in (1, 2, 7, 64, 333):
        monkeypatch.setattr(rewrite, "BLOCK", block)
        # names are looked for in the first block; one that holds them all makes the runs alike
        scrubber = Scrubber(["trainer-17.acme.example", "alice.smith"])
        assert b"".join(Rewriter(scrubber).run([text])) == whole, block


def test_of_unknown_metadata_only_numbers_stay() -> None:
    """Whoever records a trace may write anything there: a list of secrets is never complete."""
    unknown = {
        "WANDB_RUN": "zq9-run",
        "dataset": "zq9-private",
        "team": ["zq9", {"x": "zq9"}],
        "org": {"zq9": ["zq9"]},
        "lr": 0.5,
        "on": True,
        "": "zq9",
    }
    known = {"schemaVersion": 1, "torch_version": "2.11.0", "displayTimeUnit": "ms"}
    gpu = {"id": 0, "name": "NVIDIA H200", "pciBusId": "0000:1a:00.0"}
    group = {"ranks": [0, 1], "pg_desc": "default_pg"}
    known |= {"deviceProperties": [gpu], "distributedInfo": {"rank": 1, "pg_config": [group]}}
    args = {"dataset": "of an event", "x": [{"team": "k"}]}
    event = {"ph": "X", "name": "aten::mm", "ts": 1, "args": args}
    orders: list[dict[str, Any]] = [
        {**unknown, **known, "traceEvents": [event] * 3},
        {"traceEvents": [event] * 3, **known, **unknown},
        {**known, "traceEvents": [event] * 3, **unknown},
        {"traceEvents": [], **unknown, **known},
        {"traceEvents": [event] * 20_000, **unknown, **known},
    ]
    for trace in orders:
        for indent in (None, 1):
            clean = run(json.dumps(trace, indent=indent).encode())
            assert b"zq9" not in clean.replace(b'"zq9":', b"")
            kept = json.loads(clean)
            assert kept["traceEvents"] == trace["traceEvents"]
            assert (kept["lr"], kept["on"]) == (0.5, True)
            assert kept["WANDB_RUN"] == kept["team"] == kept["org"] == "redacted"
            assert kept["deviceProperties"][0] == {**gpu, "pciBusId": "redacted"}
            assert {k: kept[k] for k in known if k != "deviceProperties"} == {
                k: known[k] for k in known if k != "deviceProperties"
            }


def test_a_bracket_too_many_makes_no_metadata_of_events() -> None:
    event = '{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "args": {"External id": 1}}'
    text = '{"traceEvents": [' + f"{event}, {event}}}}}}}, " * 50 + f"{event}]}}"
    assert run(text.encode()) == text.encode()


def test_a_name_known_from_paths_goes_everywhere(tmp_path: Path) -> None:
    """From what stands before it, too."""
    source, out = tmp_path / "t.json", tmp_path / "r.json"
    filler = [{"ph": "X", "name": "aten::mm", "ts": 1}] * 20_000
    named = [
        {"ph": "M", "name": "process_labels", "pid": 1, "args": {"labels": "gpu17 zebediah"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "args": {"name": "zebediah-worker"}},
        {"ph": "i", "name": "[memory] zebediah", "ts": 1},
    ]
    path = {"ph": "X", "name": "/home/zebediah/x.py(3): f", "ts": 1}
    info = {"pg_config": [{"pg_desc": "zebediah_group"}]}
    source.write_text(json.dumps({"distributedInfo": info, "traceEvents": [*named, *filler, path]}))
    redact(source, out)
    assert scan(out.read_bytes(), ["zebediah"]) == []
    assert out.read_bytes().count(b"aten::mm") == len(filler)


def test_every_byte_outside_strings_stays() -> None:
    del_env = {k: v for k, v in TRACE.items() if k not in ("env", "argv", "ERROR")}
    text = (
        json.dumps(del_env, indent=2).encode().replace(b"20.5", b"20.500").replace(b"1.5", b"-0.0")
    )
    assert STRING.sub(b"S", run(text)) == STRING.sub(b"S", text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JSON, st.booleans(), st.integers(1, 40))
def test_any_json_keeps_its_shape_and_numbers(value: Any, ascii_only: bool, size: int) -> None:
    text = json.dumps({"ph": value, "x": 1}, ensure_ascii=ascii_only).encode("utf-8", "replace")
    clean = run(text, size=size)
    assert json.loads(clean)["x"] == 1
    if b"redacted" not in clean:
        assert STRING.sub(b"S", clean) == STRING.sub(b"S", text)


@given(st.binary(max_size=300), st.integers(1, 50))
def test_any_bytes_come_through_without_an_error(junk: bytes, size: int) -> None:
    run(b'{"traceEvents": [' + junk, size=size)


@settings(max_examples=300)
@given(st.data())
def test_damage_never_lets_a_path_or_a_key_through(data: st.DataObject) -> None:
    text = bytearray(
        json.dumps(TRACE["traceEvents"], indent=data.draw(st.sampled_from([None, 1]))), "utf"
    )
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        what = data.draw(st.sampled_from(["cut", "quote", "drop", "newline", "backslash"]))
        if what == "cut" and at > len(text) // 2:
            del text[at:]
        elif what == "drop" and text[at : at + 1] in (b'"', b",", b"}", b":", b"{"):
            del text[at]
        elif what == "quote":
            text[at:at] = b'"'
        elif what == "backslash":
            text[at:at] = b"\\"
        elif what == "newline":
            at = text.find(b",", at)
            text[at:at] = b"\n"
    clean = run(bytes(text))
    # a quote in the middle of a path leaves two halves, of which only the first is known as one
    for secret in (b"/home/alice", b"--api-key"):
        assert secret not in clean, bytes(text)


def test_broken_text_is_replaced_and_announced() -> None:
    text = b"""{"traceEvents": [
        {"ph": "X", "ts": 1,
         "Call stack": /home/alice/train.py(12): main;b.py(4): f
        },
        {"ph": "X", "ts": 2}]}"""
    rewriter = Rewriter(Scrubber())
    clean = b"".join(rewriter.run([text]))
    assert json.loads(clean)["traceEvents"][1] == {"ph": "X", "ts": 2}
    assert scan(clean, ["alice", "train.py"]) == []
    assert list(rewriter.damage) == ["text that is not JSON was replaced"]


def test_unescaped_quotes_cost_one_name() -> None:
    text = (
        b'[{"ph": "X", "name": "{"dev": "/home/alice"}(12): run", "pid": 1, "ts": 5}, {"ph": "X"}]'
    )
    clean = run(text)
    assert json.loads(clean)[0] == {"ph": "X", "name": "redacted", "pid": 1, "ts": 5}


def test_an_unfinished_string_is_dropped_and_announced() -> None:
    rewriter = Rewriter(Scrubber())
    clean = b"".join(rewriter.run([b'[{"ph": "X", "ts": 12.50, "name": "/home/alice\\"/x']))
    assert clean == b'[{"ph": "X", "ts": 12.50, "name": '
    assert any("unfinished string" in line for line in rewriter.damage)


def test_a_bare_address_is_not_a_number() -> None:
    assert scan(run(b'[{"ph": "X", "ts": 1.5, "x": 10.1.2.3, "y": 2}]'), ["10.1.2.3"]) == []


@pytest.mark.parametrize("tail", [b'x", "ts": 7}]', b'\\\\", "ts": 7}]', b'\\"", "ts": 7}]'])
def test_a_string_too_long_to_hold_is_replaced(tail: bytes) -> None:
    text = b'[{"ph": "X", "a,b": "s3cret' + b",y\\\\" * 800_000 + tail
    for size in (1 << 16, (1 << 16) + 1):
        rewriter = Rewriter(Scrubber())
        clean = b"".join(rewriter.run(text[i : i + size] for i in range(0, len(text), size)))
        assert json.loads(clean) == [{"ph": "X", "a,b": "redacted", "ts": 7}]
        assert any("over 1 MiB" in line for line in rewriter.damage)


SECRET_KEYS = [
    "token",
    "api_token",
    "wandb_api_key",
    "hf_token",
    "access_key",
    "secret",
    "password",
]


@pytest.mark.parametrize("key", SECRET_KEYS)
@pytest.mark.parametrize("value", ["zq9", ["zq9", 1], {"a": {"b": "zq9"}}])
def test_secrets_under_ordinary_keys_go(key: str, value: Any) -> None:
    event = {"ph": "X", "ts": 1, "args": {"a": "x", key: value, "b": "y"}}
    text = json.dumps([event] * 3).encode()
    args = {"a": "x", key: "redacted", "b": "y"}
    assert json.loads(run(text)) == [{"ph": "X", "ts": 1, "args": args}] * 3
    event["args"] = {key: value}
    assert json.loads(run(json.dumps([event]).encode()))[0]["args"] == {key: "redacted"}


def test_a_word_that_is_no_key_stays_and_a_number_too() -> None:
    text = b'[{"ph": "X", "name": "attention.key", "args": {"token": 17, "key": "", "x": ["key"]}},'
    assert run(text + b"1]") == text + b"1]"


def test_bytes_that_are_not_utf8_are_no_reason_to_go_slowly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> bytes:
        raise AssertionError("token by token")

    text = b'[{"ph": "X", "name": "\xff0 \xff1 \\\\ \\" /home/alice/x.py"}, {"ph": "X", "ts": 2},'
    monkeypatch.setattr(Rewriter, "_one_by_one", fail)
    done = next(Rewriter(Scrubber()).run([text]))
    assert done.endswith(b', {"ph": "X", "ts": 2},')
    assert b"alice" not in done


def test_a_secret_whose_key_is_torn_goes() -> None:
    lost = run(b'[{"ph": "X", "e"nv":{"x":"zq9",\n"y":"zq9"}},\n{"ph": "X", "ts": 7}]')
    assert b"zq9" not in lost.split(b"\n")[0]
    for text in (b'{"a": 1x"nv":{"x":"zq9"},\n"ph": 7}', b'{"a": 1, env: ["zq9"],\n"ph": 7}'):
        clean = run(text)
        assert b"zq9" not in clean, clean
        assert clean.endswith(b'"ph": 7}')
    kept = b'{"a": redacted"traceEvents": [{"ph": "X", "name": "aten::mm"}]}'
    assert b"aten::mm" in run(kept)


def test_a_list_that_lost_its_bracket_goes() -> None:
    clean = run(b'{"cmdline":"python","zq9argv", "zq9"], "ph": "X", "name": "k"}')
    assert clean == b'{"cmdline":"redacted","redacted", "redacted"], "ph": "X", "name": "k"}'
    cut = run(b'{"ph": "X", "cmdline":"python","zq9argv"]}', size=1)
    assert b"zq9" not in cut


@pytest.mark.parametrize("bomb", [b"\0", b"[", b'{"a":', b'{"ph":', b"[[1],", b" "])
def test_bombs_are_refused_early(bomb: bytes, tmp_path: Path) -> None:
    source = tmp_path / "t.json.gz"
    head = b'{"a": 1,'
    source.write_bytes(gzip.compress(head + bomb * ((20 << 20) // len(bomb)), 1))
    with pytest.raises(TraceError, match=r"no trace events in the first 16 MiB|nested over 1000"):
        redact(source, tmp_path / "out.json")
    assert list(tmp_path.iterdir()) == [source]


def test_memory_is_bounded() -> None:
    event = b'{"ph": "X", "cat": "python_function", "name": "/home/u%d/x.py(1): f", "ts": %d.5},\n'

    def blocks() -> Iterator[bytes]:
        yield b'{"traceEvents": [\n'
        for i in range(20):
            yield b"".join(event % (j % 50, i * 10000 + j) for j in range(10_000))
        yield b'{"ph": "X"}]}'

    tracemalloc.start()
    size = sum(len(block) for block in Rewriter(Scrubber()).run(blocks()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > 12e6
    assert peak < 10e6


def test_a_host_named_after_the_events_is_found_before_them(tmp_path: Path) -> None:
    source, out = tmp_path / "t.json", tmp_path / "r.json.gz"
    filler = ", ".join('{"ph": "X", "name": "aten::mm", "ts": 1}' for _ in range(20_000))
    source.write_text(
        '{"traceEvents": [{"ph": "X", "name": "served by node-9911"}, '
        f'{filler}], "host_name": "node-9911.acme.example"}}'
    )
    redact(source, out)
    assert scan(gzip.decompress(out.read_bytes()), ["node-9911"]) == []


def test_this_machine_and_user_are_taken_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "gpubox-3.acme.lan")
    monkeypatch.setattr("getpass.getuser", lambda: "alicia")
    assert own_names() == ["gpubox-3.acme.lan", "alicia"]
    source, out = tmp_path / "t.json", tmp_path / "r.json"
    source.write_text('[{"ph": "X", "name": "alicia on gpubox-3", "ts": 1}]')
    assert redact(source, out).changed == 1
    assert json.loads(out.read_text())[0]["name"] == "redacted on redacted"


def test_a_user_without_a_name_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise KeyError("uid 1234")

    monkeypatch.setattr("getpass.getuser", fail)
    assert own_names() == [socket.gethostname()]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"SQLite format 3\0" + bytes(100), "the database is damaged"),
        (b'{"nodes": [], "schema": "1.0"}', "no traceEvents"),
        (b"\x80\x04binary", "pickle"),
        (b"", "empty"),
    ],
)
def test_refuses_what_is_no_trace(tmp_path: Path, data: bytes, message: str) -> None:
    source = tmp_path / "t.json"
    source.write_bytes(data)
    with pytest.raises(TraceError, match=message) as caught:
        redact(source, tmp_path / "out.json")
    assert "\n" not in caught.value.message
    assert list(tmp_path.iterdir()) == [source]


def test_refuses_a_pipe_and_an_existing_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="pipe"):
        redact("-", tmp_path / "o.json")
    source = tmp_path / "t.json"
    source.write_text("[]")
    with pytest.raises(HostgapError, match="exists"):
        redact(source, source)
    assert source.read_text() == "[]"


def test_scan_sees_through_escapes() -> None:
    text = rb'"\/home\/Alice" "C:\\Users\\bob" "caf\u00e9x"'
    assert scan(text, ["/home/alice", r"C:\users\bob", "caféx", "carol"]) == [
        "/home/alice",
        r"C:\users\bob",
        "caféx",
    ]
