"""Text from a trace, made safe to show."""

from __future__ import annotations

import re

# C0 and C1 controls, and the marks that reorder text: shown escaped, so that no name in a trace can
# move the cursor or disguise another.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
LONGEST = 300  # characters of a name in a report


def printable(text: str, longest: int = LONGEST) -> str:
    """`text` with control characters shown as escapes, cut in the middle beyond `longest`."""
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]}...{text[-half:]}"
    return _UNPRINTABLE.sub(lambda m: m[0].encode("unicode_escape").decode("ascii"), text)
