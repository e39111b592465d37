"""Whole documents: whatever the layout and wherever the blocks end, the events are JSON's."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostgap.errors import TraceError
from hostgap.trace.events import Event

Refusal = Callable[..., TraceError]

# Text that looks like the structure around it.
TRAPS = [
    "},{",
    "}, {",
    "]",
    "]}",
    '"',
    '\\"',
    "\\",
    '"traceEvents":[',
    "[{",
    "{}",
    "é\u2028",
    "\x7f",
]
TEXT = st.one_of(
    st.lists(st.sampled_from([*TRAPS, "a", " "]), max_size=4).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
)
SCALAR = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXT)
JSON = st.recursive(
    SCALAR.filter(lambda v: v not in (float("inf"), float("-inf"))),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
ID = st.one_of(st.integers(-(2**70), 2**70), st.sampled_from(["stream 7", "", "Spans"]), st.none())
EVENT = st.fixed_dictionaries(
    {"ph": st.sampled_from("XMisf")},
    optional={
        "name": TEXT,
        "cat": st.one_of(st.none(), TEXT),
        "pid": ID,
        "tid": ID,
        "ts": st.one_of(st.integers(0, 10**16), st.decimals(0, 10**9, places=3).map(float)),
        "dur": st.integers(0, 1000),
        "id": JSON,
        "args": st.dictionaries(TEXT, JSON, max_size=3),
    },
)
METADATA = st.dictionaries(TEXT.filter(lambda key: key != "traceEvents"), JSON, max_size=3)
LAYOUT = st.fixed_dictionaries(
    {
        "indent": st.sampled_from([None, None, 0, 1, "\t"]),
        "separators": st.sampled_from([(",", ":"), (", ", ": "), (" ,\r\n ", " : ")]),
        "ensure_ascii": st.booleans(),
        "sort_keys": st.booleans(),
    }
)
SIZES = st.one_of(st.just([1]), st.lists(st.integers(1, 60), min_size=1, max_size=5))


def view(event: Event) -> tuple[Any, ...]:
    """An event as comparable values; times are as they are written."""
    args = event.args
    ids = (args.correlation, args.stream, args.name) if args else ()
    times = tuple(bytes(t) for t in (event.ts, event.dur))
    return (event.ph, event.cat, event.name, event.pid, event.tid, *times, *ids)


def expected(event: dict[str, Any]) -> tuple[Any, ...]:
    """The same of an event as `json.loads` gives it; the strategies keep it regular."""
    args = event.get("args")
    known = ("correlation", "stream", "name")
    ids = tuple(args.get(key) for key in known) if args is not None else ()
    times = tuple(json.dumps(event[key]).encode() if key in event else b"" for key in ("ts", "dur"))
    return (
        event["ph"],
        event.get("cat"),
        event.get("name", ""),
        event.get("pid"),
        event.get("tid"),
        *times,
        *ids,
    )


@settings(max_examples=250, deadline=None)
@given(
    events=st.lists(EVENT, max_size=6),
    before=METADATA,
    after=METADATA,
    layout=LAYOUT,
    sizes=SIZES,
    bom=st.booleans(),
)
def test_equals_json(
    read_document: Any,
    events: list[dict[str, Any]],
    before: dict[str, Any],
    after: dict[str, Any],
    layout: dict[str, Any],
    sizes: list[int],
    bom: bool,
) -> None:
    top = {**before, "traceEvents": events}
    top.update((key, value) for key, value in after.items() if key not in before)
    data = json.dumps(top, **layout).encode()
    read = read_document(b"\xef\xbb\xbf" * bom + data, sizes)
    assert [view(event) for event in read.events] == [expected(event) for event in events]
    assert read.document.metadata == {k: v for k, v in top.items() if k != "traceEvents"}
    assert read.document.keys == list(json.loads(data))
    assert read.document.events == len(events)
    assert read.clean
    assert not read.document.is_list


@settings(max_examples=100, deadline=None)
@given(st.lists(EVENT, max_size=6), LAYOUT, SIZES)
def test_a_bare_list(
    read_document: Any, events: list[dict[str, Any]], layout: dict[str, Any], sizes: list[int]
) -> None:
    read = read_document(json.dumps(events, **layout).encode(), sizes)
    assert [view(event) for event in read.events] == [expected(event) for event in events]
    assert read.clean
    assert read.document.is_list
    assert read.document.has_events


@settings(max_examples=60, deadline=None)
@given(st.lists(EVENT, max_size=3), st.lists(EVENT, max_size=3), SIZES)
def test_the_last_list_counts(
    read_document: Any, first: list[Any], second: list[Any], sizes: list[int]
) -> None:
    data = b'{"traceEvents":%s,"a":1,"traceEvents":%s}'
    read = read_document(data % (json.dumps(first).encode(), json.dumps(second).encode()), sizes)
    assert [view(event) for event in read.events] == [expected(event) for event in second]
    assert read.document.events == len(second)
    assert read.document.keys == ["traceEvents", "a", "traceEvents"]
    assert read.clean


ODD = [
    b'"x":NaN',
    b'"x":[1,-Infinity]',
    b'"x":inf',
    b'"name":"C:\\e\\main.py"',
    b'"name":"\xb0\xff"',
    b'"name":"\\ud800 },{"',
    b'"name":"tab\there"',
    b'"name":"\\u00e9\\n C:\\\\e },{","x":NaN',
    b'"pid":true',
    b'"args":[{"a":1},{"ph":"X"}],"x":nan',
    b'"x":[{"a":1},{"ph":"X"}]',
]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(EVENT, st.sampled_from(ODD)), max_size=8), SIZES)
def test_odd_events_do_not_depend_on_the_blocks(
    read_document: Any, parts: list[Any], sizes: list[int]
) -> None:
    texts = [
        b'{"ph":"X",%s}' % part if isinstance(part, bytes) else json.dumps(part).encode()
        for part in parts
    ]
    data = b'{"traceEvents":[' + b", ".join(texts) + b'],"displayTimeUnit":"ms"}'
    whole = read_document(data)
    pieces = read_document(data, sizes)
    assert len(whole.events) == len(parts)
    assert [view(e) for e in pieces.events] == [view(e) for e in whole.events]
    assert pieces.report == whole.report
    assert whole.document.damaged == whole.document.not_events == 0
    for event, part in zip(whole.events, parts, strict=True):
        event.name.encode()  # no half surrogates: every output is UTF-8
        if not isinstance(part, bytes):
            assert view(event) == expected(part)


@pytest.mark.parametrize("size", [1, 7, 1 << 16])
def test_repairs(read_document: Any, size: int) -> None:
    events = b",".join(b'{"ph":"X","name":"n","ts":1.5,%s}' % odd for odd in ODD)
    read = read_document(b"[" + events + b"]", [size])
    names = [event.name for event in read.events]
    assert names[:3] == ["n"] * 3
    assert names[3:7] == [r"C:\e\main.py", "\ufffd\ufffd", "\ufffd },{", "tab\there"]
    assert names[7] == "é\n C:\\e },{"
    assert all(bytes(event.ts) == b"1.5" for event in read.events)
    assert read.document.repaired == {
        "non-finite numbers": 5,
        "invalid escapes": 1,
        "bytes that are not UTF-8": 1,
    }


def test_metadata_that_is_not_json_is_kept_as_text(read_document: Any) -> None:
    data = rb'{"path":"C:\q","n":[NaN,nan],"half":"\ud800","long":%s,"traceEvents":[]}' % (
        b"9" * 5000
    )
    metadata = read_document(data).document.metadata
    assert metadata["path"] == r'"C:\q"'
    assert metadata["n"] == "[NaN,nan]"
    assert metadata["half"] == "\ufffd"
    assert metadata["long"] == "9" * 5000


@pytest.mark.parametrize("size", [100, 1 << 16])
def test_depth_of_metadata(read_document: Any, refusal: Refusal, size: int) -> None:
    def nested(depth: int) -> bytes:
        return b'{"a":%s%s,"traceEvents":[]}' % (b"[" * depth, b"]" * depth)

    assert read_document(nested(900), [size]).document.keys == ["a", "traceEvents"]
    assert "nested more than 1000 deep" in refusal(nested(1001), [size]).message


def test_long_metadata_is_passed_over(read_document: Any) -> None:
    top = {"a": "x" * 1_100_000, "b": ['\\"' * 9] * 60_000, "traceEvents": [{"ph": "X"}], "c": 1}
    read = read_document(json.dumps(top).encode(), [1000])
    assert read.document.metadata == {"c": 1}
    assert read.document.keys == list(top)
    assert len(read.events) == 1


@pytest.mark.parametrize("lists", [1, 40_000])
def test_long_events(read_document: Any, lists: int) -> None:
    # longer than the reader waits for the end of an event that looks damaged
    value = {"list": [{"a": "b" * (400_000 // lists)}] * lists}
    event = {"ph": "X", "name": "},{" * 10, "args": value}
    read = read_document(json.dumps([event, event]).encode(), [4096])
    assert [event.name for event in read.events] == ["},{" * 10] * 2
    assert read.clean


def test_much_behind_the_list(read_document: Any) -> None:
    data = json.dumps({"traceEvents": [{"ph": "X"}] * 2, "x": ["]" * 1000] * 20_000, "y": 1})
    read = read_document(data.encode(), [4096])
    assert read.document.events == 2
    assert read.document.metadata == {"y": 1}
    assert read.clean


def test_leading_and_trailing_space(read_document: Any) -> None:
    read = read_document(b" \r\n\t" * 50 + b'[{"ph":"X"}]' + b" \n" * 50 + b"\0" * 50, [3])
    assert len(read.events) == 1
    assert read.clean


def test_commas_too_many_or_too_few(read_document: Any) -> None:
    read = read_document(b'{"a":1,,"traceEvents":[,{"ph":"X"},,{"ph":"X"} {"ph":"X"},],}')
    assert len(read.events) == 3
    assert read.document.damaged == 0


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{a:1}", "a quoted key is missing"),
        (b'{"a" 1}', "':' is missing after 'a'"),
        (b'{"a":1} {"b":2}', "extra data after the end"),
        (b'[{"ph":"X"}][{"ph":"X"}]', "extra data after the end"),
        (b'{"traceEvents":[]}x', "extra data after the end"),
        (b"\x01\x02", "binary data"),
        (b"{", "ends in the middle of the JSON document, before any event"),
        (b'{"a":"b', "before any event"),
        (b"", "before any event"),
    ],
)
@pytest.mark.parametrize("size", [1, 100])
def test_refusals(refusal: Refusal, data: bytes, words: str, size: int) -> None:
    assert words in refusal(data, [size]).message


def test_a_refusal_says_where(refusal: Refusal) -> None:
    assert refusal(b'{"a": 1,\n  b: 2}').message.endswith("at line 2 column 3 (byte 11)")
    assert refusal(b'{"a": 1,\n  b: 2}', [2]).message.endswith("at byte 11")
