"""Names that would move the cursor, reorder the line, or pass for others: shown escaped."""

from __future__ import annotations

import io
import re
import unicodedata
from pathlib import Path

import pytest

from hostgap.analysis.analyze import analyze
from hostgap.analysis.examine import examine
from hostgap.output.markdown import render_markdown
from hostgap.output.printable import printable
from hostgap.output.text import render_text
from hostgap.trace.load import load_trace
from tests.hard.build import event, launches, steps, write

HOSTILE = {
    "clear screen": "\x1b[2J",
    "title": "\x1b]0;owned\x07",
    "link": "\x1b]8;;http://x.invalid\x07x",
    "8 bit": "\x9b31m",
    "return": "x\rGPU idle 0 %",
    "newline": "x\nGPU idle 0 %",
    "override": "\u202egnp.exe",
    "isolate": "\u2066x\u2069",
    "arabic mark": "\u061cx",
    "zero width": "k\u200be\u200crnel\ufeff",
    "invisible": "k\u2060ernel\u2063\u180e",
    "soft hyphen": "ker\xadnel",
    "tags": "k\U000e0041\U000e007f",
    "selector": "k\ufe0f\U000e0100",
    "filler": "\u3164\u115f\uffa0",
    "separators": "\u2028\u2029",
    "surrogate": "\ud800",
    "markup": "[bold red]x[/] [link=http://x]y[/link]",
}


def told(name: str, tmp_path: Path) -> list[str]:
    """Text and markdown of a trace in which everything is called `name`."""
    path = write(
        tmp_path / "t.json",
        [
            *launches(40, name=lambda i: name),
            *steps(4),
            event("cpu_op", name, 0, 3990),
            event("python_function", f"{name}.py(3): {name}", 0, 3995),
            event("cuda_runtime", f"cudaStreamSynchronize{name}", 1050, 30),
            {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": name}},
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": name}},
        ],
    )
    diagnosis = analyze(load_trace(path))
    text = io.StringIO()
    render_text(diagnosis, text)
    return [text.getvalue(), render_markdown(diagnosis)]


@pytest.mark.parametrize("kind", HOSTILE)
def test_nothing_unseen_in_a_report(kind: str, tmp_path: Path) -> None:
    for shown in told(HOSTILE[kind], tmp_path):
        for letter in shown:
            category = unicodedata.category(letter)
            assert letter == "\n" or category not in ("Cc", "Cf", "Cs", "Zl", "Zp"), repr(letter)


def test_every_character_that_formats_or_controls() -> None:
    """All of Unicode's of these kinds that reorder, hide or move, and no letter."""
    text = "".join(map(chr, range(0x110000)))
    shown = printable(text, len(text))
    left = {c for c in shown if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")}
    assert not left
    # what is left of the format characters belongs to scripts and music, and has a glyph or none
    formats = {c for c in shown if unicodedata.category(c) == "Cf"}
    assert not any(
        re.match("[\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]", c) for c in formats
    )
    for letter in "aé€中🙂ü_<>[]{}&;|":
        assert printable(letter) == letter


@pytest.mark.parametrize("formula", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_tables_keep_names_as_data(formula: str, tmp_path: Path) -> None:
    """hostgap writes no CSV; its tables hold names as they are, and numbers as numbers."""
    path = write(tmp_path / "t.json", launches(6, name=lambda i: formula))
    ops = examine(load_trace(path)).table("gpu_ops")
    assert set(ops["name"]) == {formula}
    assert ops["start"].dtype.kind == "i"


def test_no_command_writes_csv() -> None:
    """Where one ever does, formulas in names must be made inert: see this test's module."""
    package = Path(__file__).parents[2] / "hostgap"
    for file in package.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"^\s*(?:import|from) csv\b|\.to_csv\(", text, re.M), file
