"""`hostgap report`: what was found or measured, as one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from hostgap.cli.options import PathGiven

DEFAULT = Path("report.html")


@click.command(short_help="Make one HTML file of what was found.")
@click.argument(
    "results", type=PathGiven(path_type=Path), nargs=-1, required=True, metavar="RESULT..."
)
@click.option(
    "-o",
    "--output",
    type=PathGiven(path_type=Path),
    default=DEFAULT,
    show_default=True,
    help="The HTML file to write.",
)
@click.option(
    "--against", type=PathGiven(path_type=Path), help="Compare the first run with this one."
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def command(results: tuple[Path, ...], output: Path, against: Path | None, force: bool) -> None:
    """Make one HTML file of what was found.

    RESULT is a run directory of hostgap profile, a trace, the JSON of hostgap analyze or of hostgap
    fix, or a folder of ranks. Several become one report with a picker; the JSON of a fix beside a
    run is its before and after. JSON of a diagnosis holds no events: the report is then without
    timeline, and says so.

    The file loads nothing and sends nothing.
    """
    from hostgap.cli.progress import reading
    from hostgap.files import atomic_output, refuse_output
    from hostgap.output.html import render_html
    from hostgap.report.sources import read_page

    if output.suffix.lower() not in (".html", ".htm"):
        raise click.UsageError(f"-o {output}: a report is .html")
    refuse_output(output, force=force)
    page = render_html(read_page(results, against, reading))
    with atomic_output(output, force=force) as out:
        out.write(page)
    click.echo(f"Wrote {output}", err=True)
