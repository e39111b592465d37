"""Rewrite the strings of a JSON text as it streams by, and nothing but the strings.

Only what stands between quotes changes, so numbers, their order and their spelling stay byte for
byte, and a file with damage the reader can live with keeps that damage. The text comes in blocks
of 128 KiB. Most take the fast path: one split at the quotes and one look-up per string, as a trace
says the same few thousand strings millions of times. A block that holds a sensitive key, or
anything that is not JSON, is taken apart token by token.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from hostgap.errors import TraceError
from hostgap.trace import lookalikes
from hostgap.trace.brackets import SPACE
from hostgap.trace.scrub import (
    REDACTED,
    Scrubber,
    decoded,
    is_metadata,
    is_sensitive,
    is_structure,
    names_somebody,
)

BLOCK = 1 << 17  # larger blocks leave the processor's cache and are slower
LONGEST = 1 << 20  # bytes of one string; what is longer is replaced unread
_CACHE_BYTES = 4 << 20
_CACHE_ENTRIES = 1 << 15
_DEEPEST = 1000  # levels of brackets in a text without a comma

_NESTED = 8  # levels of brackets in an event; a block with more is read token by token
_NO_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))

_HOLE = f'"{REDACTED}"'.encode()
_PUNCTUATION = b" \t\r\n{}[],:0123456789.+-"
_LITERAL = rb"true|false|null|NaN|nan|Infinity|inf"
_LITERALS = re.compile(rb"(?:" + _LITERAL + rb"|[eE])*")
_BARE = re.compile(rb"[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d*)?|\.\d+|" + _LITERAL + rb")|-")
_TWO_POINTS = re.compile(rb"\.\d*\.")  # an address where a number should stand
_TOKEN = re.compile(
    rb'(?P<string>"(?P<inside>[^"\\]*(?:\\.[^"\\]*)*)"(?=\s*(?P<after>[:,}\]]|\Z)))'
    rb'|(?P<mark>[{}\[\],:]|\s+)|(?P<bare>[^\s{}\[\],:"]+)|(?P<quote>")',
    re.S,
)
_END_OF_STRING = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*"', re.S)
# Where a string with unescaped quotes inside may end: before the next member of an event.
_NEXT_MEMBER = re.compile(rb'"(?=\s*,\s*"(?:ph|cat|name|pid|tid|ts|dur|args)"\s*:)')
_REST_OF_LINE = re.compile(rb"[^\n]*")
_REST_OF_BARE = re.compile(rb'[^\n"]*')
_NAMED = re.compile(rb'"([A-Za-z_-]{2,20})"\s*:\s*"((?:[^"\\]|\\.)*)"', re.S)
_MASKED = re.compile(rb"[\\\xff]")
# What gives a key a value that may have to go: a string, an object or a list, not a number.
_VALUE_THAT_GOES = re.compile(rb"\s*:\s*(?:\Z|[\[{])")
_END_OR_KEY = re.compile(rb'\s*(?:\}|,\s*"\s*:)')
# Bytes that are in no UTF-8, to stand for a backslash; several, as damaged text may hold some.
_MASKS = (0xFF, 0xFE, 0xF8)
_BOM = b"\xef\xbb\xbf"


class _NeedsContext(Exception):
    """A string that may be a sensitive key: what to do depends on its neighbours."""


class _Decisions(dict[bytes, bytes]):
    r"""What becomes of each string, worked out once. Holds `\\` as FF 0 and `\"` as FF 1.

    Attributes:
        words: strings that would be sensitive as keys, and what becomes of them as anything else.
    """

    def __init__(self, scrubber: Scrubber, mask: int) -> None:
        super().__init__()
        self.words: dict[bytes, bytes] = {}
        self._scrubber = scrubber
        self._mask = mask
        self._bytes = 0

    def __missing__(self, key: bytes) -> bytes:
        if key in self.words:
            raise _NeedsContext
        raw = _unmasked(key, self._mask)
        clean = self._scrubber.token(raw)
        self._bytes += 2 * len(key) + 100
        if self._bytes > _CACHE_BYTES or len(self) + len(self.words) > _CACHE_ENTRIES:
            self.clear()
            self.words.clear()
            self._bytes = 0
        value = key if clean == raw else clean
        if _may_be_sensitive(raw):
            self.words[key] = value
            raise _NeedsContext
        self[key] = value
        return value

    def with_neighbours(self, strings: list[bytes], gaps: list[bytes]) -> list[bytes] | None:
        """What becomes of `strings`, None if a value must go that is not a single string.

        Args:
            strings: what stands between quotes.
            gaps: what stands after each of them.
        """
        clean = list(map(self.as_no_key, strings))
        for i, string in enumerate(strings):
            if string not in self.words or not _VALUE_THAT_GOES.match(gaps[i]):
                continue
            if not gaps[i].rstrip().endswith(b":"):
                return None  # an object or a list
            if names_somebody(decoded(_unmasked(string, self._mask))):
                return None  # to be learned
            after = gaps[i + 1] + b'"' + b"".join(gaps[i + 2 : i + 3])
            if not _END_OR_KEY.match(after):
                return None  # damaged
            if strings[i + 1]:
                clean[i + 1] = REDACTED.encode()
        return clean

    def as_no_key(self, string: bytes) -> bytes:
        """What becomes of `string` where it is no key."""
        try:
            return self[string]
        except _NeedsContext:
            return self.words[string]


class Rewriter:
    """Rewrites one JSON text; see `run`.

    Attributes:
        changed: strings rewritten so far, repeats counted.
        text_bytes: bytes read so far.
        damage: a line for each kind of damage met, with how often.
        is_trace: whether anything so far looked like trace events.
    """

    def __init__(self, scrubber: Scrubber) -> None:
        self.changed = 0
        self.text_bytes = 0
        self.damage: Counter[str] = Counter()
        self.is_trace = False
        self._scrubber = scrubber
        self._decisions = {mask: _Decisions(scrubber, mask) for mask in _MASKS}
        self._known = len(scrubber.words)
        self._top = b""  # the first bracket of the text
        self._depth = 0  # brackets open before what comes next
        self._skip = 0  # depth inside a value that goes as a whole
        self._torn = False  # right behind text that was replaced
        self._goes_on = False  # behind a value that went, which may be the first of a list
        self._key: str | None = None  # the sensitive key whose value comes next
        self._in_long = False  # inside a string that is too long to hold

    @property
    def learned(self) -> bool:
        """Whether names were found that may stand in what was written before."""
        return len(self._scrubber.words) > self._known

    def run(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """The text of `blocks`, rewritten, in blocks that keep pace with the input.

        Memory is bounded by the block size and `LONGEST`, whatever the input.
        """
        carry = b""
        first = True
        for block in _of_size(blocks):
            self.text_bytes += len(block)
            if first:
                first = False
                if block.startswith(_BOM):
                    block = block[len(_BOM) :]
                    yield _BOM
                self._look_ahead(block)
            done, carry = self._edit(carry + block)
            yield done
        yield self._finish(carry)

    def _look_ahead(self, block: bytes) -> None:
        """Learn the names in the metadata before the first events, and so before they are used."""
        for key, value in _NAMED.findall(block):
            if names_somebody(key.decode()):
                self._scrubber.learn(decoded(value))
        self._scrubber.learn_homes(block.decode("utf-8", "replace"))
        self._known = len(self._scrubber.words)

    def _edit(self, text: bytes) -> tuple[bytes, bytes]:
        """Rewrite `text` up to its last comma outside a string; also returns the rest of it."""
        if self._in_long:
            text = self._leave_long(text)
        self._top = self._top or text.lstrip(SPACE)[:1]
        if not self.is_trace:
            self.is_trace = b'"traceEvents"' in text or b'"ph"' in text
        view, mask = _masked(text)
        parts = view.split(b'"')
        last = (len(parts) - 1) & ~1
        while last >= 0 and b"," not in parts[last]:
            last -= 2
        if last < 0:
            if len(text) > LONGEST:
                return self._force(text, len(parts) % 2 == 0)
            return b"", text
        comma = parts[last].rfind(b",") + 1
        rest = len(parts[last]) - comma + sum(1 + len(part) for part in parts[last + 1 :])
        parts[last] = parts[last][:comma]
        del parts[last + 1 :]
        done = text[: len(text) - rest]
        carry = text[len(text) - rest :]
        fast = None
        if mask in _MASKS and not self._skip and not self._goes_on:
            fast = self._all_at_once(parts, done, mask)
        return self._one_by_one(done) if fast is None else fast, carry

    def _all_at_once(self, parts: list[bytes], text: bytes, mask: int) -> bytes | None:
        """Rewrite text split at its quotes; None if it is not plain JSON or needs context."""
        gaps = b"".join(parts[::2])
        letters = gaps.translate(None, _PUNCTUATION)
        if (letters and not _LITERALS.fullmatch(letters)) or _TWO_POINTS.search(gaps):
            return None
        closed, opened = _unmatched(gaps)
        if self._top == b"{" and self._depth - closed < 2:
            return None  # members of the top-level object
        strings = parts[1::2]
        decisions = self._decisions[mask]
        try:
            clean: list[bytes] | None = list(map(decisions.__getitem__, strings))
        except _NeedsContext:
            clean = decisions.with_neighbours(strings, parts[2::2])
        if clean is None:
            return None
        self._depth += opened - closed
        if clean == strings:
            return text
        self.changed += sum(map(operator.ne, clean, strings))
        parts[1::2] = clean
        out = b'"'.join(parts)
        return _unmasked(out, mask) if b"\\" in text else out

    def _one_by_one(self, text: bytes) -> bytes:
        """Rewrite text token by token: with its keys in view, and trusting nothing."""
        out: list[bytes] = []
        at = 0
        while (token := _TOKEN.match(text, at)) is not None:
            at = token.end()
            kind = token.lastgroup
            if self._skip:
                self._skip += {b"{": 1, b"[": 1, b"}": -1, b"]": -1}.get(token[0], 0)
            elif kind == "string":
                out.append(self._string(token["inside"], is_key=token["after"] == b":"))
            elif kind == "mark":
                out.append(self._mark(token[0]))
            elif kind == "bare" and _BARE.fullmatch(token[0]):
                self._key = None
                self._torn = False
                out.append(token[0])
            else:
                at = self._end_of_damage(text, token.start(), quoted=kind == "quote")
                self.damage["text that is not JSON was replaced"] += 1
                out.append(self._hole())
                self._after_damage(text[token.start() : at])
        return b"".join(out)

    def _mark(self, mark: bytes) -> bytes:
        """A bracket, a comma, a colon or white space."""
        if self._key is not None and mark in (b"{", b"["):
            self._skip = 1
            return self._hole()
        if mark in (b"{", b"["):
            self._depth += 1
        elif mark in (b"}", b"]"):
            self._depth = max(0, self._depth - 1)
        if mark in (b",", b"}", b"]"):
            self._key = None
        if not mark.isspace():
            self._torn = False
            self._goes_on = self._goes_on and mark == b","
        return mark

    def _after_damage(self, replaced: bytes) -> None:
        """What was replaced may have been, or held, the key that says that a value must go."""
        self._torn = True
        name = replaced.rstrip().removesuffix(b":").strip(b"\"' \t\r\n")
        if replaced.rstrip().endswith(b":") and not is_structure(decoded(name)):
            self._key = ""

    def _string(self, inside: bytes, *, is_key: bool) -> bytes:
        torn, self._torn = self._torn, False
        if is_key:
            self._goes_on = False
            self._key = None
            if inside == b"ph" and self._top == b"{":
                self._depth = max(self._depth, 3)  # of an event, whatever was lost before it
            unknown = self._depth == 1 and self._top == b"{" and not is_metadata(decoded(inside))
            torn = torn and not is_structure(decoded(inside))
            if unknown or torn or _may_be_sensitive(inside):
                self._key = decoded(inside)
        elif self._key is not None or self._goes_on:
            key = self._key or ""
            if names_somebody(key):
                self._scrubber.learn(decoded(inside))
            self._goes_on = True
            if inside:
                return self._hole()
            self._key = None
        if _MASKED.search(inside):
            clean = self._scrubber.token(inside)
        else:
            clean = self._decisions[_MASKS[0]].as_no_key(inside)
        self.changed += clean != inside
        return b'"' + clean + b'"'

    def _hole(self) -> bytes:
        self._key = None
        self.changed += 1
        return _HOLE

    @staticmethod
    def _end_of_damage(text: bytes, start: int, *, quoted: bool) -> int:
        """Where what began at `start` and is not JSON stops: not after the line's end."""
        line = (_REST_OF_LINE if quoted else _REST_OF_BARE).match(text, start)
        assert line is not None
        if quoted and (end := _NEXT_MEMBER.search(text, start + 1, line.end())):
            return end.end()
        return start + max(1, len(line[0].rstrip(b" \t\r\n,{}[]")))

    def _force(self, text: bytes, in_string: bool) -> tuple[bytes, bytes]:
        """Get rid of more than `LONGEST` bytes without a comma outside a string."""
        outside = b"".join(_masked(text)[0].split(b'"')[::2])
        if sum(map(outside.count, (b"[", b"{"))) - sum(map(outside.count, (b"]", b"}"))) > _DEEPEST:
            raise TraceError(
                f"brackets are nested over {_DEEPEST} deep: this is not a trace", lookalikes.RECORD
            )
        if not in_string:
            return self._one_by_one(text), b""
        start = _masked(text)[0].rfind(b'"')
        self.damage[f"a string of over {LONGEST >> 20} MiB was replaced"] += 1
        self._in_long = True
        out = self._one_by_one(text[:start])
        return out + (b"" if self._skip else self._hole()), _half_escape(text)

    def _leave_long(self, text: bytes) -> bytes:
        end = _END_OF_STRING.match(text)
        if end is None:
            return _half_escape(text)
        self._in_long = False
        return text[end.end() :]

    def _finish(self, carry: bytes) -> bytes:
        """What is left after the last comma; a string that never ends is left out, and padding."""
        text = carry.rstrip(SPACE + b"\0")
        carry = text + carry[len(text) :].replace(b"\0", b"")
        view = _masked(carry)[0]
        if self._in_long:
            carry = b""
        elif view.count(b'"') % 2:
            start = view.rfind(b'"')
            self.damage[f"the last {len(carry) - start} bytes, an unfinished string, left out"] += 1
            carry = carry[:start]
        out = self._one_by_one(carry)
        if self._skip:
            self.damage["the file ends inside a value that was replaced"] += 1
        return out


