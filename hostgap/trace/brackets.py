"""Where strings and objects end in JSON text that may be cut off or damaged."""

from __future__ import annotations

import re
import string
import sys
from typing import Literal

import msgspec

from hostgap.trace.events import MAX_REPAIRED, repair

SPACE = b" \t\r\n"
MAX_DEPTH = 1000  # of nested brackets that are followed

_TOKEN = re.compile(rb'"[^"\\]*"|["{}\[\]]')  # a string, or the start of one with escapes
_WORD = (string.ascii_letters + string.digits + "+-.").encode()
_PROBE = 512  # bytes looked at behind an object that should have ended


def last_boundary(buf: bytes, pos: int, seen: int) -> tuple[int, int] | None:
    """The last place between two objects in `buf[pos:]`: end of the first, start of the second.

    Args:
        seen: the second object does not start before it.
    """
    brace = len(buf)
    while (brace := buf.rfind(b"{", max(pos + 1, seen), brace)) >= 0:
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
    while pos >= low and buf[pos] in SPACE:
        pos -= 1
    return pos if pos >= low else None


def string_end(buf: bytes, pos: int, end: int = sys.maxsize) -> int:
    """Index behind the string that starts at `pos`, 0 where it has no end before `end`.

    No regular expression: one would keep a way back at every escape, 60 bytes and more.
    """
    quote = pos
    while (quote := buf.find(b'"', quote + 1, end)) >= 0:
        slash = quote
        while buf[slash - 1] == 0x5C:  # "\\"
            slash -= 1
        if (quote - slash) % 2 == 0:
            return quote + 1
    return 0


def follow(buf: bytes, pos: int, depth: int, end: int = sys.maxsize) -> tuple[int, int]:
    """Follow the brackets from `pos` on, where `depth` are open, up to `end`.

    Returns:
        Where it stopped and how many are open there: 0; or more than `MAX_DEPTH`; or else
        nothing but a string that has no end follows.
    """
    while token := _TOKEN.search(buf, pos, end):
        pos = token.end()
        if token[0] == b'"':
            pos = string_end(buf, token.start(), end)
            if not pos:
                return token.start(), depth
        elif token[0] in (b"{", b"["):
            depth += 1
        elif token[0] in (b"}", b"]"):
            depth -= 1
        if depth <= 0 or depth > MAX_DEPTH:
            return pos, depth
    return min(len(buf), end), depth


def object_end(buf: bytes, pos: int, end: int = sys.maxsize) -> int | None:
    """Index behind the `}` that closes the object at `pos`, None if it does not close by `end`."""
    if buf[pos] != 0x7B:  # "{"
        return None
    stop, depth = follow(buf, pos, 0, end)
    return stop if depth == 0 else None


def outcome(buf: bytes, pos: int, near: int) -> Literal["closed", "open", "broken"]:
    """What becomes of the object at `pos`, which does not close before `near`.

    Brackets alone do not tell: behind a quote or a brace that is missing they can be followed to
    the end of the buffer, for every such object. A parser stops at the first byte that is wrong,
    soon behind the damage, so the text is handed to one, some more of it each time.

    Returns:
        "closed", "open" when `buf` ends before the object does, "broken" when it is not JSON.
    """
    size = near - pos + _PROBE
    while True:
        # a word or number that breaks off is not wrong yet
        text = buf[pos : pos + size].rstrip(_WORD)
        if len(text) <= MAX_REPAIRED:
            text, _ = repair(text)
        try:
            msgspec.json.decode(text, type=msgspec.Raw)
        except msgspec.DecodeError as error:
            if "truncated" not in str(error):
                return "closed" if "trailing" in str(error) else "broken"
        except RecursionError:
            return "broken"
        else:
            return "closed"
        if pos + size >= len(buf):
            return "open"
        size *= 4
