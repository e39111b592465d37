"""`hostgap samples`: real traces to try things on, for those who have none at hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hostgap.cli.options import PathGiven

if TYPE_CHECKING:
    from hostgap.samples import Sample


@click.command(short_help="List or copy the bundled H200 traces.")
@click.argument("name", required=False)
@click.option(
    "-o",
    "--output",
    "out",
    metavar="PATH",
    type=PathGiven(path_type=Path),
    help="File or folder to copy to; the current folder if left out.",
)
@click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
def command(name: str | None, out: Path | None, force: bool) -> None:
    """List or copy the bundled H200 traces.

    Without NAME, lists them. The times are those of a step without the profiler, which slows
    the host down: a trace shows longer steps than the program has.
    """
    from hostgap import samples

    if name is None:
        if out is not None:
            raise click.UsageError("-o needs the NAME of a sample to copy")
        _show(samples.samples())
        return
    path = samples.copy(samples.sample(name), out, force=force)
    click.echo(f"Wrote {path}", err=True)
    click.echo(f"Next: hostgap analyze {path}", err=True)


def _show(entries: list[Sample]) -> None:
    from rich.table import Table
    from rich.text import Text

    from hostgap.output.terminal import console_on

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("sample", no_wrap=True)
    table.add_column("ms/step", justify="right", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("what it shows", overflow="fold")
    for entry in entries:
        table.add_row(
            Text(entry.name, "cyan"),
            f"{entry.unprofiled_step_ms:.2f}",
            f"{len(entry.read()) / 1000:,.0f} kB",
            Text(entry.what),
        )
    where = sorted({f"{entry.gpu}, torch {entry.torch}" for entry in entries})
    with console_on(sys.stdout) as console:
        console.print(table)
        console.print(Text(f"\nRecorded on {'; '.join(where)}. ms/step is without the profiler."))
        console.print(Text("Copy one: hostgap samples NAME"))
