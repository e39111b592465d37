"""`hostgap tables`: what an analysis rests on, as Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from hostgap.cli.options import PathGiven, device_option, step_marker_option, steps_option

EXIT_UNMEASURABLE = 3


@click.command(short_help="Write a trace's tables as Parquet files.")
@click.argument("trace", type=PathGiven(readable=False))  # its reader says why it cannot
@click.option(
    "-o",
    "--output",
    "out",
    required=True,
    metavar="DIR",
    type=PathGiven(path_type=Path),
    help="Folder to write to; made if it is not there.",
)
@click.option("--force", is_flag=True, help="Overwrite tables in DIR.")
@click.option(
    "--window",
    type=click.Choice(["steps", "trace"]),
    default="steps",
    show_default=True,
    help="Which gaps to write: those of the steps, or all.",
)
@steps_option
@step_marker_option
@device_option
def command(
    trace: str,
    out: Path,
    force: bool,
    window: Literal["steps", "trace"],
    steps: tuple[int | None, int | None] | None,
    step_marker: str | None,
    device: str | None,
) -> int:
    """Write a trace's tables as Parquet files.

    One file per table: GPU ops, CUDA calls, framework ops, Python frames, syncs, steps, gaps, their
    pieces by cause, and places in the source. docs/tables.md names every column, with queries for
    DuckDB, Polars and pandas.

    Exit codes: 0 done, 2 unreadable input, 3 the trace supports no figure (its tables are written).
    """
    from hostgap.analysis.examine import Options, examine
    from hostgap.analysis.integrity import Verdict
    from hostgap.cli.progress import reading
    from hostgap.output.parquet import refuse_existing_tables, write_tables
    from hostgap.trace.load import load_trace

    if steps is not None and window == "trace":
        raise click.UsageError("--steps and --window trace exclude each other")
    refuse_existing_tables(out, force=force)
    options = Options(window=window, steps=steps, step_marker=step_marker, device=device)
    with reading(trace) as progress:
        loaded = load_trace(trace, progress=progress)
    analysis = examine(loaded, options)
    rows = write_tables(analysis, out, force=force)
    shown = ", ".join(f"{count:,} {name}" for name, count in rows.items())
    click.echo(f"Wrote {out}: {shown}", err=True)
    unmeasurable = analysis.integrity.verdict is Verdict.UNMEASURABLE
    return EXIT_UNMEASURABLE if unmeasurable else 0
