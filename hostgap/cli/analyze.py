"""`hostgap analyze`: where a trace's idle GPU time went."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from hostgap.diagnosis.model import Diagnosis

FORMATS = ("text", "json", "markdown")
EXTENSIONS = {".json": "json", ".md": "markdown", ".markdown": "markdown", ".txt": "text"}
EXIT_UNMEASURABLE = 3


class StepRange(click.ParamType[tuple[int | None, int | None]]):
    """`3:10`, `3:`, `:10`, `-5:` or a single `3`: a half-open range of step indices."""

    name = "range"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, int | None]:
        """Parse the text; a usage error when it is no range."""
        if isinstance(value, tuple):
            return value
        first, colon, last = str(value).partition(":")
        try:
            start = int(first) if first else None
            if not colon:
                if start is None:
                    raise ValueError
                return start, (start + 1) or None
            return start, int(last) if last else None
        except ValueError:
            self.fail(f"{value!r} is not a range of steps such as 3:10, 3: or -5:", param, ctx)


@click.command(name="analyze", short_help="Say where a trace's idle GPU time went.")
@click.argument("trace")
@click.option(
    "--format",
    type=click.Choice(FORMATS),
    envvar="HOSTGAP_FORMAT",
    help="What to print on stdout; text unless -o is given.",
)
@click.option(
    "-o",
    "--output",
    "outputs",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Write to a file; the format follows its extension (.json, .md, .txt). Repeatable.",
)
@click.option("--force", is_flag=True, help="Overwrite existing output files.")
@click.option(
    "--window",
    type=click.Choice(["steps", "trace"]),
    default="steps",
    show_default=True,
    envvar="HOSTGAP_WINDOW",
    help="The steps, or everything from the first GPU op to the last.",
)
@click.option(
    "--steps",
    type=StepRange(),
    metavar="A:B",
    envvar="HOSTGAP_STEPS",
    help="Only these steps, counted from 0; by default all but the first.",
)
@click.option(
    "--step-marker",
    metavar="REGEX",
    envvar="HOSTGAP_STEP_MARKER",
    help="Annotations or ops that begin a step.",
)
@click.option("--device", metavar="ID", envvar="HOSTGAP_DEVICE", help="Only this GPU.")
@click.pass_context
def command(
    ctx: click.Context,
    trace: str,
    format: str | None,
    outputs: tuple[Path, ...],
    force: bool,
    window: Literal["steps", "trace"],
    steps: tuple[int | None, int | None] | None,
    step_marker: str | None,
    device: str | None,
) -> int:
    """Say where a trace's idle GPU time went.

    TRACE is a torch.profiler trace (.json, .json.gz, .json.zst; - for standard input) or an export
    of Nsight Systems (.sqlite, or .nsys-rep where nsys is on the PATH).

    Exit codes: 0 done, 2 unreadable input, 3 the trace supports no verdict.
    """
    from hostgap.analysis.analyze import analyze
    from hostgap.analysis.examine import Options
    from hostgap.cli.progress import reading
    from hostgap.files import refuse_existing
    from hostgap.trace.load import load_trace

    kinds = [_format_of(path) for path in outputs]
    resolved = [path.resolve() for path in outputs]
    if len(set(resolved)) < len(resolved):
        raise click.UsageError("-o names the same file twice", ctx)
    if trace != "-" and Path(trace).resolve() in resolved:
        raise click.UsageError(f"-o {trace}: that is the trace itself", ctx)
    for path in outputs:
        refuse_existing(path, force=force)
    if steps is not None and window == "trace":
        if ctx.get_parameter_source("window") is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError("--steps and --window trace exclude each other", ctx)
        window = "steps"  # asked for on the command line, against the configuration
    options = Options(
        window=window,
        steps=steps,
        step_marker=step_marker,
        device=device,
    )
    with reading(trace) as progress:
        loaded = load_trace(trace, progress=progress)
    diagnosis = analyze(loaded, options)

    for path, kind in zip(outputs, kinds, strict=True):
        _write(diagnosis, path, kind, force=force)
    chosen = ctx.get_parameter_source("format") is click.core.ParameterSource.COMMANDLINE
    if chosen or not outputs:
        _print(diagnosis, format or "text")
    unmeasurable = diagnosis.trace.integrity.verdict == "unmeasurable"
    return EXIT_UNMEASURABLE if unmeasurable else 0


def _format_of(path: Path) -> str:
    kind = EXTENSIONS.get(path.suffix.lower())
    if kind is None:
        known = ", ".join(EXTENSIONS)
        raise click.UsageError(f"-o {path}: the format is told by the extension; known: {known}")
    return kind


def _write(diagnosis: Diagnosis, path: Path, kind: str, *, force: bool) -> None:
    from hostgap.files import atomic_output

    with atomic_output(path, force=force) as out:
        out.write(_rendered(diagnosis, kind))
    click.echo(f"Wrote {path}", err=True)


def _print(diagnosis: Diagnosis, kind: str) -> None:
    if kind == "text":
        from hostgap.output.text import render_text

        render_text(diagnosis, sys.stdout)
    else:
        sys.stdout.buffer.write(_rendered(diagnosis, kind))
        sys.stdout.buffer.flush()


def _rendered(diagnosis: Diagnosis, kind: str) -> bytes:
    if kind == "json":
        from hostgap.output.json import render_json

        return render_json(diagnosis)
    if kind == "markdown":
        from hostgap.output.markdown import render_markdown

        return render_markdown(diagnosis).encode("utf-8")
    from hostgap.output.text import render_text

    text = io.StringIO()
    render_text(diagnosis, text, color=False)
    return text.getvalue().encode("utf-8")
