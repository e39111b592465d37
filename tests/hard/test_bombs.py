"""Files that expand, nest or repeat without end: a stated limit, a line, and little memory."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from hostgap.errors import TraceError
from hostgap.trace import document, source
from hostgap.trace.load import load_trace
from tests.hard.build import event, hostgap, launches, write

EVENT = json.dumps(event("kernel", "k", 1, 1, device=0, stream=7, correlation=1)).encode()
HEAD = b'{"traceEvents":[' + EVENT + b","
MEMBER = 16 << 20
# what is compressed: head, then the same again and again -> what is said
BOMBS = {
    "zeros": (b"", b"\0", "not JSON"),
    "spaces": (HEAD, b" ", "expands to more than 250 times its size"),
    "commas": (HEAD, b",", "expands to more than 250 times its size"),
    "padding": (b'{"traceEvents":[' + EVENT + b"]}", b"\0", "expands to more than 250 times"),
    "a string": (HEAD + b'{"ph":"X","name":"', b"a", "an event longer than 16 MiB"),
    "a number": (HEAD + b'{"ph":"X","ts":', b"1", "an event longer than 16 MiB"),
    "lists": (HEAD + b'{"ph":"X","args":', b"[", "too damaged to read"),
    "metadata": (b'{"x":"', b"a", "a string does not end"),
    "no events": (HEAD, b'{"a":1},', "no events"),
}


def bomb(path: Path, head: bytes, unit: bytes, size: int) -> Path:
    """gzip members that expand to `size` bytes and take a thousandth of it."""
    member = gzip.compress(unit * (MEMBER // len(unit)), 6)
    path.write_bytes(gzip.compress(head) + member * (size // MEMBER))
    return path


@pytest.mark.parametrize("name", BOMBS)
def test_a_gigabyte_in_a_megabyte(name: str, tmp_path: Path) -> None:
    head, unit, says = BOMBS[name]
    path = bomb(tmp_path / "t.json.gz", head, unit, 1 << 30)
    assert path.stat().st_size < 4 << 20
    ran = hostgap("analyze", path)
    assert ran.code == 2
    assert says in ran.error
    assert len(ran.error.splitlines()) <= 2
    assert ran.peak_mib < 250


def test_redact_stops_too(tmp_path: Path) -> None:
    path = bomb(tmp_path / "t.json.gz", HEAD, b" ", 1 << 30)
    ran = hostgap("redact", path, "-o", tmp_path / "out.json")
    assert ran.code == 2
    assert "expands to more than 250 times its size" in ran.error
    assert ran.peak_mib < 250
    assert [p.name for p in tmp_path.iterdir()] == ["t.json.gz"]


def test_what_traces_expand_to_is_far_from_the_limit() -> None:
    samples = Path(__file__).parents[2] / "sample_traces"
    for path in samples.glob("*.json.gz"):
        packed = path.read_bytes()
        assert len(gzip.decompress(packed)) * 5 < source.MOST_FOLD * len(packed)


def test_the_limit_counts_from_its_size_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bomb(tmp_path / "t.json.gz", HEAD, b" ", 4 << 20 | MEMBER)
    assert len(load_trace(path).gpu_ops) == 1
    monkeypatch.setattr(source, "FOLD_FROM", 1 << 20)
    with pytest.raises(TraceError, match="expands to more than"):
        load_trace(path)


def test_objects_that_are_no_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some are left out; a list of little else is no trace, however long it goes on."""
    monkeypatch.setattr(document, "_MOST_OTHERS", 50)
    path = tmp_path / "t.json"
    path.write_bytes(HEAD + b'{"a":1},' * 50 + EVENT + b"]}")
    assert len(load_trace(path).gpu_ops) == 2
    path.write_bytes(HEAD + b'{"a":1},' * 51 + EVENT + b"]}")
    with pytest.raises(TraceError, match="51 objects in the list of events are no events"):
        load_trace(path)


@pytest.mark.parametrize("inner", ["[", '{"a":'])
@pytest.mark.parametrize("command", ["analyze", "redact"])
def test_a_million_deep(command: str, inner: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents":[{"ph":"X","args":' + inner * 1_000_000, encoding="ascii")
    more = ["-o", tmp_path / "out.json"] if command == "redact" else []
    ran = hostgap(command, path, *more)
    assert ran.code in (0, 2)
    assert "internal error" not in ran.error
    assert "Traceback" not in ran.error
    assert ran.peak_mib < 250


@pytest.mark.parametrize("where", ["kernel", "op", "frame", "annotation", "process"])
def test_ten_megabytes_of_name(where: str, tmp_path: Path) -> None:
    name = "at::<" * (2 << 20)
    events = launches(4)
    if where == "kernel":
        events = launches(4, name=lambda i: name + str(i))
    elif where == "op":
        events.append(event("cpu_op", name, 90, 40))
    elif where == "frame":
        events.append(event("python_function", name + ".py(3): f", 90, 40))
    elif where == "annotation":
        events += [event("user_annotation", name + str(i), i * 100, 90) for i in range(2)]
    else:
        events.append({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": name}})
    path = write(tmp_path / "t.json.gz", events)
    ran = hostgap("analyze", path, "-o", tmp_path / "o.md", "-o", tmp_path / "o.json")
    assert ran.code == 0, ran.error
    assert ran.peak_mib < 500
    assert (tmp_path / "o.json").stat().st_size < 1 << 20
    assert max(map(len, (tmp_path / "o.md").read_text(encoding="utf-8").splitlines())) < 10_000
