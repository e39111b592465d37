"""`hostgap attach`: traces a running serving engine and says where its idle GPU time went."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from hostgap.cli.options import NumberRange, PathGiven

if TYPE_CHECKING:
    from hostgap.serving.attach import Attached

EXIT_UNMEASURABLE = 3


class Progress(Protocol):
    """Says what is being done."""

    def __call__(self, text: str, /) -> None:
        """Show `text` in place of what was said before."""


@click.command(name="attach", short_help="Trace a running vLLM or SGLang server and diagnose it.")
@click.argument("url")
@click.option(
    "--engine",
    "engine_name",
    type=click.Choice(["vllm", "sglang"]),
    required=True,
    help="What the server runs.",
)
@click.option(
    "-o",
    "--output",
    "out",
    type=PathGiven(path_type=Path),
    required=True,
    metavar="DIR",
    help="Folder for the traces, their diagnoses and serving.json.",
)
@click.option(
    "--steps",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    help="Engine steps to record.",
)
@click.option(
    "--start-step",
    type=click.IntRange(0, 1_000_000),
    default=5,
    show_default=True,
    help="vLLM: steps to let pass first. SGLang: the first step, counted since it started.",
)
@click.option(
    "--trace-dir",
    type=PathGiven(path_type=Path),
    metavar="DIR",
    help="The folder that the server writes its traces to, under the same path here and there.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=NumberRange(1, 86400),
    default=300,
    show_default=True,
    metavar="S",
    help="Seconds to wait for the steps, and again for the files.",
)
@click.option(
    "--api-key",
    envvar="HOSTGAP_API_KEY",
    metavar="KEY",
    help="Sent as a bearer token; better given as HOSTGAP_API_KEY. Never printed or stored.",
)
@click.option("--force", is_flag=True, help="Overwrite existing files in the output folder.")
def command(
    url: str,
    engine_name: str,
    out: Path,
    steps: int,
    start_step: int,
    trace_dir: Path | None,
    timeout_s: float,
    api_key: str | None,
    force: bool,
) -> int:
    """Trace a running vLLM or SGLang server and diagnose it.

    URL is the server's, such as http://localhost:8000. It must be serving requests meanwhile. It
    records some steps with its own profiler, into a folder that both it and this command see; the
    files are copied, and every rank is diagnosed. Recording slows the server down.

    vLLM has to be started with --profiler-config; see docs/serving.md.

    Exit codes: 0 done, 2 the server cannot be traced, 3 a trace supports no verdict.
    """
    from hostgap.errors import HostgapError
    from hostgap.output.printable import printable
    from hostgap.serving.attach import ENGINES, attach
    from hostgap.serving.server import Server

    engine = ENGINES[engine_name]()
    server = Server.at(url, api_key)
    if trace_dir is None:
        hint = engine.where(Path("DIR")) + "; " if engine_name == "vllm" else ""
        raise HostgapError(
            "--trace-dir is missing: the server writes its traces to its own disk",
            f"{hint}give a folder that both the server and this command see",
        )

    def note(text: str) -> None:
        click.echo(f"hostgap: note: {printable(text, 500)}", err=True)

    with _progress() as say:
        done = attach(
            server,
            engine,
            out,
            trace_dir,
            steps=steps,
            start_step=start_step,
            timeout_s=timeout_s,
            force=force,
            say=say,
            note=note,
        )
    _show_server(done)
    return _diagnose(done, force=force)


def _show_server(done: Attached) -> None:
    """What the server was doing without the profiler."""
    from hostgap.output.printable import printable

    serving = done.serving
    running = serving.requests_running
    load = "" if running is None else f", {running} requests running"
    click.echo(f"{serving.engine} {printable(serving.version, 60)} at {serving.url}{load}")
    latency = serving.inter_token_latency
    if latency is None:
        click.echo(f"Time between tokens without the profiler: unknown: {_why(done)}")
    else:
        click.echo(
            f"Time between tokens without the profiler: {latency.mean_ns / 1e6:.2f} ms"
            f" (mean of {latency.tokens:,} in {latency.interval_s:.1f} s)"
        )


def _why(done: Attached) -> str:
    from hostgap.output.printable import printable

    return printable(done.serving.inter_token_latency_missing or "the server does not say", 200)


def _diagnose(done: Attached, *, force: bool) -> int:
    """Print each rank's diagnosis and write its JSON beside its trace; the exit code.

    Raises:
        HostgapError: no rank's trace can be read.
    """
    from hostgap.analysis.analyze import analyze
    from hostgap.cli.progress import reading
    from hostgap.errors import HostgapError
    from hostgap.files import atomic_output
    from hostgap.output.json import render_json
    from hostgap.output.printable import printable
    from hostgap.output.text import render_text
    from hostgap.trace.load import load_trace

    unmeasurable, failures, read = False, [], 0
    for file, path in zip(done.serving.files, done.paths, strict=True):
        heading = f"{printable(file.label, 80)}: {printable(file.file, 200)}"
        click.echo(f"\n== {heading}")
        if file.role == "frontend":
            click.echo("The API server's own trace, without a GPU: not diagnosed.")
            continue
        try:
            with reading(str(path)) as progress:
                trace = load_trace(path, progress=progress)
            diagnosis = analyze(trace)
        except HostgapError as error:  # the other ranks have something to say all the same
            failures.append(error)
            click.echo(f"hostgap: warning: {printable(error.message, 500)}", err=True)
            continue
        read += 1
        for problem in diagnosis.problems:
            click.echo(f"hostgap: warning: {printable(problem, 500)}", err=True)
        render_text(diagnosis, sys.stdout)
        with atomic_output(_json_beside(path), force=force) as stream:
            stream.write(render_json(diagnosis))
        unmeasurable |= diagnosis.verdict == "unmeasurable"
    if failures and not read:
        raise failures[0]
    click.echo(f"Wrote {done.paths[0].parent}: traces, diagnoses, serving.json", err=True)
    return EXIT_UNMEASURABLE if unmeasurable or failures else 0


def _json_beside(path: Path) -> Path:
    name = path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".trace")
    return path.with_name(f"{name.removesuffix('.pt')}.diagnosis.json")


@contextmanager
def _progress() -> Iterator[Progress]:
    """A line that changes on a terminal; elsewhere, one line for each new thing that is done."""
    if sys.stderr.isatty() and not os.environ.get("CI"):
        from rich.console import Console
        from rich.text import Text

        with Console(stderr=True).status(Text("")) as status:
            yield lambda text: status.update(Text(text))
        return
    last = ""

    def say(text: str) -> None:
        nonlocal last
        kind = text.split(":")[0]  # "recording: step 3 of 20" would be said twenty times
        if kind != last:
            click.echo(f"hostgap: {text}", err=True)
            last = kind

    yield say
