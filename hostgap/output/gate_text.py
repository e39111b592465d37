"""The gate's report for a terminal: 80 columns, the answer first."""

from __future__ import annotations

from typing import IO

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hostgap.gate.model import GateResult
from hostgap.output import gate_summary as s
from hostgap.output.printable import printable
from hostgap.output.terminal import console_on

PLACES = 5
_STYLES = {
    "passed": "green",
    "failed": "bold red",
    "warning": "yellow",
    "inconclusive": "yellow",
    "skipped": "dim",
    "unmeasurable": "bold red",
}


def render_gate_text(result: GateResult, stream: IO[str], *, color: bool | None = None) -> None:
    """Write the report for people.

    Args:
        result: what to report.
        stream: where to; on a terminal its width is used, elsewhere 80 columns.
        color: force colour on or off; None decides by the terminal, NO_COLOR and FORCE_COLOR.
    """
    with console_on(stream, color=color) as console:
        _report(result, console)


def _report(result: GateResult, console: Console) -> None:
    style = {"passed": "bold green", "inconclusive": "bold yellow"}.get(result.outcome, "bold red")
    console.print(Text(s.headline(result), style=style))
    console.print(Text(s.described(result), style="dim"))
    console.print()
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold", ratio=1)
    for check in result.checks:
        style = _STYLES[check.status]
        table.add_row(
            Text(s.STATUS[check.status], style=style),
            Text(s.label(check)),
            Text(printable(check.text, 500), style="dim" if check.status == "skipped" else ""),
        )
    console.print(Padding(table, (0, 0, 0, 2)))
    _places(result, console)
    lines = [
        ("stale, allowed and no longer there: " + s.entry_text(e), "yellow") for e in result.stale
    ]
    lines += [(note, "dim") for note in result.notes]
    if canary := s.canary_line(result):
        lines.append((canary, "" if result.canary and result.canary.caught else "bold red"))
    if lines:
        console.print()
    for line, line_style in lines:
        console.print(Text(printable(line, 500), style=line_style))


def _places(result: GateResult, console: Console) -> None:
    """Where what failed comes from, each place once."""
    seen: set[str] = set()
    for check in result.checks:
        if check.status not in ("failed", "warning"):
            continue
        culprits = [c for c in s.shown_culprits(check) if c.fingerprint not in seen]
        if not culprits:
            continue
        seen |= {culprit.fingerprint for culprit in culprits}
        console.print()
        console.print(Text(f"Behind {check.metric}", style="bold"))
        for culprit in culprits[:PLACES]:
            head = Text("  ")
            if culprit.new:
                head.append("new ", style="bold red")
            head.append(f"{culprit.code} ", style="bold")
            head.append(f"{s.where(culprit)}, {s.often(culprit)}")
            console.print(head)
            for text in (culprit.title, culprit.advice):
                line = Text(printable(text), style="dim")
                console.print(Padding(line, (0, 0, 0, 4)))
        if len(culprits) > PLACES:
            console.print(Text(f"  and {len(culprits) - PLACES} more", style="dim"))
