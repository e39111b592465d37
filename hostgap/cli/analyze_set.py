"""`hostgap analyze` with several traces: the ranks of one job, side by side."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hostgap.errors import ConfigError

if TYPE_CHECKING:
    from hostgap.analysis.examine import Options
    from hostgap.diagnosis.judge import Judging
    from hostgap.ranks.engines import Engine
    from hostgap.ranks.inputs import Inputs
    from hostgap.ranks.job import Outcome
    from hostgap.ranks.model import DiagnosisSet

EXIT_FAILED = 1
EXIT_INCOMPLETE = 3  # a rank is unmeasurable, or could not be read


def chosen_engine(engine: str, scheduler: str | None, jobs: int | None) -> Engine:
    """Where to run the ranks.

    Raises:
        click.UsageError: options that do not belong together.
    """
    from hostgap.ranks.engines import Dask, Local

    if engine == "dask":
        if scheduler is None:
            raise click.UsageError("--engine dask needs --scheduler ADDRESS")
        if jobs is not None:
            raise click.UsageError("--jobs: a Dask cluster has as many workers as it has")
        return Dask(scheduler)
    if scheduler is not None:
        raise click.UsageError("--scheduler is for --engine dask")
    return Local(jobs)


def analyze_set(
    inputs: Inputs,
    options: Options,
    judging: Judging,
    engine: Engine,
    *,
    outputs: Sequence[tuple[Path, str]],
    shown: str | None,
    force: bool,
    fail_on: str | None,
) -> int:
    """Diagnose a set, write it, print it.

    Args:
        outputs: files to write, and their formats.
        shown: the format for stdout, None for nothing there.

    Returns:
        The exit code: 3 where a rank is unmeasurable or could not be read (what is known of the
        others is written all the same), 1 on findings as severe as `fail_on`, else 0.
    """
    from hostgap.files import atomic_output
    from hostgap.output.printable import printable
    from hostgap.ranks.diagnose import diagnose_set

    with _progress(inputs) as progress:
        found = diagnose_set(inputs, options, judging, engine=engine, progress=progress)
    problems = _problems(found)
    for line in problems:
        click.echo(f"hostgap: warning: {printable(line, 500)}", err=True)
    page = b""
    if "html" in (shown, *(kind for _, kind in outputs)):
        page = _page(found, options)
    for path, kind in outputs:
        with atomic_output(path, force=force) as out:
            out.write(page if kind == "html" else _rendered(found, kind))
        click.echo(f"Wrote {path}", err=True)
    if shown == "text":
        from hostgap.ranks.render import render_text

        render_text(found, sys.stdout)
    elif shown is not None:
        sys.stdout.buffer.write(page if shown == "html" else _rendered(found, shown))
        sys.stdout.buffer.flush()
    if found.summary.failed or found.summary.unmeasurable:
        return EXIT_INCOMPLETE
    if fail_on is not None and problems:
        raise ConfigError("--fail-on: some rules did not run", "see the warnings above")
    severe = {"warning": ("warning", "error"), "error": ("error",)}.get(fail_on or "", ())
    failed = [finding for finding in found.summary.findings if finding.severity in severe]
    if failed:
        codes = ", ".join(dict.fromkeys(finding.code for finding in failed))
        click.echo(f"hostgap: --fail-on {fail_on}: {codes}", err=True)
    return EXIT_FAILED if failed else 0


def _problems(found: DiagnosisSet) -> list[str]:
    """What went wrong: traces that could not be read, and rules that failed, each once."""
    lines = [one.error for one in found.ranks if one.error is not None]
    for one in found.ranks:
        lines += one.diagnosis.problems if one.diagnosis is not None else []
    return list(dict.fromkeys(lines))


def _page(found: DiagnosisSet, options: Options) -> bytes:
    """The HTML report, for which the idlest ranks' traces are read once more."""
    from hostgap.cli.progress import reading
    from hostgap.output.html import render_html
    from hostgap.report.run import Page
    from hostgap.report.set import runs_of_set

    return render_html(Page(runs_of_set(found, options, reading), ranks=found))


def _rendered(found: DiagnosisSet, kind: str) -> bytes:
    from hostgap.ranks import render

    if kind == "json":
        return render.render_json(found)
    if kind == "markdown":
        return render.render_markdown(found).encode("utf-8")
    text = io.StringIO()
    render.render_text(found, text, color=False)
    return text.getvalue().encode("utf-8")


@contextmanager
def _progress(inputs: Inputs) -> Iterator[Callable[[int, Outcome], None] | None]:
    """A bar over the ranks, by their sizes where those are known; None where none is wanted."""
    if not sys.stderr.isatty() or os.environ.get("CI"):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    sizes = [one.size for one in inputs.traces]
    by_size = all(sizes)
    with Progress(
        TextColumn("ranks"),
        MofNCompleteColumn(),
        BarColumn(),
        Remaining(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        # one bar counts ranks; its time is estimated by bytes where all are known
        count = progress.add_task("ranks", total=len(sizes))
        bytes_done = progress.add_task("bytes", total=sum(sizes), visible=False)

        def done(size: int, _: Outcome) -> None:
            if by_size:
                progress.advance(bytes_done, size)
                share = progress.tasks[bytes_done].percentage / 100
                progress.update(count, completed=round(share * len(sizes)))
            else:
                progress.advance(count)

        yield done
