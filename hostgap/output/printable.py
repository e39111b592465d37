"""Text from a trace, made safe to show."""

from __future__ import annotations

import re

# C0 and C1 controls, the marks that reorder text, and what has no width or no glyph: shown escaped,
# so that no name in a trace can move the cursor or disguise itself as another.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U000e0000-\U000e0fff]"
)
LONGEST = 300  # characters of a name in a report


def printable(text: str, longest: int = LONGEST) -> str:
    """`text` with control characters shown as escapes, cut in the middle beyond `longest`."""
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]}...{text[-half:]}"
    return _UNPRINTABLE.sub(lambda m: m[0].encode("unicode_escape").decode("ascii"), text)
