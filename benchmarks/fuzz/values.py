"""What to put where something else was: numbers, names and types that readers stumble over."""

from __future__ import annotations

import ast
import json
import random
import sys
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[2] / "hostgap"
RULES = Path(__file__).parents[2] / "rules"

INTEGERS = (
    0, 1, -1, 2, 7, 255, 256, -128, 65535, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**53 + 1,
    2**62 - 1, 2**62, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 10**30,
)  # fmt: skip
FLOATS = (0.5, -0.0, 1e-300, 1e300, 1.5e9, 0.1 + 0.2, -1e18, 4.611686018427387e15)
TOKENS = (  # written as they stand, which a JSON writer would not
    "NaN", "Infinity", "-Infinity", "inf", "-inf", "nan", "1e999", "-1e999", "1E400", "0x10", "01",
    "+1", "1.", ".5", "--1", "1e", "1e99999999999", "9" * 400, "1." + "3" * 400, "'x'", "undefined",
    "", "[", "{", "tru", '"\\ud800"', '"\\u0000"', '"\\x41"', '"a\nb"', '"C:\\Users\\x"', "{}{}",
)  # fmt: skip
TEXTS = (
    "", " ", "\x00", "\x1b[2J\x1b[31mred\x1b[0m", "\x1b]8;;http://x.invalid\x07link\x1b]8;;\x07",
    "\x9b31m", "\r\n", "a\rb", "\u202egnp.exe", "\u2066\u2069", "\u061c", "\u200b\u200d\ufeff",
    "\u2028\u2029", "a\u0301" * 40, "\ud800", "\udcff", "\U0010ffff", "\U000e0041",
    "[bold red]x[/]", "[/]", "[link=http://x]", ":smile:",
    "</script><img src=x onerror=alert(1)>", "| a | b |",
    "```\n# x", "=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "{0.__class__}", "%s%n",
    "$(id)", "; rm -rf /", "../../../../etc/passwd", "/dev/zero", "/dev/stdin(1): f", "nul", "con",
    "C:\\a(3): g", "x.py(99999999999999999999): f", "x.py(-1): f", "x.py(): ", "(1): ", "<built-in",
    "stream 7", "stream 99999999999999999999", "stream -1", "7", "-1", "1e3", "٣", "²", "NaN",
    "ProfilerStep#", "ProfilerStep#-1", "ProfilerStep#99999999999999999999", "ProfilerStep#3",
    "ProfilerStep*", "execute_context_0(0)_generation_3(3)", "execute_99999999999999999999_context",
    "bs=99999999999999999999", "nccl:all_reduce", "ncclDevKernel_AllReduce", "(" * 500, "<" * 500,
    "at::" * 200, "void k<" + "a<" * 200, "(((((((((((((((((((((((((((((a+)+)+)+$",
)  # fmt: skip


@cache
def words() -> tuple[str, ...]:
    """The strings that the readers and rules themselves look for."""
    found: dict[str, None] = {}
    files = [*sorted((PACKAGE / "trace").glob("*.py")), *sorted(RULES.glob("hg*.py"))]
    files += sorted((PACKAGE / "analysis").glob("*.py"))
    files += sorted((PACKAGE / "diagnosis").glob("*.py"))
    for file in files:
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
                if 2 < len(text) < 60 and "\n" not in text and " " not in text.strip(" "):
                    found[text] = None
    return tuple(found)


def text(rng: random.Random) -> str:
    """A string that means something to somebody."""
    kind = rng.randrange(8)
    if kind < 3:
        return rng.choice(TEXTS)
    if kind < 6:
        return rng.choice(words())
    if kind == 6:
        return rng.choice(words()) + rng.choice(TEXTS)
    return rng.choice(TEXTS) * rng.choice((2, 30, 700)) if rng.random() < 0.5 else _noise(rng)


def _noise(rng: random.Random) -> str:
    return "".join(chr(rng.randrange(1, 0xD7FF)) for _ in range(rng.randrange(1, 12)))


def number(rng: random.Random) -> int | float:
    """A number at the edge of some type."""
    return rng.choice(INTEGERS) if rng.random() < 0.7 else rng.choice(FLOATS)


def value(rng: random.Random) -> Any:
    """Anything that JSON can hold."""
    kind = rng.randrange(10)
    if kind < 4:
        return number(rng)
    if kind < 7:
        return text(rng)
    if kind == 7:
        return rng.choice((None, True, False, [], {}, [[]], {"": None}))
    if kind == 8:
        return nested(rng.choice((2, 20, 300, 990, 1100)), rng.random() < 0.5)
    return {text(rng): number(rng), "args": {"correlation": number(rng)}, "ph": "X"}


def nested(depth: int, lists: bool) -> Any:
    """Lists or objects inside each other."""
    made: Any = 1
    for _ in range(depth):
        made = [made] if lists else {"a": made}
    return made


def dumped(document: Any, *, ascii_only: bool = True) -> bytes:
    """JSON of any depth; lone surrogates become what is no UTF-8."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        text = json.dumps(document, ensure_ascii=ascii_only)
    finally:
        sys.setrecursionlimit(limit)
    return text.encode("utf-8", "surrogatepass")
