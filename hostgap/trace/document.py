"""The JSON document around the events, read as a stream.

A trace of gigabytes is never held whole. `Document` walks the top-level members (metadata can come
before or after the events, or be missing; a bare list of events is legal), and hands the events on
in blocks: each block ends at a `}` `,` `{` between two events, is wrapped in brackets and decoded.
The decoder is the proof that the cut was right, because a cut inside a string or an object cannot
parse. A block that does not parse is read event by event, and what is dropped is counted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from hostgap.errors import TraceError
from hostgap.trace.events import DECODER, Event, lenient
from hostgap.trace.source import Source

_SPACE = b" \t\r\n"
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)
_OPEN_TOKEN = re.compile(rb'["{}\[\]]')
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_CLOSING = re.compile(rb"\}\s*(?=\]\s*(?:,\s*\"|\}|\Z))")  # the list's last object
_SCALAR_END = re.compile(rb"[,\]}\s]")

_MAX_EVENT = 64 << 20  # bytes; an "event" longer than this is damage
_MAX_KEPT = 1 << 20  # bytes of a metadata value that are kept
_MAX_DEPTH = 1000  # of nested metadata
_MAX_KEYS = 10_000


class _Truncated(Exception):
    """The document ends where more was due."""


class Document:
    """A trace document being read. Iterate over `blocks()` once; then look at the attributes.

    Attributes:
        keys: the top-level keys, in order.
        metadata: the values of the top-level keys (those under 1 MiB).
        is_list: the document is a bare list of events.
        has_events: a list of events was found.
        truncated: why the document ends early, "" when it is whole.
        damaged: stretches of text that had to be dropped, `first_damage` says where the first is.
        repaired: kinds of repair -> number of events.
        not_events: objects in the list that are no events; `shape` holds the keys of the first.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.keys: list[str] = []
        self.metadata: dict[str, Any] = {}
        self.is_list = False
        self.has_events = False
        self.truncated = ""
        self.damaged = 0
        self.first_damage = ""
        self.repaired: Counter[str] = Counter()
        self.not_events = 0
        self.shape = ""
        self.events = 0
        self._buf = b""
        self._pos = 0
        self._base = 0  # bytes of the document before _buf

    def blocks(self) -> Iterator[list[Event] | None]:
        """The events, block by block.

        Yields:
            A list of events; or None, which takes back all events so far: a later
            `traceEvents` member supersedes an earlier one, as in every JSON reader.

        Raises:
            TraceError: the text is not JSON, holds several documents, or is too damaged.
        """
        try:
            first = self._peek()
            if first == b"[":
                self.is_list = self.has_events = True
                self._pos += 1
                yield from self._events()
            elif first == b"{":
                self._pos += 1
                yield from self._members()
            else:
                raise self._error("this is not JSON")
            if not self.truncated:
                self._expect_end()
        except _Truncated:
            self._end_early("the file ends in the middle of the JSON document")
        if self.source.truncated:
            self.truncated = self.source.truncated

    def _end_early(self, reason: str) -> None:
        if not self.has_events:
            raise TraceError(
                f"{self.source.name}: {self.source.truncated or reason}, before any event",
                "the profiler was killed while writing; record the trace again",
            )
        self.truncated = reason

    # --- the top-level object ---------------------------------------------------------------

    def _members(self) -> Iterator[list[Event] | None]:
        while True:
            byte = self._peek()
            if byte == b"}":
                self._pos += 1
                return
            if byte == b",":
                self._pos += 1
                continue
            if byte != b'"':
                raise self._error("a quoted key is missing")
            key = _decode_string(self._string())
            if self._peek() != b":":
                raise self._error(f"':' is missing after {key[:40]!r}")
            self._pos += 1
            if len(self.keys) < _MAX_KEYS:
                self.keys.append(key)
            if key == "traceEvents" and self._peek() == b"[":
                self._pos += 1
                if self.has_events:
                    yield None
                    self.events = 0
                self.has_events = True
                yield from self._events()
                if self.truncated:
                    return
            else:
                value = self._value()
                if value is not None and len(self.metadata) < _MAX_KEYS:
                    self.metadata[key] = _loads(value)

    def _expect_end(self) -> None:
        while True:
            rest = self._buf[self._pos :].lstrip(_SPACE + b"\0")
            if rest:
                self._pos = len(self._buf) - len(rest)
                raise self._error(
                    "extra data after the end of the JSON document",
                    "several traces written to one file? split them, or record them again",
                )
            if not self._fill():
                return

    def _string(self) -> bytes:
        """The string token at the cursor, quotes included."""
        while True:
            match = _STRING.match(self._buf, self._pos)
            if match:
                self._pos = match.end()
                return match[0]
            if len(self._buf) - self._pos > _MAX_EVENT:
                raise self._error("a string does not end")
            self._need()

    def _value(self) -> bytes | None:
        """Skip the value at the cursor; its text, or None when it is longer than is kept."""
        byte = self._peek()
        if byte == b'"':
            text = self._string()
            return text if len(text) <= _MAX_KEPT else None
        if byte not in (b"{", b"["):
            while (end := _SCALAR_END.search(self._buf, self._pos)) is None:
                if len(self._buf) - self._pos > _MAX_KEPT:
                    raise self._error("a value does not end")
                self._need()
            text = self._buf[self._pos : end.start()]
            self._pos = end.start()
            return text
        return self._nested()

    def _nested(self) -> bytes | None:
        depth = 0
        kept: list[bytes] | None = []
        size = 0
        while True:
            start = self._pos
            closed = False
            while token := _OPEN_TOKEN.search(self._buf, self._pos):
                if token[0] == b'"':
                    match = _STRING.match(self._buf, token.start())
                    if match is None:
                        self._pos = token.start()
                        break
                    self._pos = match.end()
                    continue
                self._pos = token.end()
                depth += 1 if token[0] in b"{[" else -1
                if depth > _MAX_DEPTH:
                    raise self._error(f"values nested more than {_MAX_DEPTH} deep")
                if depth == 0:
                    closed = True
                    break
            else:
                self._pos = len(self._buf)
            size += self._pos - start
            if kept is not None:
                kept.append(self._buf[start : self._pos])
                if size > _MAX_KEPT:
                    kept = None
            if closed:
                return b"".join(kept) if kept is not None else None
            if len(self._buf) - self._pos > _MAX_EVENT:
                raise self._error("a string does not end")
            self._need()

    # --- the list of events ------------------------------------------------------------------

    def _events(self) -> Iterator[list[Event]]:
        """Blocks of events up to the list's closing bracket, which is consumed."""
        while True:
            cut = _last_boundary(self._buf, self._pos)
            if cut is None:
                if len(self._buf) - self._pos > _MAX_EVENT:
                    raise self._error(f"an event longer than {_MAX_EVENT >> 20} MiB")
                if self._fill():
                    continue
                events, closed = self._careful(self._pos, len(self._buf), last=True)
                if events:
                    self.events += len(events)
                    yield events
                if not closed:
                    self._end_early(self.truncated or "the file ends inside the list of events")
                return
            end, after = cut
            closed = False
            try:
                events = DECODER.decode(
                    b"".join((b"[", memoryview(self._buf)[self._pos : end], b"]"))
                )
                self._pos = after
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                events, closed = self._careful(self._pos, end, last=False)
                if not closed:
                    self._pos = after
            self.events += len(events)
            yield events
            if closed:
                return
            if self.not_events > 1000 and not self.events:
                return  # a long list of something else: there is no need to read it all

    def _careful(self, pos: int, end: int, *, last: bool) -> tuple[list[Event], bool]:
        """Read the events in `_buf[pos:end]` although they do not decode together.

        Halves are tried, then quarters: only the pieces that hold something odd are read slowly.

        Args:
            last: nothing follows `end`, so an event may break off there.

        Returns:
            The events, and whether the list's closing bracket was met (then `_pos` is behind it).
        """
        events: list[Event] = []
        bounds = [pos, *(match.end() for match in _BETWEEN.finditer(self._buf, pos, end)), end]
        todo = [(0, len(bounds) - 1)]
        while todo:
            low, high = todo.pop()
            while low < high and bounds[low] < pos:  # a bound inside a string, already passed
                low += 1
            if low >= high:
                continue
            if high - low > 1:
                text = self._buf[bounds[low] : bounds[high]].rstrip(_SPACE + b",")
                try:
                    events += DECODER.decode(b"[" + text + b"]")
                    pos = bounds[high]
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    middle = (low + high) // 2
                    todo += [(middle, high), (low, middle)]
                continue
            pos, closed = self._piece(max(pos, bounds[low]), bounds[high], end, last, events)
            if closed:
                self._pos = pos
                return events, True
        self._pos = end
        return events, False

    def _piece(
        self, pos: int, piece_end: int, end: int, last: bool, events: list[Event]
    ) -> tuple[int, bool]:
        """Read the objects that start in `_buf[pos:piece_end]`; where it stopped, and if at `]`."""
        while True:
            while pos < piece_end and self._buf[pos] in b" \t\r\n,":
                pos += 1
            if pos >= piece_end:
                return pos, False
            if self._buf[pos] == 0x5D:  # "]"
                return pos + 1, True
            stop = _object_end(self._buf, pos, end)
            result = lenient(self._buf[pos:stop]) if stop is not None else None
            if stop is None or result is None:
                if last and stop is None and piece_end == end:
                    self.truncated = "the file ends in the middle of an event"
                else:
                    closing = _CLOSING.search(self._buf, pos, piece_end)
                    stop = closing.end() if closing else piece_end
                    self._damage(pos, stop)
                    if closing:
                        pos = stop
                        continue
                return piece_end, False
            event, repairs = result
            self.repaired.update(repairs)
            if event is not None:
                events.append(event)
            else:
                self.not_events += 1
                self.shape = self.shape or self._buf[pos : min(stop, pos + 200)].decode(
                    "utf-8", "replace"
                )
            pos = stop

    def _damage(self, start: int, end: int) -> None:
        """Drop a stretch of text that is not JSON."""
        text = self._buf[start:end]
        if b'"schemaVersion"' in text or b'"traceEvents"' in text:
            self._pos = start
            raise self._error(
                "another document begins inside the list of events",
                "several processes wrote to this file at once; give each rank its own file",
            )
        self.damaged += 1
        if not self.first_damage:
            self.first_damage = self._where(start)
        if self.damaged > 100 and self.damaged * 20 > self.events:
            self._pos = start
            raise self._error(f"too damaged to read: {self.damaged} broken events so far")

    # --- the buffer --------------------------------------------------------------------------

    def _fill(self) -> bool:
        """Append the next block of the file, dropping what has been consumed; False at the end."""
        block = self.source.read()
        if not block:
            return False
        self._base += self._pos
        self._buf = self._buf[self._pos :] + block
        self._pos = 0
        if self._base == 0 and self._buf.startswith(b"\xef\xbb\xbf"):
            self._pos = 3
        return True

    def _need(self) -> None:
        if not self._fill():
            raise _Truncated

    def _peek(self) -> bytes:
        """The next byte that is not white space, without consuming it."""
        while True:
            while self._pos < len(self._buf) and self._buf[self._pos] in _SPACE:
                self._pos += 1
            if self._pos < len(self._buf):
                return self._buf[self._pos : self._pos + 1]
            self._need()

    def _where(self, pos: int) -> str:
        if self._base:  # counting lines all along would cost a tenth of the reading
            return f"byte {self._base + pos}"
        line = self._buf.count(b"\n", 0, pos) + 1
        column = pos - self._buf.rfind(b"\n", 0, pos)
        return f"line {line} column {column} (byte {self._base + pos})"

    def _error(self, what: str, hint: str | None = None) -> TraceError:
        return TraceError(f"{self.source.name}: {what}, at {self._where(self._pos)}", hint)


