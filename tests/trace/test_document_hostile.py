"""Documents made to exhaust a reader: bounded memory, whatever they hold."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hostgap.trace import brackets
from hostgap.trace import document as document_module
from hostgap.trace import events as events_module

PROGRAM = """
import gc, json, re, sys
from hostgap.errors import TraceError
from hostgap.trace.document import Document

class Endless:
    name = "t.json"
    truncated = ""
    def __init__(self, head, unit, size):
        self.head, self.unit, self.left = head, unit * (1 + (1 << 16) // len(unit)), size
    def read(self):
        if self.head:
            head, self.head = self.head, b""
            return head
        self.left -= len(self.unit)
        return self.unit if self.left > 0 else b""

# not getrusage: its peak begins with that of the process that started this one
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
out = []
for head, unit, size in json.loads(sys.argv[1]):
    document = Document(Endless(head.encode(), unit.encode(), size))
    try:
        events = sum(len(block or ()) for block in document.blocks())
        said = f"{events} events; {document.truncated}; {document.not_events}"
    except TraceError as error:
        said = error.message
    del document
    gc.collect()
    out.append([said, peak()])
print(json.dumps(out))
"""
DEEP = 10_000_000
HEAD = '{"traceEvents":[{"ph":"X"},'
# name -> (what the document begins with, what is repeated, bytes), and what is said of it
NESTS = {
    "a document of lists": (("", "[", DEEP), "0 events; ; 1"),
    "a document of objects": (("", '{"a":', DEEP), "nested more than 1000 deep"),
    "lists in metadata": (('{"x":', "[", DEEP), "nested more than 1000 deep"),
    "objects in metadata": (('{"x":', '{"a":', DEEP), "nested more than 1000 deep"),
    "lists in the events": ((HEAD, "[", DEEP), "1 events; the file ends inside the list"),
    "objects in the events": ((HEAD, '{"a":', DEEP), "1 events; the file ends in"),
    "lists in an event": ((HEAD + '{"ph":"X","a":', "[", DEEP), "1 events; the file ends in"),
    "objects in an event": (
        (HEAD + '{"ph":"X","a":', '{"a":', DEEP),
        "1 events; the file ends in",
    ),
    "both in an event": ((HEAD + '{"ph":"X","a":', '[{"a":1},{"b":', DEEP), "too damaged"),
}
LONG = 20 << 20
FLOODS = {
    "spaces before": (("", " \n", LONG), "before any event"),
    "spaces in the object": (('{"a":', " \n", LONG), "before any event"),
    "spaces between events": ((HEAD, " \n", LONG), "1 events; the file ends inside"),
    "spaces after": (("[]", " \n", 5 * LONG), "0 events; ; 0"),
    "zeros after": (("[]", "\0", 5 * LONG), "0 events; ; 0"),
    "a key": (('{"', "k", LONG), "a string does not end"),
    "long keys": (("{", '"%s":1,' % ("\U0001f600" * 5000), 8 * LONG), "before any event"),
    "a metadata string": (('{"a":"', "s", LONG), "a string does not end"),
    "escapes in metadata": (('{"a":"', '\\"', 4 << 20), "before any event"),
    "backslashes in metadata": (('{"a":"', "\\", LONG), "a string does not end"),
    "a metadata list": (('{"a":[', '"},{",{},' * 99, LONG // 4), "before any event"),
    "a number": (('{"a":', "9", LONG), "a value does not end"),
    "a name": ((HEAD + '{"ph":"X","name":"', "n", LONG), "an event longer than 16 MiB"),
    "escapes in a name": (
        (HEAD + '{"ph":"X","name":"', '\\"', 8 << 20),
        "in the middle of an event",
    ),
    "quotes": ((HEAD + '{"ph":"X","name":', '"', 8 << 20), "1 events; the file ends"),
    "commas": (("[", ",", LONG), "0 events; the file ends inside"),
    "closing braces": (('[{"ph":"X"', "}", LONG), "1 events; the file ends inside"),
    "events that are not closed": (
        ("[", '{"ph":"X","a":[', LONG),
        "0 events; the file ends in",
    ),
    "one event over and over": (("[", '{"ph":"s"},' * 99, LONG), "events; the file ends inside"),
}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux to measure memory")
@pytest.mark.parametrize("cases", [NESTS, FLOODS], ids=["nests", "floods"])
def test_bounded_memory(cases: dict[str, tuple[tuple[str, str, int], str]]) -> None:
    arguments = [["[]", " ", 1], *(case for case, _ in cases.values())]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(arguments)],
        capture_output=True,
        timeout=100,
        check=True,
    )
    (_, start), *results = json.loads(done.stdout)
    for (name, (_, expected)), (said, peak) in zip(cases.items(), results, strict=True):
        assert expected in said, name
        assert "\n" not in said, name
        assert peak - start < 96 << 10, name  # KiB


@pytest.mark.parametrize("close", [b"]", b"}"])
def test_deep_nesting_that_closes(read_document: Any, close: bytes) -> None:
    depth = 50_000
    value = b"[" * depth + b"]" * depth if close == b"]" else b'{"a":' * depth + b"1" + b"}" * depth
    read = read_document(b'[{"ph":"X","ts":0},{"ph":"X","a":%s},{"ph":"X","ts":2}]' % value)
    assert [bytes(event.ts) for event in read.events] == [b"0", b"2"]
    assert read.document.damaged == 1


def test_metadata_and_keys_have_a_budget(read_document: Any) -> None:
    top: dict[str, Any] = {f"text{n}": "x" * 1_000_000 for n in range(30)}
    top |= {f"many{n}": [{}] * 100_000 for n in range(30)}
    top["k" * 100_000] = "small"
    read = read_document(json.dumps({**top, "traceEvents": [{"ph": "X"}]}).encode())
    metadata = read.document.metadata
    assert list(metadata)[:16] == [f"text{n}" for n in range(16)]
    assert sum(len(str(value)) for value in metadata.values()) < 17 << 20
    assert metadata["k" * 200] == "small"
    assert not any(isinstance(value, list) for value in metadata.values())
    assert len(read.document.keys) == len(top) + 1
    assert max(map(len, read.document.keys)) == 200
    assert len(read.events) == 1


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "ends early": lambda text: text[:-3],
    "lacks a brace": lambda text: text[:-1],
    "lacks a quote": lambda text: text.replace(b'"k"', b'"k'),
    "has a quote too many": lambda text: text.replace(b'"k', b'"k"x'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_work_is_in_line_with_the_damage(
    read_document: Any, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """Nothing is followed to the end of the buffer, for each event that is damaged."""
    followed = 0

    def follow(buf: bytes, pos: int, *more: int) -> tuple[int, int]:
        nonlocal followed
        end, depth = original(buf, pos, *more)
        followed += end - pos
        return end, depth

    def repair(text: bytes) -> tuple[bytes, set[str]]:
        nonlocal followed
        followed += len(text)
        return fix(text)

    original, fix = brackets.follow, events_module.repair
    for module in (brackets, events_module, document_module):
        for name, wrapper in (("follow", follow), ("repair", repair)):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, wrapper)
    good = json.dumps({"ph": "X", "name": "k", "ts": 1, "args": {"a": 1}}).encode()
    events = [DAMAGE[damage](good) if n % 60 == 59 else good for n in range(60 * 300)]
    read = read_document(b'{"traceEvents":[' + b",".join(events) + b"]}")
    assert 300 <= read.document.damaged <= 600
    assert len(read.events) >= 58 * 300
    assert followed < 5 * sum(map(len, events))


ODD = {
    "a lone surrogate": (b'"name":"\\ud800"', ""),
    "not UTF-8": (b'"name":"\xff"', "bytes that are not UTF-8"),
    "an escape": (b'"name":"C:\\e"', "invalid escapes"),
    "a number": (b'"x":NaN', "non-finite numbers"),
    "a tab": (b'"name":"\t"', ""),
}


@pytest.mark.parametrize("odd", ODD)
def test_odd_events_are_decoded_together(
    read_document: Any, monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    alone: list[bytes] = []

    def lenient(text: bytes) -> Any:
        alone.append(text)
        return events_module.lenient(text)

    monkeypatch.setattr(document_module, "lenient", lenient)
    text, kind = ODD[odd]
    read = read_document(b"[" + b",\n".join([b'{"ph":"X",%s}' % text] * 4096) + b"]")
    assert len(read.events) == 4096
    assert read.document.repaired == ({kind: 4096} if kind else {})
    assert len(alone) < 10
