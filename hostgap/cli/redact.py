"""`hostgap redact`: a trace that can be shown to others."""

from __future__ import annotations

from pathlib import Path

import click

from hostgap.cli.options import PathGiven


@click.command(short_help="Remove names, paths and environment from a trace.")
@click.argument("trace", type=PathGiven(path_type=Path))
@click.option(
    "-o",
    "--output",
    "out",
    required=True,
    metavar="OUT",
    type=PathGiven(path_type=Path),
    help="Where to write; .gz and .zst compress.",
)
@click.option(
    "--also",
    multiple=True,
    metavar="WORD",
    help="Take this out too, wherever it occurs and in any case. Repeatable.",
)
@click.option("--force", is_flag=True, help="Overwrite OUT if it exists.")
@click.pass_context
def command(ctx: click.Context, trace: Path, out: Path, also: tuple[str, ...], force: bool) -> None:
    """Remove names, paths and environment from a trace.

    Writes a copy of a torch.profiler trace, or of an SQLite export of Nsight Systems, in which
    folders, host and user names, command lines, environment, addresses and credentials are
    replaced, and so is all text that a trace says of itself under names that hostgap does not know.
    Every number, and every name of a kernel, op or API call, stays as it is, so the copy gives the
    same figures.

    Whose home folder a path names is a user, whose name goes wherever it stands.

    File names of your own code stay (dir1/decode.py), and so do function and module names: take
    those out with --also. Look at the copy before you publish it.
    """
    from hostgap.cli.gate import refuse_what_is_read
    from hostgap.trace.redact import redact

    refuse_what_is_read((out,), (trace,), ctx)
    for word in also:
        if len(word) < 3:
            raise click.BadParameter(
                f"'{word}' is too short: it would hit names at random", param_hint="--also"
            )
    done = redact(trace, out, also=also, force=force)
    for note in done.notes:
        click.echo(f"hostgap: note: {trace}: {note}", err=True)
    size = (
        f"{done.text_bytes / 1e6:,.1f} MB" if done.text_bytes >= 1e5 else f"{done.text_bytes} bytes"
    )
    strings = f"{done.changed:,} string{'' if done.changed == 1 else 's'}"
    click.echo(f"Wrote {out}: {strings} changed in {size} of {done.what}", err=True)