def _of_size(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in blocks of at most `BLOCK`, small ones gathered."""
    held: list[bytes] = []
    size = 0
    for block in blocks:
        held.append(block)
        size += len(block)
        if size >= BLOCK:
            whole = b"".join(held)
            for start in range(0, size, BLOCK):
                yield whole[start : start + BLOCK]
            held, size = [], 0
    if held:
        yield b"".join(held)


def _masked(text: bytes) -> tuple[bytes, int]:
    r"""`text` with `\\` and `\"` masked, same length: every `"` left begins or ends a string.

    The second value is the byte that stands for the backslash, which is not in `text`.
    """
    mask = next((m for m in _MASKS if m not in text), None)
    if b"\\" not in text:
        return text, 0 if mask is None else mask
    if mask is None:  # any byte will do
        mask = next((m for m in range(255, -1, -1) if m not in b'"\\,' and m not in text), None)
    if mask is None:
        raise TraceError("the file holds binary data, not JSON text", lookalikes.RECORD)
    pair = bytes([mask])
    return text.replace(b"\\\\", pair + b"0").replace(b'\\"', pair + b"1"), mask


def _unmasked(text: bytes, mask: int) -> bytes:
    if mask not in text:
        return text
    pair = bytes([mask])
    return text.replace(pair + b"1", b'\\"').replace(pair + b"0", b"\\\\")


def _unmatched(gaps: bytes) -> tuple[int, int]:
    """How many brackets close what was open before `gaps`, and how many stay open after it.

    Both are too high for brackets that do not match or are nested deeper than those of events.
    """
    brackets = gaps.translate(None, _NO_BRACKETS)
    for _ in range(_NESTED):
        shorter = brackets.replace(b"{}", b"").replace(b"[]", b"")
        if len(shorter) == len(brackets):
            break
        brackets = shorter
    return sum(map(brackets.count, b"}]")), sum(map(brackets.count, b"{["))


def _half_escape(text: bytes) -> bytes:
    """The backslash at the end of `text` that escapes what comes next, or nothing."""
    return b"\\" if (len(text) - len(text.rstrip(b"\\"))) % 2 else b""


def _may_be_sensitive(raw: bytes) -> bool:
    return len(raw) <= 60 and is_sensitive(decoded(raw))
