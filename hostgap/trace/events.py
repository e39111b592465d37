"""One trace event, typed: the fields hostgap reads, decoded at C speed; broken ones read leniently.

msgspec decodes a block of events straight into `Event` and skips every field not named here. What
it refuses (NaN, bad escapes, bytes that are not UTF-8) goes to `lenient`, event by event.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import msgspec

Text = int | float | str | None


class Args(msgspec.Struct, gc=False):
    """The members of `args` that analysis needs."""

    correlation: Text = None
    device: Text = None
    stream: Text = None
    bytes: Text = None
    kind: Text = None
    graph_node: Text = msgspec.field(default=None, name="graph node id")
    name: Text = None  # of a process or thread, in metadata events
    labels: Text = None
    group: Text = msgspec.field(default=None, name="Process Group Ranks")  # of a collective


class Event(msgspec.Struct, gc=False):
    """One trace event. `ph` is required, so that no nested object passes for an event."""

    ph: str
    cat: str | None = None
    name: str = ""
    pid: Text = None
    tid: Text = None
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw()
    args: Args | None = None


DECODER = msgspec.json.Decoder(list[Event])
_ONE = msgspec.json.Decoder(Event)

# a string, or the beginning of one at the end of the text
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
_BAD_ESCAPE = re.compile(rb'(?<!\\)(?:\\\\)*\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_LONE_BACKSLASH = re.compile(rb'\\(\\|")|\\')
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)
_ESCAPE_BYTES = re.compile(_ESCAPE.pattern.encode(), re.DOTALL)
MAX_REPAIRED = 1 << 20  # bytes of an event that are worth a repair
_CONTROL = re.compile(rb"[\x00-\x1f]")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_BARE_HINT = re.compile(rb"[nNiI][aAnN][nNfF]")
_BARE = re.compile(rb"(?<![\w\"])[+-]?(?:(?:inf|Inf|INF)(?:inity)?|nan|NaN|NAN)(?![\w\"])")
_STRING_OR_BARE = re.compile(_STRING.pattern + rb"|" + _BARE.pattern, re.DOTALL)


class _Number(str):
    """A number's text, kept so that it never passes through a float."""


def lenient(text: bytes) -> tuple[Event | None, set[str]] | None:
    """Read one event, with repairs where strict JSON refuses it.

    Args:
        text: one object, `{...}`.

    Returns:
        The event and the kinds of repair it took; (None, kinds) for an object that is not an
        event; None when the text cannot be read at all.
    """
    try:
        return _ONE.decode(text), set()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        if len(text) > MAX_REPAIRED:
            return None
    raw, repairs = repair(text)
    if raw is not text:
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return _ONE.decode(raw), repairs

    def constant(_: str) -> None:
        repairs.add("non-finite numbers")

    try:
        value = loads(raw, parse_float=_Number, parse_int=_Number, parse_constant=constant)
    except (ValueError, RecursionError):
        return None
    return (_event(value) if isinstance(value, dict) else None), repairs


def repair(text: bytes) -> tuple[bytes, set[str]]:
    """Turn what JSON forbids, but writers of traces write, into JSON.

    Args:
        text: an object, or the beginning of one.

    Returns:
        The repaired text, `text` itself where it needs nothing; and the kinds of repair it took
        that are worth a note.
    """
    kinds: set[str] = set()
    raw = text
    if not raw.isascii():
        try:
            raw.decode("utf-8")
        except UnicodeDecodeError:
            kinds.add("bytes that are not UTF-8")
            raw = raw.decode("utf-8", "replace").encode("utf-8")
    if b"\\" in raw:
        if _BAD_ESCAPE.search(raw):
            fixed = _STRING.sub(_literal_backslashes, raw)
            if fixed != raw:
                kinds.add("invalid escapes")
                raw = fixed
        if _SURROGATE.search(raw):
            raw = _ESCAPE_BYTES.sub(lambda m: rb"\ufffd" if m[1] else m[0], raw)
    if _CONTROL.search(raw.strip()) and _CONTROL.search(_in_strings(raw)):
        raw = _STRING.sub(_escaped_controls, raw)
    if _BARE_HINT.search(raw):
        fixed = _without_bare(raw)
        if fixed != raw:
            kinds.add("non-finite numbers")
            raw = fixed
    return (raw, kinds) if raw != text else (text, kinds)


