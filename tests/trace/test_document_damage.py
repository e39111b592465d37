"""Documents that are cut off, damaged, mixed up or hostile: refused or reported, never worse."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from hostgap.errors import TraceError
from hostgap.trace.events import Event

Refusal = Callable[..., TraceError]


def event(number: int, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": f"k{number}", "pid": 0, "ts": number, **more}


EVENTS = [
    event(0),
    event(1, args={"stream": 7, "dims": [[1, 2], []]}),
    event(2, name='k2 },{"ph":"X"},{} \\" ]}'),
    event(3, args={"list": [{"a": 1}, {"ph": "X", "name": "inner"}, {"ph": "X"}]}),
    event(4, name="k4 \u00e9\u2028", tid="stream 7"),
    event(5, args={}),
    event(6),
]
WHOLE = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "H200 ]"}, {"id": 1}],
    "traceEvents": EVENTS,
    "traceName": "},{",
}
LAYOUTS: list[dict[str, Any]] = [
    {},
    {"indent": 1, "ensure_ascii": False},
    {"separators": (",", ":")},
]
SIZES = st.sampled_from([[1], [13], [50, 3], [1 << 16]])


def attempt(read_document: Any, data: bytes, sizes: list[int]) -> Any:
    """The reading, or the error that refused it."""
    try:
        return read_document(data, sizes)
    except TraceError as error:
        return error


def document(layout: int, *, bare: bool = False) -> bytes:
    return json.dumps(EVENTS if bare else WHOLE, **LAYOUTS[layout]).encode()


def ids(events: list[Event]) -> list[tuple[str, bytes]]:
    return [(event.name, bytes(event.ts)) for event in events]


ORIGINAL = [(e["name"], str(e["ts"]).encode()) for e in EVENTS]


def complete_before(data: bytes, cut: int) -> int:
    """How many of EVENTS end before `cut`, told by their own text alone."""
    decoder = json.JSONDecoder()
    text = data.decode()
    position = text.index("[", text.find('"traceEvents"') if text[0] == "{" else 0) + 1
    for number in range(len(EVENTS)):
        while text[position] in ", \n":
            position += 1
        _, position = decoder.raw_decode(text, position)
        if len(text[:position].encode()) > cut:
            return number
    return len(EVENTS)


@pytest.mark.parametrize("layout", range(len(LAYOUTS)))
@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("sizes", [[5], [1 << 16]])
def test_a_cut_keeps_every_event_before_it(
    read_document: Any, layout: int, bare: bool, sizes: list[int]
) -> None:
    data = document(layout, bare=bare)
    refused = 0
    for cut in range(len(data)):
        read = attempt(read_document, data[:cut], sizes)
        if isinstance(read, TraceError):
            assert "before any event" in read.message, cut
            assert b'"traceEvents": [' not in data[:cut], cut
            refused += 1
            continue
        assert ids(read.events) == ORIGINAL[: complete_before(data, cut)], cut
        assert read.document.truncated.startswith("the file ends "), cut
        assert read.document.damaged == 0, cut
    assert 0 < refused < len(data) // 2


@pytest.mark.parametrize("sizes", [[20], [1 << 16]])
def test_a_cut_after_an_event_that_needed_repair(read_document: Any, sizes: list[int]) -> None:
    text = b'[{"ph":"X","ts":0},{"ph":"X","ts":1,"x":NaN},{"ph":"X","ts":2,"a":[{"b":inf},{}]},'
    for cut in range(len(text)):
        read = read_document(text[:cut], sizes) if cut else None
        events = read.events if read else []
        closed = [text.index(end) + len(end) <= cut for end in (b"0}", b"NaN}", b"{}]}")]
        assert len(events) == sum(closed), cut


@settings(max_examples=500, deadline=None)
@given(
    layout=st.integers(0, len(LAYOUTS) - 1),
    bare=st.booleans(),
    at=st.integers(0, 10_000),
    byte=st.one_of(st.sampled_from(list(b'{}[]",:\\ 0x\x00\xff')), st.integers(0, 255)),
    way=st.sampled_from(["replace", "insert", "delete"]),
    sizes=SIZES,
)
def test_one_wrong_byte(
    read_document: Any, layout: int, bare: bool, at: int, byte: int, way: str, sizes: list[int]
) -> None:
    """Refused, or every event away from the damage is there, and what is missing is reported."""
    data = document(layout, bare=bare)
    at %= len(data)
    new = b"" if way == "delete" else bytes([byte])
    broken = data[:at] + new + data[at + (way != "insert") :]
    read = attempt(read_document, broken, sizes)
    if isinstance(read, TraceError):
        assert "\n" not in read.message
        assert read.message.startswith("t.json: ")
        return
    try:
        valid = json.loads(broken)
    except ValueError:
        valid = None
    if valid is not None:
        events = valid.get("traceEvents", []) if isinstance(valid, dict) else valid
        assert len(read.events) == sum("ph" in event for event in events)
        return
    if not read.events:
        assert not (read.clean and read.document.has_events)  # so that it is refused later
        return
    kept = Counter(ids(read.events))
    invented = kept - Counter(ORIGINAL)
    lost = Counter(ORIGINAL) - kept
    assert lost.total() <= 2
    assert invented.total() <= 2  # the inner objects of a broken event
    if lost.total() > invented.total():
        assert not read.clean


@pytest.mark.parametrize("sizes", [[1], [40], [1 << 16]])
def test_the_event_with_a_raw_quote_is_dropped(read_document: Any, sizes: list[int]) -> None:
    bad = b'{"ph":"X","name":"{"device": "cpu"}(12): run"}'
    good = [b'{"ph":"X","ts":%d}' % n for n in range(2)]
    after = b'], "displayTimeUnit": "ms"}'
    for events in ([good[0], bad, good[1]], [good[0], good[1], bad]):
        read = read_document(b'{"traceEvents": [' + b", ".join(events) + after, sizes)
        assert [bytes(event.ts) for event in read.events] == [b"0", b"1"]
        assert read.document.damaged == 1
        assert read.document.first_damage
        assert read.document.truncated == ""
        assert read.document.metadata == {"displayTimeUnit": "ms"}


def test_says_where_the_first_damage_is(read_document: Any) -> None:
    read = read_document(b'[\n{"ph":"X"},\n{"ph":"X" oops},\n{"ph":"X" oops},\n{"ph":"X"}]')
    assert read.document.first_damage == "line 3 column 1 (byte 14)"
    assert read.document.damaged == 2


def test_an_event_that_never_closes_costs_only_itself(read_document: Any) -> None:
    # its missing quote makes the rest of the block look like one open object
    good = [b'{"ph":"X","ts":%d,"name":"%s"}' % (n, b"n" * 100) for n in range(9000)]
    events = [*good[:10], b'{"ph":"X","name":"oops}', *good[10:]]
    read = read_document(b"[" + b",".join(events) + b"]", [4096])
    assert len(read.events) == len(good)
    assert read.document.damaged == 1
    assert read.document.truncated == ""


def test_too_damaged(refusal: Refusal, read_document: Any) -> None:
    def some(good: int) -> bytes:
        return b"[" + b",".join([b'{"ph":"X"}'] * good + [b'{"ph":"X" oops}'] * 101) + b"]"

    assert "too damaged to read: 101 broken events" in refusal(some(2000), [64]).message
    assert read_document(some(2100), [64]).document.damaged == 101


# --- several documents in one file --------------------------------------------------------------


def rank(number: int, layout: int) -> list[bytes]:
    """A trace as its writer's pieces: the head, the events, the foot."""
    head = b'{"schemaVersion": 1, "deviceProperties": [{"id": 0}, {"id": 1}], "traceEvents": ['
    if layout:
        head = b'{\n"traceEvents": [\n'
    events = [
        b"%s{%s}" % (b", " * (n > 0), json.dumps(event(n, pid=number)).encode()[1:-1])
        for n in range(8)
    ]
    return [head, *events, b'], "traceName": "/tmp/t.json"}']


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1), st.integers(0, 10**6), SIZES)
def test_two_ranks_event_by_event(
    refusal: Refusal, layout: int, seed: int, sizes: list[int]
) -> None:
    rng = random.Random(seed)
    ranks = [rank(0, layout), rank(1, layout)]
    mixed = b""
    while any(ranks):
        mixed += rng.choice([pieces for pieces in ranks if pieces]).pop(0)
    error = refusal(mixed, sizes)
    assert "another document" in error.message or "extra data after the end" in error.message
    assert "rank" in error.hint or "several traces" in error.hint


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1), st.integers(0, 10**6), st.sampled_from([1, 3, 20, 100, 400]), SIZES)
@example(0, 0, 1000, [1 << 16])
def test_two_ranks_byte_by_byte(
    read_document: Any, layout: int, seed: int, longest: int, sizes: list[int]
) -> None:
    rng = random.Random(seed)
    ranks = [b"".join(rank(n, layout)) for n in range(2)]
    mixed = b""
    while any(ranks):
        which = rng.choice([n for n in range(2) if ranks[n]])
        size = rng.randint(1, longest)
        mixed, ranks[which] = mixed + ranks[which][:size], ranks[which][size:]
    try:
        json.loads(mixed)
    except ValueError:
        pass
    else:
        assume(False)
    read = attempt(read_document, mixed, sizes)
    if not isinstance(read, TraceError):
        # the second head was torn to pieces that look like any other damage; without events the
        # trace reader refuses it
        assert read.document.damaged or not read.events


@pytest.mark.parametrize(
    "inner", [b'{"traceEvents": [{"ph": "X"}]}', b'{"schemaVersion": 1, "x": 2}']
)
def test_a_document_inside_metadata(refusal: Refusal, inner: bytes) -> None:
    data = b'{"a": [1 %s, 2], "traceEvents": [{"ph": "X"}]}' % inner
    assert "another document begins inside the metadata" in refusal(data).message
