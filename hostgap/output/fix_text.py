"""The report of `hostgap fix` for a terminal: 80 columns, the answer first."""

from __future__ import annotations

from typing import IO

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hostgap.fixes.report import FixReport
from hostgap.output import fix_summary as s
from hostgap.output.printable import printable
from hostgap.output.terminal import console_on

_STYLES = {"kept": "green", "rolled-back": "yellow", "failed": "red"}


def render_fix_text(report: FixReport, stream: IO[str], *, color: bool | None = None) -> None:
    """Write the report for people.

    Args:
        report: what to report.
        stream: where to; on a terminal its width is used, elsewhere 80 columns.
        color: force colour on or off; None decides by the terminal, NO_COLOR and FORCE_COLOR.
    """
    with console_on(stream, color=color) as console:
        _report(report, console)


def _report(report: FixReport, console: Console) -> None:
    console.print(Text(s.headline(report), style="bold"))
    console.print(Text(s.described(report), style="dim"))
    if report.problem is not None:
        said = f"Ended early: {printable(report.problem)}"
        console.print(Text(said, style="bold red"))
    console.print()
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for _ in s.COLUMNS:
        table.add_column(justify="right", no_wrap=True)
    table.add_row("", "", *(Text(name, style="dim") for name in s.COLUMNS))
    for rung in report.rungs:
        style = _STYLES.get(rung.status, "")
        name = Text(s.label(rung), style=style)
        table.add_row(Text(s.MARKS[rung.status], style=style), name, *s.cells(rung))
    console.print(table)
    console.print(
        Text(
            "+ kept  - rolled back  ! failed  ? not tried; g: graphs; speed: timed in turn",
            style="dim",
        )
    )
    for rung in report.rungs:
        console.print()
        head = Text(f"{s.label(rung)} ", style="bold")
        head.append(s.verdict(rung), style=_STYLES.get(rung.status, ""))
        console.print(head)
        lines = s.details(rung)
        if rung.status != "start":
            lines = [s.what(rung), *lines]
        for line in lines:
            console.print(Padding(Text(line, style="dim"), (0, 0, 0, 2)))
    if report.skipped:
        console.print()
        console.print(Text("Not tried", style="bold"))
        grouped: dict[str, list[str]] = {}
        for skipped in report.skipped:
            grouped.setdefault(skipped.why, []).append(skipped.name)
        for why, names in grouped.items():
            line = f"{printable(', '.join(names))}: {printable(why)}"
            console.print(Padding(Text(line, style="dim"), (0, 0, 0, 2)))
