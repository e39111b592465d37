"""What a trace's figures come from, read without hostgap."""

from __future__ import annotations

import json
import re

STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.S)
NUMBER = re.compile(rb"[-+]?\d[\d.eE+-]*|[-+]?(?:inf|Infinity|nan|NaN)")


def figures(text: bytes) -> tuple[list[bytes], list[str], int]:
    """All a trace's figures come from: its numbers in order, its names, how many frames differ."""
    start = text.find(b'"traceEvents"')
    body = text[start:] if start >= 0 else text
    numbers = NUMBER.findall(STRING.sub(b"", body))
    trace = json.loads(text.decode("utf-8", "replace"), strict=False)
    events = trace if isinstance(trace, list) else trace["traceEvents"]
    names, frames = [], set()
    for event in events:
        if event.get("cat") == "python_function":
            frames.add(event["name"])
        elif event.get("ph") != "M":
            names.append(f"{event.get('cat')}:{event.get('name')}")
    return numbers, names, len(frames)
