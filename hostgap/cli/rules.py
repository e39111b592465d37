"""`hostgap rules`: every rule, with what it looks for."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import click

from hostgap.cli.options import rules_option


@click.command(short_help="List the rules.")
@rules_option
def command(rules: tuple[Path, ...]) -> None:
    """List the rules.

    What one means, with an example and what to do: hostgap explain CODE.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from hostgap.diagnosis.registry import load_rules
    from hostgap.output.printable import printable

    registry = load_rules(rules)
    for problem in registry.problems:
        click.echo(f"hostgap: warning: {printable(problem, 500)}", err=True)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("code", no_wrap=True)
    table.add_column("name", no_wrap=True)
    table.add_column("what is wrong")
    for code, rule in registry.rules.items():
        table.add_row(Text(code, "cyan"), Text(printable(rule.name)), Text(printable(rule.title)))
    lines = io.StringIO()
    color = sys.stdout.isatty()
    console = Console(file=lines, highlight=False, width=Console().width, force_terminal=color)
    console.print(table)
    click.echo("\n".join(line.rstrip() for line in lines.getvalue().splitlines()))
