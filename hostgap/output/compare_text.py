"""A comparison for a terminal: 80 columns, the answer first."""

from __future__ import annotations

from typing import IO

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hostgap.compare.sides import Comparison
from hostgap.output import compare_summary as s
from hostgap.output.printable import printable
from hostgap.output.summary import place
from hostgap.output.terminal import console_on

PLACES = 8
_STYLES = {"better": "green", "worse": "red", "same": "dim", "varies": ""}


def render_compare_text(
    comparison: Comparison, stream: IO[str], *, color: bool | None = None
) -> None:
    """Write the comparison for people.

    Args:
        comparison: what to report.
        stream: where to; on a terminal its width is used, elsewhere 80 columns.
        color: force colour on or off; None decides by the terminal, NO_COLOR and FORCE_COLOR.
    """
    with console_on(stream, color=color) as console:
        _report(comparison, console)


def _report(comparison: Comparison, console: Console) -> None:
    console.print(Text(s.headline(comparison), style="bold"))
    for name, line in s.sides(comparison):
        console.print(Text(f"{name:4} {line}", style="dim"))
    for line in s.step_time(comparison):
        console.print(Text(line))
    if comparison.rows:
        console.print()
        table = _table("", "base", "new", "")
        for row in comparison.rows:
            style = _STYLES[row.change]
            base, new, change = s.cells(row)
            table.add_row(
                Text(row.metric, style=style),
                base,
                new,
                Text(change + s.unjudged(row), style=style),
            )
        console.print(Padding(table, (0, 0, 0, 2)))
    if idle := s.idle_rows(comparison):
        console.print()
        console.print(Text("Idle time a step by cause, as recorded", style="bold"))
        table = _table("", "base", "new", "")
        for cells in idle:
            table.add_row(*cells)
        console.print(Padding(table, (0, 0, 0, 2)))
    if comparison.waits:
        console.print()
        console.print(Text("Waits for the GPU that differ, a step", style="bold"))
        table = _table("base", "new", "")
        for wait in comparison.waits[:PLACES]:
            where = place(wait.site) or "a place that the trace does not name"
            table.add_row(f"{wait.base:.3g}", f"{wait.new:.3g}", Text(f"{where} ({wait.call})"))
        console.print(Padding(table, (0, 0, 0, 2)))
        if len(comparison.waits) > PLACES:
            console.print(Text(f"  and {len(comparison.waits) - PLACES} more", style="dim"))
    if comparison.notes:
        console.print()
    for note in comparison.notes:
        console.print(Text(printable(note, 500), style="dim"))


def _table(*names: str) -> Table:
    table = Table.grid(padding=(0, 2))
    for name in names:
        number = name in ("base", "new")
        table.add_column(justify="right" if number else "left", no_wrap=number, overflow="fold")
    table.add_row(*(Text(name, style="dim") for name in names))
    return table
