"""A set as JSON, as text and as markdown: the summary first, then the worst ranks."""

from __future__ import annotations

import re
import sys
from importlib import resources
from typing import IO, Any

import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hostgap.output.encoded import indented
from hostgap.output.printable import printable
from hostgap.output.terminal import console_on
from hostgap.ranks import view
from hostgap.ranks.model import SCHEMA, DiagnosisSet

SCHEMA_FILE = "diagnosis-set.schema.json"
FINDINGS = 5
WIDTH = 100
_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#+!|~$&-])")


def render_json(found: DiagnosisSet) -> bytes:
    """The whole set, indented, with a final newline."""
    return indented(found)


def schema() -> dict[str, Any]:
    """The JSON Schema of a set, made from its types."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": SCHEMA,
        **msgspec.json.schema(DiagnosisSet),
    }


def shipped_schema() -> bytes:
    """The JSON Schema as installed with the package; a test holds it against `schema()`."""
    return resources.files("hostgap.ranks").joinpath(SCHEMA_FILE).read_bytes()


def render_text(found: DiagnosisSet, stream: IO[str], *, color: bool | None = None) -> None:
    """Write the report for people; colours as for one trace.

    Args:
        found: what to report.
        stream: where to; what its encoding lacks is replaced.
        color: force colour on or off; None decides by the terminal, NO_COLOR and FORCE_COLOR.
    """
    with console_on(stream, color=color, width=WIDTH) as console:
        _report(found, console)


def _report(found: DiagnosisSet, console: Console) -> None:
    console.print(Text(view.headline(found), style="bold"))
    console.print(Text(view.counts_line(found), style="dim"))
    for line in view.straggler_lines(found):
        console.print(Text(line))
    console.print()
    _ranks(found, console)
    if lines := view.spread_lines(found):
        console.print()
        console.print(Text("How they differ", style="bold"))
        for line in lines:
            console.print(Padding(Text(line), (0, 0, 0, 2)))
    if line := view.batch_line(found):
        console.print()
        console.print(Text(line))
    if defects := view.defects(found):
        console.print()
        console.print(Text("What to change", style="bold"))
        for finding in defects[:FINDINGS]:
            style = "red" if finding.severity == "error" else "yellow"
            head = Text(f"{finding.code} ", style=f"bold {style}")
            head.append(f"{finding.severity} ", style=style)
            head.append(f"{finding.name}: {view.saving(finding)}", style="bold")
            console.print(Padding(head, (0, 0, 0, 2)))
            for line in (printable(finding.title), view.where(found, finding), finding.advice):
                console.print(Padding(Text(printable(line)), (0, 0, 0, 4)))
        if len(defects) > FINDINGS:
            rest = dict.fromkeys(finding.code for finding in defects[FINDINGS:])
            console.print(Text(f"  and {', '.join(rest)}", style="dim"))
    console.print()
    console.print(Text(view.CAVEAT, style="dim"))
    for note in found.summary.notes[:FINDINGS]:
        console.print(Text(printable(note), style="dim"))


def _ranks(found: DiagnosisSet, console: Console) -> None:
    lines, left_out = view.worst_lines(found)
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for _ in view.COLUMNS[:-1]:
        table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("", *(Text(column, style="dim") for column in view.COLUMNS))
    for line in lines:
        table.add_row(Text(line.label, style="yellow" if line.bad else ""), *map(Text, line.cells))
    console.print(Padding(table, (0, 0, 0, 2)))
    if left_out:
        console.print(Text(f"  and {left_out} more, whose hosts are less late", style="dim"))


def render_markdown(found: DiagnosisSet) -> str:
    """The report as GitHub-flavoured markdown."""
    lines = [f"### {_text(view.headline(found))}", "", _text(view.counts_line(found)), ""]
    lines += [f"{_text(line)}\n" for line in view.straggler_lines(found)]
    shown, left_out = view.worst_lines(found)
    lines += [f"| | {' | '.join(view.COLUMNS)} |", "|---|--:|--:|--:|--:|--:|---|"]
    for line in shown:
        name = f"**{_text(line.label)}**" if line.bad else _text(line.label)
        lines.append(f"| {name} | {' | '.join(map(_text, line.cells))} |")
    if left_out:
        lines += ["", f"and {left_out} more, whose hosts are less late"]
    lines.append("")
    lines += [f"- {_text(line)}" for line in view.spread_lines(found)]
    if line_of_batches := view.batch_line(found):
        lines += ["", _text(line_of_batches)]
    if defects := view.defects(found):
        lines += ["", "| | finding | where | saves |", "|---|---|---|--:|"]
        lines += [
            f"| {finding.severity} | {finding.code} {_text(finding.title)}. "
            f"{_text(finding.advice)} | {_text(view.where(found, finding))} | "
            f"{_text(view.saving(finding))} |"
            for finding in defects[: 2 * FINDINGS]
        ]
    lines += ["", view.CAVEAT]
    lines += [f"- {_text(note)}" for note in found.summary.notes]
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", printable(text))


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(schema()), indent=2) + b"\n")
