"""The JSON document around the events, read as a stream.

A trace of gigabytes is never held whole. `Document` walks the top-level members (metadata can come
before or after the events, or be missing; a bare list of events is legal), and hands the events on
in blocks: each block ends at a `}` `,` `{` between two events, is wrapped in brackets and decoded.
The decoder is the proof that the cut was right, because a cut inside a string or an object cannot
parse. A block that does not parse is read event by event, and what is dropped is counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal

import msgspec

from hostgap.errors import TraceError
from hostgap.trace import lookalikes
from hostgap.trace.brackets import (
    MAX_DEPTH,
    SPACE,
    follow,
    last_boundary,
    object_end,
    outcome,
    string_end,
)
from hostgap.trace.events import DECODER, MAX_REPAIRED, Event, lenient, loads, repair
from hostgap.trace.source import Source

_BOM = b"\xef\xbb\xbf"
_NOT_SPACE = re.compile(rb"[^ \t\r\n]")
_NOT_SEPARATOR = re.compile(rb"[^ \t\r\n,]")
_LIST_OF_OBJECTS = re.compile(rb"\[\s*\{")
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_CLOSING = re.compile(rb"\}\s*(?=\]\s*(?:,\s*\"|\}|\Z))")  # the list's last object
_SCALAR_END = re.compile(rb"[,\]}\s]")

_MAX_EVENT = 16 << 20  # bytes; an "event" longer than this is damage
_MAX_WAIT = 256 << 10  # bytes read on for a place between two events
_TOGETHER = 8  # events that are repaired and decoded at once
_MAX_KEPT = 1 << 20  # bytes of a metadata value that are kept
_MAX_KEYS = 10_000
_MOST_OTHERS = 100_000  # objects that are no events, each of which is looked at on its own
_MAX_KEY = 200  # characters of a key that are kept
_MAX_MEMORY = 16 << 20  # bytes that all keys and metadata may take, roughly

_Stop = Literal["end", "list closed", "event open"]  # why reading stopped where it did


class _Truncated(Exception):
    """The document ends where more was due."""


class _Enough(Exception):
    """What follows need not be read: this is no trace."""


class Document:
    """A trace document being read. Iterate over `blocks()` once; then look at the attributes.

    Attributes:
        keys: the top-level keys, in order, long ones cut.
        metadata: the values of the top-level keys (those under 1 MiB, up to 16 MiB together).
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
        self._memory = 0  # bytes that the keys and metadata take, roughly

    @property
    def offset(self) -> int:
        """Bytes of the document read so far."""
        return self._base + self._pos

    def blocks(self) -> Iterator[list[Event] | None]:
        """The events, block by block.

        Yields:
            A list of events; or None, which takes back all events so far: a later
            `traceEvents` member supersedes an earlier one, as in every JSON reader.

        Raises:
            TraceError: the text is not JSON, holds several documents, or is too damaged.
        """
        try:
            while len(self._buf) < len(_BOM) and self._fill():
                pass
            self._pos = len(_BOM) if self._buf.startswith(_BOM) else 0
            first = self._peek()
            if first == b"[":
                self.is_list = self.has_events = True
                self._pos += 1
                yield from self._events()
            elif first == b"{":
                self._pos += 1
                yield from self._members()
            elif refusal := lookalikes.binary(self._buf):  # compressed: not looked at before
                raise TraceError(f"{self.source.name}: {refusal.what}", refusal.hint)
            else:
                raise self._error("this is not JSON")
            self._expect_end()
        except _Truncated as reason:
            self._end_early(str(reason))
        except _Enough:
            return
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
            short = key[:_MAX_KEY]
            if len(self.keys) < _MAX_KEYS and self._fits(short.encode()):
                self.keys.append(short)
            if key == "traceEvents" and self._peek() == b"[":
                self._pos += 1
                if self.has_events:
                    yield None
                    self.events = 0
                self.has_events = True
                yield from self._events()
            else:
                value = self._value()
                if (
                    value is not None
                    and len(self.metadata) < _MAX_KEYS
                    and self._fits(short.encode() + value)
                ):
                    self.metadata[short] = self._metadata_value(value)

    def _fits(self, text: bytes) -> bool:
        """Whether there is room for one more piece of metadata, which then counts as kept."""
        memory = len(text) + 64 * (text.count(b",") + text.count(b"[")) + 200 * text.count(b"{")
        if self._memory + memory > _MAX_MEMORY:
            return False
        self._memory += memory
        return True

    def _metadata_value(self, text: bytes) -> Any:
        """The value; its text where it is not JSON, for metadata never decides over a trace."""
        try:
            return loads(text)
        except (ValueError, RecursionError):
            if b'"traceEvents"' in text or b'"schemaVersion"' in text:
                raise self._second_document("the metadata") from None
            return text.decode("utf-8", "replace")

    def _expect_end(self) -> None:
        while True:
            rest = self._buf[self._pos :].lstrip(SPACE + b"\0")
            self._pos = len(self._buf) - len(rest)
            if rest:
                raise self._error(
                    "extra data after the end of the JSON document",
                    "several traces written to one file? split them, or record them again",
                )
            if not self._fill():
                return

    def _string(self) -> bytes:
        """The string token at the cursor, quotes included."""
        while True:
            if end := string_end(self._buf, self._pos):
                text = self._buf[self._pos : end]
                self._pos = end
                return text
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
            self._pos, depth = follow(self._buf, start, depth)
            if depth > MAX_DEPTH:
                raise self._error(f"values nested more than {MAX_DEPTH} deep")
            size += self._pos - start
            if kept is not None:
                kept.append(self._buf[start : self._pos])
                if size > _MAX_KEPT:
                    kept = None
            if depth == 0:
                return b"".join(kept) if kept is not None else None
            if len(self._buf) - self._pos > _MAX_EVENT:
                raise self._error("a string does not end")
            self._need()

    # --- the list of events ------------------------------------------------------------------

    def _events(self) -> Iterator[list[Event]]:
        """Blocks of events up to the list's closing bracket, which is consumed."""
        if self._peek() in b'["-0123456789tfn':
            self.not_events += 1
            raise _Enough
        seen = self._pos  # before it, no `{` is a place to cut at
        ended = False
        while True:
            cut = last_boundary(self._buf, self._pos, seen)
            events: list[Event] = []
            stop: _Stop = "end"
            if cut is not None:
                end, after = cut
                try:
                    events = DECODER.decode(
                        b"".join((b"[", memoryview(self._buf)[self._pos : end], b"]"))
                    )
                    self._pos = after
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    events, stop = self._careful(after, last=False)
            elif ended or len(self._buf) - self._pos > _MAX_WAIT:
                # the end of the file; or a long event; or the last one and much behind the list
                events, stop = self._careful(len(self._buf), last=ended)
            if events:
                self.events += len(events)
                yield events
            if stop == "list closed":
                return
            if self.not_events > 1000 and not self.events:
                raise _Enough
            if cut is not None:
                seen = len(self._buf)
                continue
            if ended:
                if stop == "end":
                    raise _Truncated("the file ends inside the list of events")
                self._expect_no_document(self._pos, len(self._buf))
                raise _Truncated("the file ends in the middle of an event")
            seen = len(self._buf) - self._pos
            if seen > _MAX_EVENT:
                raise self._error(f"an event longer than {_MAX_EVENT >> 20} MiB")
            ended = not self._fill()

    def _careful(self, end: int, *, last: bool) -> tuple[list[Event], _Stop]:
        """Read the events in `_buf[_pos:end]` although they do not decode together.

        Halves are tried, then quarters: only the pieces that hold something odd are read slowly.

        Args:
            last: nothing follows `end`, so an event may break off there.

        Returns:
            The events, and why it stopped at the new `_pos`: at `end`, behind the list's closing
            bracket, or at an event whose end is still to be read.
        """
        events: list[Event] = []
        pos = self._pos
        bounds = [pos, *(match.end() for match in _BETWEEN.finditer(self._buf, pos, end)), end]
        todo = [(0, len(bounds) - 1, False)]
        stop: _Stop = "end"
        while todo and stop == "end":
            low, high, tried = todo.pop()
            while low < high and bounds[low + 1] <= pos:  # inside a string, already passed
                low += 1
            if low == high:
                continue
            if high - low == 1:
                pos, stop = self._piece(max(pos, bounds[low]), bounds[high], last, events)
                continue
            found = _decoded(self._buf[max(pos, bounds[low]) : bounds[high]])
            if found is None and not tried and high - low <= _TOGETHER and pos <= bounds[low]:
                tried = True
                found = self._repaired(bounds[low : high + 1])
            if found is None:
                middle = (low + high) // 2
                todo += [(middle, high, tried), (low, middle, tried)]
            else:
                events += found
                pos = bounds[high]
        self._pos = pos
        return events, stop

    def _repaired(self, bounds: list[int]) -> list[Event] | None:
        """The events between the bounds when each stretch between two, repaired, is one event.

        It is when they decode together, to as many events; None when not.
        """
        texts: list[bytes] = []
        kinds: Counter[str] = Counter()
        for low, high in pairwise(bounds):
            if high - low > MAX_REPAIRED:
                return None
            text, repairs = repair(self._buf[low:high])
            texts.append(text)
            kinds.update(repairs)
        found = _decoded(b"".join(texts))
        if found is None or len(found) < len(texts):
            return None
        self.repaired.update(kinds)
        return found

    def _piece(
        self, pos: int, piece_end: int, last: bool, events: list[Event]
    ) -> tuple[int, _Stop]:
        """Read the objects that start in `_buf[pos:piece_end]`; where it stopped, and why."""
        while found := _NOT_SEPARATOR.search(self._buf, pos, piece_end):
            pos = found.start()
            if found[0] == b"]":
                return pos + 1, "list closed"
            stop = object_end(self._buf, pos, piece_end)
            if stop is None and found[0] == b"{":
                way = outcome(self._buf, pos, piece_end)
                if way == "closed":
                    stop = object_end(self._buf, pos)
                elif way == "open":
                    return pos, "event open"
            result = lenient(self._buf[pos:stop]) if stop is not None else None
            if stop is not None and result is not None:
                event, repairs = result
                self.repaired.update(repairs)
                if event is not None:
                    events.append(event)
                else:
                    self._not_event(pos, stop)
                pos = stop
                continue
            closing = _CLOSING.search(self._buf, pos, piece_end)
            if (
                last
                and stop is None
                and closing is None
                and found[0] == b"{"
                and piece_end == len(self._buf)
            ):
                return pos, "event open"
            stop = closing.end() if closing else piece_end
            self._damage(pos, stop)
            pos = stop
        return max(pos, piece_end), "end"

    def _not_event(self, pos: int, end: int) -> None:
        """Count an object that is no event."""
        text = self._buf[pos:end]
        if b'"traceEvents"' in text:
            self._pos = pos
            raise self._second_document("the list of events")
        self.not_events += 1
        self.shape = self.shape or text[:200].decode("utf-8", "replace")
        if self.not_events > _MOST_OTHERS and self.not_events > 20 * self.events:
            self._pos = pos
            raise self._error(f"{self.not_events} objects in the list of events are no events")

    def _damage(self, start: int, end: int) -> None:
        """Drop a stretch of text that is not JSON."""
        self._expect_no_document(start, end)
        self.damaged += 1
        if not self.first_damage:
            self.first_damage = self._where(start)
        if self.damaged > 100 and self.damaged * 20 > self.events:
            self._pos = start
            raise self._error(f"too damaged to read: {self.damaged} broken events so far")

    def _expect_no_document(self, start: int, end: int) -> None:
        text = self._buf[start:end]
        if (
            b'"schemaVersion"' in text
            or b'"traceEvents"' in text
            or _LIST_OF_OBJECTS.match(text) is not None
        ):
            self._pos = start
            raise self._second_document("the list of events")

    def _second_document(self, where: str) -> TraceError:
        return self._error(
            f"another document begins inside {where}",
            "several processes wrote to this file at once; give each rank its own file",
        )

    # --- the buffer --------------------------------------------------------------------------

    def _fill(self) -> bool:
        """Read on, dropping what has been consumed; False at the end.

        What is left is at least doubled: reading a long value takes time in line with its length.
        """
        rest = self._buf[self._pos :]
        blocks = [rest]
        size = 0
        while size <= len(rest) and (block := self.source.read()):
            blocks.append(block)
            size += len(block)
        self._base += self._pos
        self._buf = b"".join(blocks)
        self._pos = 0
        return size > 0

    def _need(self) -> None:
        if not self._fill():
            raise _Truncated("the file ends in the middle of the JSON document")

    def _peek(self) -> bytes:
        """The next byte that is not white space, without consuming it."""
        while not (found := _NOT_SPACE.search(self._buf, self._pos)):
            self._pos = len(self._buf)
            self._need()
        self._pos = found.start()
        return found[0]

    def _where(self, pos: int) -> str:
        if self._base:  # counting lines all along would cost a tenth of the reading
            return f"byte {self._base + pos}"
        line = self._buf.count(b"\n", 0, pos) + 1
        column = pos - self._buf.rfind(b"\n", 0, pos)
        return f"line {line} column {column} (byte {self._base + pos})"

    def _error(self, what: str, hint: str | None = None) -> TraceError:
        return TraceError(f"{self.source.name}: {what}, at {self._where(self._pos)}", hint)


def _decoded(text: bytes) -> list[Event] | None:
    """The events of a piece of the list, None where it is not JSON, or one is no event."""
    try:
        return DECODER.decode(b"[" + text.strip(SPACE + b",") + b"]")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _decode_string(token: bytes) -> str:
    if len(token) > 32 * _MAX_KEY:  # only its beginning is kept
        return token[1 : _MAX_KEY + 1].decode("utf-8", "replace")
    try:
        value = loads(token)
    except ValueError:
        value = None
    return value if isinstance(value, str) else token[1:-1].decode("utf-8", "replace")
