"""Results as JSON, whatever names they hold."""

from __future__ import annotations

import json
from typing import Any

import msgspec


def encoded(value: Any) -> bytes:
    """The JSON of a result; bytes of a file's name that are not UTF-8 become question marks."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # Python holds such bytes as halves of surrogate pairs
        text = json.dumps(msgspec.to_builtins(value), ensure_ascii=False)
        # decoded again for the numbers that are none, which msgspec alone writes as null
        return msgspec.json.encode(json.loads(text.encode("utf-8", "replace")))


def indented(value: Any) -> bytes:
    """As `encoded`, for people too: indented, with a final newline."""
    return msgspec.json.format(encoded(value), indent=2) + b"\n"