def _last_boundary(buf: bytes, pos: int) -> tuple[int, int] | None:
    """The last place between two objects in `buf[pos:]`: end of the first, start of the second."""
    brace = len(buf)
    while (brace := buf.rfind(b"{", pos, brace)) > pos:
        comma = _before(buf, pos, brace)
        if comma is None or buf[comma] != 0x2C:  # ","
            continue
        close = _before(buf, pos, comma)
        if close is not None and buf[close] == 0x7D:  # "}"
            return close + 1, brace
    return None


def _before(buf: bytes, low: int, pos: int) -> int | None:
    """Index of the last byte before `pos` that is not white space."""
    pos -= 1
    while pos >= low and buf[pos] in _SPACE:
        pos -= 1
    return pos if pos >= low else None


def _object_end(buf: bytes, pos: int, end: int) -> int | None:
    """Index behind the `}` that closes the object at `pos`, None if it does not close."""
    depth = 0
    if buf[pos] != 0x7B:  # "{"
        return None
    for token in _TOKEN.finditer(buf, pos, end):
        byte = token[0]
        if byte in (b"{", b"["):
            depth += 1
        elif byte in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return token.end()
    return None


def _decode_string(token: bytes) -> str:
    value = _loads(token)
    return value if isinstance(value, str) else token[1:-1].decode("utf-8", "replace")


def _loads(text: bytes) -> Any:
    """A metadata value; its text where it is not JSON. Metadata never decides over a trace."""
    decoded = text.decode("utf-8", "replace")
    try:
        return json.loads(decoded, strict=False)
    except (ValueError, RecursionError):
        return decoded
