"""`hostgap analyze`: where a trace's idle GPU time went."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from click.core import ParameterSource

from hostgap.cli.options import (
    Amount,
    Codes,
    PathGiven,
    Percentage,
    device_option,
    force_option,
    output_option,
    rules_option,
    source_root_option,
    step_marker_option,
    steps_option,
)

if TYPE_CHECKING:
    from hostgap.analysis.examine import Analysis
    from hostgap.diagnosis.model import Diagnosis
    from hostgap.profiling.measurement import Measurement

FORMATS = ("text", "json", "markdown", "html")
EXTENSIONS = {
    ".json": "json",
    ".md": "markdown",
    ".markdown": "markdown",
    ".txt": "text",
    ".html": "html",
    ".htm": "html",
}
EXIT_FAILED = 1
EXIT_UNMEASURABLE = 3


@click.command(name="analyze", short_help="Say where a trace's idle GPU time went.")
@click.argument(
    "traces", type=PathGiven(readable=False), nargs=-1, required=True, metavar="TRACE..."
)
@click.option(
    "--format",
    type=click.Choice(FORMATS),
    envvar="HOSTGAP_FORMAT",
    help="What to print on stdout; text unless -o is given.",
)
@output_option(".json", ".md", ".txt", ".html")
@force_option
@click.option(
    "--window",
    type=click.Choice(["steps", "trace"]),
    default="steps",
    show_default=True,
    envvar="HOSTGAP_WINDOW",
    help="The steps, or everything from the first GPU op to the last.",
)
@steps_option
@step_marker_option
@device_option
@source_root_option
@click.option(
    "--select",
    type=Codes(),
    metavar="CODES",
    envvar="HOSTGAP_SELECT",
    help="Only rules whose codes begin so, such as HG1,HG201.",
)
@click.option(
    "--ignore",
    type=Codes(),
    metavar="CODES",
    envvar="HOSTGAP_IGNORE",
    help="No rules whose codes begin so.",
)
@rules_option
@click.option(
    "--min-saving",
    type=Percentage(),
    default="1%",
    show_default=True,
    metavar="SHARE",
    envvar="HOSTGAP_MIN_SAVING",
    help="What a finding must save of the step to be more than info.",
)
@click.option(
    "--fail-on",
    type=click.Choice(["warning", "error"]),
    envvar="HOSTGAP_FAIL_ON",
    help="Exit with 1 on findings as severe as this.",
)
@click.option(
    "--gpu-price",
    type=Amount(),
    metavar="PRICE",
    envvar="HOSTGAP_GPU_PRICE",
    help="Of one GPU for an hour, in any currency.",
)
@click.option(
    "--tokens-per-step",
    type=Amount(),
    metavar="N",
    envvar="HOSTGAP_TOKENS_PER_STEP",
    help="Tokens that a step makes, over its whole batch.",
)
@click.option(
    "--unprofiled-step-ms",
    type=Amount(),
    metavar="MS",
    envvar="HOSTGAP_UNPROFILED_STEP_MS",
    help="What a step takes without a profiler: savings are then of that step.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Of several traces: how many at once; by default one per core.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "dask"]),
    default="local",
    show_default=True,
    help="Where several traces are read: this machine, or a Dask cluster.",
)
@click.option("--scheduler", metavar="ADDRESS", help="Of the Dask cluster: tcp://HOST:PORT.")
@click.option(
    "--rank",
    type=click.IntRange(0),
    metavar="N",
    help="Of several traces: the whole diagnosis of this rank alone.",
)
@click.pass_context
def command(
    ctx: click.Context,
    traces: tuple[str, ...],
    format: str | None,
    outputs: tuple[Path, ...],
    force: bool,
    window: Literal["steps", "trace"],
    steps: tuple[int | None, int | None] | None,
    step_marker: str | None,
    device: str | None,
    source_roots: tuple[Path, ...],
    select: list[str] | None,
    ignore: list[str] | None,
    rules: tuple[Path, ...],
    min_saving: float,
    fail_on: str | None,
    gpu_price: float | None,
    tokens_per_step: float | None,
    unprofiled_step_ms: float | None,
    jobs: int | None,
    engine: str,
    scheduler: str | None,
    rank: int | None,
) -> int:
    """Say where a trace's idle GPU time went.

    TRACE is a torch.profiler trace (.json, .json.gz, .json.zst; - for standard input) or an export
    of Nsight Systems (.sqlite, or .nsys-rep where nsys is on the PATH), or a run directory of
    hostgap profile: savings are then those of the step without a profiler.

    Several, a folder, a pattern ('out/*rank*.json.gz') or a URL (s3://, gs://, https://) are the
    ranks of one job: who waits for whom stands first, then the ranks. --rank 3 reads one alone.

    Exit codes: 0 done, 1 findings as severe as --fail-on, 2 unreadable input, 3 the trace supports
    no verdict (of several: one of them, or it could not be read).
    """
    from hostgap.analysis.calibration import step_alone
    from hostgap.analysis.examine import Options, examine
    from hostgap.analysis.metrics import diagnose
    from hostgap.analysis.part import is_large, load_part
    from hostgap.cli.progress import reading
    from hostgap.diagnosis.judge import Judging, judge
    from hostgap.diagnosis.run import load_run, run_trace
    from hostgap.errors import ConfigError
    from hostgap.files import refuse_output
    from hostgap.output.printable import printable
    from hostgap.profiling.rundir import read_measurement
    from hostgap.trace.load import load_trace

    kinds = [_format_of(path) for path in outputs]
    resolved = [os.path.realpath(path) for path in outputs]  # unlike resolve(), ends with loops
    if len(set(resolved)) < len(resolved):
        raise click.UsageError("-o names the same file twice", ctx)
    _refuse_traces(traces, resolved, ctx)
    for output in outputs:
        refuse_output(output, force=force)
    if steps is not None and window == "trace":
        if ctx.get_parameter_source("window") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--steps and --window trace exclude each other", ctx)
        window = "steps"  # asked for on the command line, against the configuration
    options = Options(
        window=window,
        steps=steps,
        step_marker=step_marker,
        device=device,
        source_roots=source_roots,
    )
    trace = traces[0]
    inputs = None
    if rank is not None or len(traces) > 1 or not (trace == "-" or Path(trace).is_file()):
        from hostgap.ranks.inputs import find_inputs

        if rank is not None and trace == "-":
            raise click.UsageError("--rank chooses among files: - is none", ctx)
        inputs = find_inputs(traces)
        _refuse_traces([one.name for one in inputs.traces], resolved, ctx)
        trace = inputs.traces[0].name
        if rank is not None:
            from hostgap.ranks.choose import choose

            trace = choose(inputs, rank).name
    several = inputs is not None and inputs.several and rank is None
    run = not several and trace != "-" and Path(trace).is_dir()
    # those of several that are none take it from the configuration
    measured = [trace] if run else []
    if several and inputs is not None:
        measured = [one.name for one in inputs.traces if Path(one.name).is_dir()]
    if measured and unprofiled_step_ms is not None:
        if ctx.get_parameter_source("unprofiled_step_ms") is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"--unprofiled-step-ms: {measured[0]} holds the step that was measured", ctx
            )
        unprofiled_step_ms = None if run else unprofiled_step_ms
    judging = Judging(
        select=select or (),
        ignore=ignore or (),
        folders=rules,
        thresholds=ctx.obj.rule if ctx.obj is not None else {},
        min_saving=min_saving,
        gpu_price=gpu_price,
        tokens_per_step=tokens_per_step,
        calibration=step_alone(unprofiled_step_ms * 1e6) if unprofiled_step_ms else None,
    )
    chosen = ctx.get_parameter_source("format") is ParameterSource.COMMANDLINE
    shown = (format or "text") if chosen or not outputs else None
    if inputs is not None and several:
        from hostgap.cli.analyze_set import analyze_set, chosen_engine

        return analyze_set(
            inputs,
            options,
            judging,
            chosen_engine(engine, scheduler, jobs),
            outputs=list(zip(outputs, kinds, strict=True)),
            shown=shown,
            force=force,
            fail_on=fail_on,
        )
    for name in ("jobs", "engine", "scheduler"):
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            click.echo(f"hostgap: note: --{name} is for several traces, and this is one", err=True)
    path: str | Path = trace  # or a URL, which is no path
    if run:
        measurement = read_measurement(Path(trace))
        path = run_trace(Path(trace), measurement)
        judging = judging.of_run(measurement)
    passes = 1 if run or steps is None or not is_large(str(path)) else 2
    with reading(str(path), passes=passes, analyzing=True) as progress:
        part = load_part(path, options, progress=progress) if passes == 2 else None
        if part is not None:
            loaded = part.trace
        elif run:
            loaded = load_run(Path(trace), measurement, progress=progress)
        else:
            loaded = load_trace(path, progress=progress)
        analysis = examine(loaded, part.options if part is not None else options)
        diagnosis = judge(diagnose(analysis), analysis, judging)
    if part is not None:
        diagnosis = part.renumbered(diagnosis)
    for problem in diagnosis.problems:
        click.echo(f"hostgap: warning: {printable(problem, 500)}", err=True)

    of_page = (analysis, diagnosis, path, judging.measurement)
    for output, kind in zip(outputs, kinds, strict=True):
        _write(
            _page(*of_page) if kind == "html" else _rendered(diagnosis, kind), output, force=force
        )
    if shown == "html":
        _emit(_page(*of_page))
    elif shown is not None:
        _print(diagnosis, shown)
    if diagnosis.verdict == "unmeasurable":
        return EXIT_UNMEASURABLE
    if fail_on is not None and diagnosis.problems:
        raise ConfigError("--fail-on: some rules did not run", "see the warnings above")
    severe = {"warning": ("warning", "error"), "error": ("error",)}.get(fail_on or "", ())
    failed = [finding for finding in diagnosis.findings if finding.severity in severe]
    if failed:
        codes = ", ".join(dict.fromkeys(finding.code for finding in failed))
        click.echo(f"hostgap: --fail-on {fail_on}: {codes}", err=True)
    return EXIT_FAILED if failed else 0


def _refuse_traces(traces: Sequence[str], outputs: Sequence[str], ctx: click.Context) -> None:
    """Refuse outputs, given by their real paths, that would replace what is read."""
    from hostgap.profiling.rundir import NAME

    for trace in traces:
        real = os.path.realpath(trace)
        if trace != "-" and real in outputs:
            raise click.UsageError(f"-o {trace}: that is the trace itself", ctx)
        if os.path.join(real, NAME) in outputs:  # noqa: PTH118
            raise click.UsageError(f"-o {trace}/{NAME}: that is a part of the run itself", ctx)


def _format_of(path: Path) -> str:
    kind = EXTENSIONS.get(path.suffix.lower())
    if kind is None:
        known = ", ".join(EXTENSIONS)
        raise click.UsageError(f"-o {path}: the format is told by the extension; known: {known}")
    return kind


def _write(data: bytes, path: Path, *, force: bool) -> None:
    from hostgap.files import atomic_output

    with atomic_output(path, force=force) as out:
        out.write(data)
    click.echo(f"Wrote {path}", err=True)


def _page(
    analysis: Analysis, diagnosis: Diagnosis, trace: str | Path, measurement: Measurement | None
) -> bytes:
    """The HTML report, for which the events are needed too."""
    from hostgap.output.html import render_html
    from hostgap.report.run import Page, run_of_trace

    again = Path(trace) if Path(trace).is_file() else None
    return render_html(Page([run_of_trace(analysis, diagnosis, again, measurement=measurement)]))


def _print(diagnosis: Diagnosis, kind: str) -> None:
    if kind == "text":
        from hostgap.output.text import render_text

        render_text(diagnosis, sys.stdout)
    else:
        _emit(_rendered(diagnosis, kind))


def _emit(data: bytes) -> None:
    sys.stdout.buffer.write(data)
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
