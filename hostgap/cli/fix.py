"""`hostgap fix`: apply fixes one by one, and keep what makes the step faster and no different."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hostgap.cli.options import (
    NumberRange,
    block_option,
    force_option,
    output_option,
    preset_option,
)

if TYPE_CHECKING:
    from hostgap.fixes.report import FixReport
    from hostgap.profiling.target import TargetSpec

EXTENSIONS = {
    ".json": "json",
    ".md": "markdown",
    ".markdown": "markdown",
    ".txt": "text",
    ".html": "html",
    ".htm": "html",
}
EXIT_NO_DEVICE = 2
EXIT_FAILED = 2
EXIT_INTERRUPTED = 130


class Names(click.ParamType[list[str]]):
    """`cuda-graph,compile`: names of fixes."""

    name = "names"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[str]:
        """Split the text at its commas."""
        if isinstance(value, list):
            return value
        names = [part.strip() for part in str(value).split(",") if part.strip()]
        if not names:
            self.fail("no fix named", param, ctx)
        return names


@click.command(name="fix", short_help="Apply fixes, and keep those that help and change nothing.")
@click.argument("target", default="decoder")
@preset_option
@click.option(
    "--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Requests in a step."
)
@click.option(
    "--defect",
    "defects",
    multiple=True,
    metavar="NAME",
    help="Switch a defect of the built-in decoder on (all: every one). Repeatable.",
)
@click.option("--only", type=Names(), metavar="FIXES", help="Try these, in this order.")
@click.option("--skip", type=Names(), metavar="FIXES", help="Do not try these.")
@click.option(
    "--tolerance",
    type=NumberRange(min=0, max=1),
    default=0.05,
    show_default=True,
    help="Of floating-point outputs: norm of the difference by their norm.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be tried, and apply nothing.")
@block_option
@click.option(
    "--repeat",
    type=click.IntRange(min=5),
    default=10,
    show_default=True,
    help="Pairs of timed blocks, in turn.",
)
@click.option(
    "--time-limit",
    type=NumberRange(min=1, max=1e7),
    default=3600,
    show_default=True,
    metavar="SECONDS",
    help="After which no further fix is tried.",
)
@click.option("--device", metavar="ID", help="The GPU to use (sets CUDA_VISIBLE_DEVICES).")
@click.option("--published", is_flag=True, help="Show what an H200 gave; needs no GPU.")
@output_option(".json", ".md", ".txt", ".html")
@force_option
def command(
    target: str,
    preset: str,
    batch: int,
    defects: tuple[str, ...],
    only: list[str] | None,
    skip: list[str] | None,
    tolerance: float,
    dry_run: bool,
    steps: int,
    repeat: int,
    time_limit: float,
    device: str | None,
    published: bool,
    outputs: tuple[Path, ...],
    force: bool,
) -> int:
    """Apply fixes, and keep those that help and change nothing.

    TARGET is the built-in decoder (decoder, the default) or a step function or what returns one
    (module:callable, file.py:callable). The fix with the largest predicted saving comes first; it
    stays only if the step is faster beyond the noise and gives the same output, else it is taken
    back, with the reason. Then the step is measured again.

    Exit codes: 0 done, 2 no CUDA device, or a target that fails, 130 interrupted; what was found by
    then is still shown and written.
    """
    from hostgap.errors import ConfigError
    from hostgap.files import refuse_output
    from hostgap.profiling.target import TargetSpec, checked

    kinds = [_format_of(path) for path in outputs]
    if len({os.path.realpath(path) for path in outputs}) < len(outputs):
        raise click.UsageError("-o names the same file twice")
    for path in outputs:
        refuse_output(path, force=force)
    if published:
        return _show_published(outputs, kinds, preset, batch, force=force)
    spec = checked(TargetSpec(target=target, preset=preset, batch=batch, defects=defects or None))
    if spec.kind == "script":
        raise ConfigError(
            f"{spec.target} owns its loop: only `hostgap profile` takes scripts",
            "give a step function instead: file.py:callable",
        )
    if set(only or ()) & set(skip or ()):
        raise click.UsageError("--only and --skip name the same fix")
    if not _has_cuda():
        click.echo("hostgap: no CUDA device here: `fix` measures on one.", err=True)
        known = _published_of(preset, batch) if spec.kind == "decoder" else []
        click.echo("What an H200 gave:" if known else "  see: hostgap doctor", err=True)
        for report in known:
            _print(report)
        return EXIT_NO_DEVICE

    from hostgap.profiling.worker import BenchOptions

    bench = BenchOptions(steps=steps, repeats=repeat, tolerance=tolerance, device=device)
    report = _climb(spec, bench, only or [], skip or [], time_limit, dry_run=dry_run)
    for path, kind in zip(outputs, kinds, strict=True):
        _write(report, path, kind, force=force)
    if not outputs:
        _print(report)
    if report.problem is not None:
        click.echo(f"hostgap: {report.status}: {report.problem}", err=True)
    return {"interrupted": EXIT_INTERRUPTED, "failed": EXIT_FAILED}.get(report.status, 0)


def _climb(
    spec: TargetSpec,
    bench: object,
    only: list[str],
    skip: list[str],
    time_limit: float,
    *,
    dry_run: bool,
) -> FixReport:
    import msgspec

    from hostgap.cli.progress import doing
    from hostgap.fixes.diagnosing import Diagnoser
    from hostgap.fixes.ladder import ClimbOptions, climb
    from hostgap.fixes.registry import chosen, load_fixes
    from hostgap.profiling.bench import Variant
    from hostgap.profiling.worker import BenchOptions, open_bench

    assert isinstance(bench, BenchOptions)
    fixes = chosen(load_fixes(), only, skip)
    if spec.kind != "decoder":
        fixes = {name: fix for name, fix in fixes.items() if not fix.of_decoder}
    options = ClimbOptions(
        tolerance=bench.tolerance,
        max_seconds=time_limit,
        dry_run=dry_run,
        forced=bool(only),
    )
    with open_bench(spec, bench) as workers, doing() as progress:
        diagnoser = Diagnoser(workers.welcome.environment)
        report = climb(
            workers,
            diagnoser.diagnose,
            Variant(defects=workers.welcome.defects),
            fixes,
            options,
            progress,
            diagnoser.kernels,
        )
    said: dict[str, str | int | float | bool | list[str]] = {
        "batch": spec.batch,
        "steps": bench.steps,
        "repeat": bench.repeats,
    }
    if spec.kind == "decoder":
        said["preset"] = spec.preset
    return msgspec.structs.replace(
        report,
        target=spec.target,
        options=said,
        environment=workers.welcome.environment,
    )


def _has_cuda() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def _published_of(preset: str, batch: int) -> list[FixReport]:
    """The published ladders of a preset at a batch."""
    from hostgap.fixes.published import published

    wanted = {"preset": preset, "batch": batch}
    return [report for report in published() if wanted.items() <= report.options.items()]


def _show_published(
    outputs: tuple[Path, ...], kinds: list[str], preset: str, batch: int, *, force: bool
) -> int:
    from hostgap.errors import HostgapError

    reports = _published_of(preset, batch)
    if not reports:
        raise HostgapError(f"no ladder of preset {preset!r} at batch {batch} has been published")
    if outputs and len(reports) > 1:
        raise HostgapError(f"{len(reports)} ladders are published: -o takes one")
    for path, kind in zip(outputs, kinds, strict=True):
        _write(reports[0], path, kind, force=force)
    for report in reports if not outputs else ():
        _print(report)
    return 0


def _format_of(path: Path) -> str:
    kind = EXTENSIONS.get(path.suffix.lower())
    if kind is None:
        known = ", ".join(EXTENSIONS)
        raise click.UsageError(f"-o {path}: the format is told by the extension; known: {known}")
    return kind


def _write(report: FixReport, path: Path, kind: str, *, force: bool) -> None:
    from hostgap.files import atomic_output

    with atomic_output(path, force=force) as out:
        out.write(_rendered(report, kind))
    click.echo(f"Wrote {path}", err=True)


def _print(report: FixReport) -> None:
    from hostgap.output.fix_text import render_fix_text

    render_fix_text(report, sys.stdout)


def _rendered(report: FixReport, kind: str) -> bytes:
    from hostgap.output.fix_markdown import render_fix_json, render_fix_markdown
    from hostgap.output.fix_text import render_fix_text

    if kind == "json":
        return render_fix_json(report)
    if kind == "markdown":
        return render_fix_markdown(report).encode("utf-8")
    if kind == "html":
        from hostgap.output.html import render_html
        from hostgap.report.run import Page

        return render_html(Page(ladder=report))
    text = io.StringIO()
    render_fix_text(report, text, color=False)
    return text.getvalue().encode("utf-8")