def loads(text: bytes, **options: Any) -> Any:
    """JSON as `json.loads` reads it, control characters allowed, every string fit for UTF-8.

    Bytes that are not UTF-8, and halves of surrogate pairs, become U+FFFD.

    Raises:
        ValueError: not JSON, or a number too long for Python.
        RecursionError: nested too deeply.
    """
    decoded = text.decode("utf-8", "replace")
    if "\\u" in decoded:
        decoded = _ESCAPE.sub(lambda m: r"\ufffd" if m[1] else m[0], decoded)
    return json.loads(decoded, strict=False, **options)


def _literal_backslashes(match: re.Match[bytes]) -> bytes:
    """A string with an invalid escape holds raw backslashes: a Windows path, usually.

    All of its single backslashes are then meant literally, valid escapes such as \\t included.
    """
    token = match[0]
    if b"\\" not in token or not _BAD_ESCAPE.search(token):
        return token
    return _LONE_BACKSLASH.sub(lambda m: b"\\" + m[1] if m[1] else rb"\\", token)


def _in_strings(raw: bytes) -> bytes:
    """The text of all strings."""
    if b"\\" in raw:
        return b"".join(_STRING.findall(raw))
    return b"".join(raw.split(b'"')[1::2])


def _without_bare(raw: bytes) -> bytes:
    """`raw` with bare inf and nan replaced by null, strings untouched."""
    if b"\\" in raw:
        return _STRING_OR_BARE.sub(lambda m: m[0] if m[0][0] == 0x22 else b"null", raw)
    parts = raw.split(b'"')  # outside of strings, inside, outside, ...
    parts[::2] = _BARE.sub(b"null", b'"'.join(parts[::2])).split(b'"')
    return b'"'.join(parts)


def _escaped_controls(match: re.Match[bytes]) -> bytes:
    token = match[0]
    if not _CONTROL.search(token):
        return token
    return _CONTROL.sub(lambda m: b"\\u%04x" % m[0][0], token)


def _event(value: dict[str, Any]) -> Event | None:
    phase = value.get("ph")
    if not isinstance(phase, str) or isinstance(phase, _Number):
        return None
    args = value.get("args")
    category = value.get("cat")
    return Event(
        ph=phase,
        cat=category if isinstance(category, str) else None,
        name=_text(value.get("name")),
        pid=_scalar(value.get("pid")),
        tid=_scalar(value.get("tid")),
        ts=_token(value.get("ts")),
        dur=_token(value.get("dur")),
        args=_args(args) if isinstance(args, dict) else None,
    )


def _args(args: dict[str, Any]) -> Args:
    return Args(
        correlation=_scalar(args.get("correlation")),
        device=_scalar(args.get("device")),
        stream=_scalar(args.get("stream")),
        bytes=_scalar(args.get("bytes")),
        kind=_scalar(args.get("kind")),
        graph_node=_scalar(args.get("graph node id")),
        name=_scalar(args.get("name")),
        labels=_scalar(args.get("labels")),
        group=_scalar(args.get("Process Group Ranks")),
    )


def _text(value: Any) -> str:
    return str(value) if isinstance(value, str) else "" if value is None else json.dumps(value)


def _scalar(value: Any) -> Text:
    if isinstance(value, _Number):
        try:
            return int(value)
        except ValueError:
            return float(value)
    return value if isinstance(value, str) else None


def _token(value: Any) -> msgspec.Raw:
    if isinstance(value, str):
        return msgspec.Raw(str(value).encode("utf-8", "replace"))
    return msgspec.Raw()
