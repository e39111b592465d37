"""`hostgap compare`: two sides, with intervals where runs give any."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hostgap.cli.options import (
    PathGiven,
    device_option,
    force_option,
    format_option,
    mismatch_option,
    output_option,
    step_class_option,
    step_marker_option,
    steps_option,
)

if TYPE_CHECKING:
    from hostgap.compare.sides import Comparison

FORMATS = ("text", "json", "markdown")
EXTENSIONS = {".json": "json", ".md": "markdown", ".markdown": "markdown", ".txt": "text"}
EXIT_UNMEASURABLE = 3


@click.command(name="compare", short_help="Put two traces, results or sets of runs side by side.")
@click.argument("base", type=PathGiven(path_type=Path))
@click.argument("new", type=PathGiven(path_type=Path))
@mismatch_option
@step_class_option
@steps_option
@step_marker_option
@device_option
@format_option(FORMATS)
@output_option(".json", ".md", ".txt")
@force_option
@click.pass_context
def command(
    ctx: click.Context,
    base: Path,
    new: Path,
    allow_mismatch: bool,
    step_class: str | None,
    steps: tuple[int | None, int | None] | None,
    step_marker: str | None,
    device: str | None,
    kind: str | None,
    outputs: tuple[Path, ...],
    force: bool,
) -> int:
    """Put two traces, results or sets of runs side by side.

    BASE and NEW are each a trace, a result of `hostgap analyze --format json`, a run directory, or
    a folder of run directories: one for each process, five a side at least, measured in turn.
    Counts are exact; the step's time comes from runs, with its interval.

    Exit codes: 0 compared, 2 unreadable input or a refused comparison, 3 a trace supports no
    verdict.
    """
    from hostgap.analysis.examine import Options
    from hostgap.cli.gate import format_of, refuse_what_is_read
    from hostgap.cli.progress import reading
    from hostgap.compare.sides import compare
    from hostgap.files import refuse_output
    from hostgap.gate.judge import unmeasurable
    from hostgap.gate.subject import load_subject

    kinds = [format_of(path, EXTENSIONS) for path in outputs]
    refuse_what_is_read(outputs, (base, new), ctx)
    for path in outputs:
        refuse_output(path, force=force)
    options = Options(steps=steps, step_marker=step_marker, device=device)
    sides = [load_subject(path, options, reading=reading) for path in (base, new)]
    for side in sides:
        if reason := unmeasurable(side.diagnosis):
            click.echo(f"hostgap: error: {side.name} supports no verdict: {reason}", err=True)
            return EXIT_UNMEASURABLE
    comparison = compare(*sides, step_class=step_class, allow_mismatch=allow_mismatch)
    for path, one in zip(outputs, kinds, strict=True):
        _write(comparison, path, one, force=force)
    if kind is not None or not outputs:
        sys.stdout.flush()
        if kind in (None, "text"):
            from hostgap.output.compare_text import render_compare_text

            render_compare_text(comparison, sys.stdout)
        else:
            sys.stdout.buffer.write(_rendered(comparison, kind))
            sys.stdout.buffer.flush()
    return 0


def _write(comparison: Comparison, path: Path, kind: str, *, force: bool) -> None:
    from hostgap.files import atomic_output

    with atomic_output(path, force=force) as out:
        out.write(_rendered(comparison, kind))
    click.echo(f"Wrote {path}", err=True)


def _rendered(comparison: Comparison, kind: str) -> bytes:
    if kind == "json":
        from hostgap.output.encoded import indented

        return indented(comparison)
    if kind == "markdown":
        from hostgap.output.compare_markdown import render_compare_markdown

        return render_compare_markdown(comparison).encode("utf-8")
    from hostgap.output.compare_text import render_compare_text

    text = io.StringIO()
    render_compare_text(comparison, text, color=False)
    return text.getvalue().encode("utf-8")
