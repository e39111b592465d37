"""`hostgap doctor`: what this machine has, and what works with it."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hostgap.doctor import Report

_STYLES = {"ok": "green", "warn": "yellow", "missing": "yellow", "n/a": "dim"}


@click.command(short_help="Check what this machine has for profiling.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to print the report.",
)
def command(form: str) -> None:
    """Check what this machine has for profiling.

    Looks for torch (in a process of its own), the GPU and its driver, whether a test kernel can
    be recorded, permissions, nsys and the optional packages. A report, not a test: the exit code
    is 0 whatever is missing.
    """
    from hostgap.doctor import examine

    if sys.stderr.isatty():
        click.echo("Importing torch, if there is one ...", err=True)
    report = examine()
    if form == "json":
        click.echo(json.dumps(_plain(report), indent=2))
    else:
        _show(report)


def _plain(report: Report) -> dict[str, object]:
    return {
        "schema": "hostgap.doctor/1",
        "checks": [dataclasses.asdict(check) for check in report.checks],
        "works": [dataclasses.asdict(ability) for ability in report.abilities],
    }


def _show(report: Report) -> None:
    from rich.table import Table
    from rich.text import Text

    from hostgap.output.terminal import console_on

    def table() -> Table:
        grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        return grid

    checks = table()
    for check in report.checks:
        detail = Text(check.detail)
        if check.todo is not None:
            detail.append(f"\n-> {check.todo}", "cyan")
        checks.add_row(Text(check.name), Text(check.status, _STYLES[check.status]), detail)
    works = table()
    for ability in report.abilities:
        answer = Text("yes", "green") if ability.works else Text("no", "yellow")
        works.add_row(Text(ability.name), answer, Text(ability.detail))
    with console_on(sys.stdout) as console:
        console.print(checks)
        console.print(Text("\nWhat works here", "bold"))
        console.print(works)
