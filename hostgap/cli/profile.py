"""`hostgap profile`: measure a target without and with the profiler, and diagnose it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hostgap.cli.options import Batches, NumberRange, PathGiven, block_option, preset_option

if TYPE_CHECKING:
    from hostgap.profiling.measurement import Measurement
    from hostgap.profiling.protocol import ProfileOptions
    from hostgap.profiling.target import TargetSpec

EXIT_UNMEASURABLE = 3


@click.command(name="profile", short_help="Measure a step and say where its GPU waits.")
@click.argument("target", default="decoder")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "-o",
    "--output",
    "out",
    type=PathGiven(path_type=Path),
    metavar="DIR",
    help="The run directory to write; hostgap-run by default.",
)
@click.option("--force", is_flag=True, help="Replace an existing run directory.")
@preset_option
@click.option(
    "--batch",
    type=Batches(),
    default="1",
    show_default=True,
    metavar="N[,N...]",
    help="Requests in a step. Several: a sweep, of which the first is recorded.",
)
@click.option(
    "--defect",
    "defects",
    multiple=True,
    metavar="NAME",
    help="Switch a defect of the built-in decoder on (all: every one; NAME@RANK: in one rank). "
    "Repeatable.",
)
@click.option(
    "--ranks",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="Processes that run it together, a GPU each: who waits for whom?",
)
@click.option(
    "--temperature", type=NumberRange(min=0, min_open=True), help="Have it sample its tokens."
)
@block_option
@click.option(
    "--repeat", type=click.IntRange(min=3), default=15, show_default=True, help="Timed blocks."
)
@click.option(
    "--warmup",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Steps before, at least; it goes on until the step is steady.",
)
@click.option(
    "--record",
    type=click.IntRange(min=3),
    default=6,
    show_default=True,
    help="Steps recorded by each profiled pass.",
)
@click.option("--stack/--no-stack", default=True, help="A pass with Python stacks, for lines.")
@click.option(
    "--step-marker", metavar="REGEX", help="Ranges that begin a script's steps (NVTX, torch)."
)
@click.option(
    "--device",
    metavar="ID[,ID...]",
    help="The GPU to use (sets CUDA_VISIBLE_DEVICES); with --ranks, one each.",
)
@click.option(
    "--timeout",
    type=NumberRange(min=1, max=1e6),
    default=900,
    show_default=True,
    help="Seconds a pass.",
)
@click.option(
    "--nvtx",
    is_flag=True,
    help="Only run the steps, with NVTX ranges inside cudaProfilerStart and Stop, for nsys.",
)
def command(
    target: str,
    args: tuple[str, ...],
    out: Path | None,
    force: bool,
    preset: str,
    batch: tuple[int, ...],
    defects: tuple[str, ...],
    ranks: int,
    temperature: float | None,
    steps: int,
    repeat: int,
    warmup: int,
    record: int,
    stack: bool,
    step_marker: str | None,
    device: str | None,
    timeout: float,
    nvtx: bool,
) -> int:
    """Measure a step and say where its GPU waits.

    TARGET is the built-in decoder (decoder, the default), a step function or what returns one
    (module:callable, file.py:callable), or a script that calls hostgap.step() at the start of each
    step (script.py -- ARGS).

    Each way of measuring runs in a process of its own. Times come from those that never had a
    profiler; traces, and how much longer the profiler made things, from the others. All of it is
    kept in the run directory, which `hostgap analyze` reads again.

    With --ranks N it is run by N processes together, as torchrun starts them (torch.distributed is
    set up), and the folder holds a run directory for each.
    """
    from hostgap.cli.progress import doing
    from hostgap.fixes.diagnosing import gpu_work
    from hostgap.profiling.protocol import ProfileOptions, profile_target
    from hostgap.profiling.rundir import new_run_dir, write_measurement
    from hostgap.profiling.target import TargetSpec, checked

    spec = checked(
        TargetSpec(
            target=target,
            args=args,
            preset=preset,
            batch=batch[0],
            defects=defects or None,
            temperature=temperature,
            step_marker=step_marker,
            ranks=ranks,
        )
    )
    if nvtx and ranks > 1:
        raise click.UsageError("--nvtx runs one process; start nsys once per rank instead")
    if nvtx:
        from hostgap.profiling.nvtx import run_marked

        if device is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = device
        run_marked(spec, warmup=warmup, steps=record)
        return 0
    options = ProfileOptions(
        warmup=warmup,
        steps=steps,
        repeats=repeat,
        traced_steps=record,
        stacks=stack,
        batches=batch if len(batch) > 1 else (),
        device=device,
        timeout_s=timeout,
    )
    folder = out or Path("hostgap-run")
    if ranks > 1:
        return _ranks(folder, spec, options, force=force)
    with new_run_dir(folder, force=force) as part, doing() as progress:
        measurement = profile_target(spec, options, part, progress, gpu_work)
        write_measurement(part, measurement)
    return _report(folder, measurement)


def _ranks(folder: Path, spec: TargetSpec, options: ProfileOptions, *, force: bool) -> int:
    """Measure a target in several ranks, and hold them against each other."""
    from hostgap.cli.progress import doing
    from hostgap.output.measured import ranks_lines
    from hostgap.output.printable import printable
    from hostgap.profiling.ranked import profile_ranks
    from hostgap.profiling.rundir import new_run_dir, rank_name, write_measurement

    with new_run_dir(folder, force=force) as part, doing() as progress:
        measured = profile_ranks(spec, options, part, progress)
        for index, one in enumerate(measured):
            write_measurement(part / rank_name(index), one)
    for problem in dict.fromkeys(line for one in measured for line in one.problems):
        click.echo(f"hostgap: warning: {printable(problem, 500)}", err=True)
    code = EXIT_UNMEASURABLE
    if all(any(one.mode == "cpu+cuda" for one in each.passes) for each in measured):
        from hostgap.ranks.diagnose import diagnose_set
        from hostgap.ranks.render import render_text

        found = diagnose_set([str(folder)])
        render_text(found, sys.stdout)
        click.echo()
        code = EXIT_UNMEASURABLE if found.summary.failed or found.summary.unmeasurable else 0
    for line in ranks_lines(measured):
        click.echo(line)
    click.echo(f"Wrote {folder}", err=True)
    return code


def _report(folder: Path, measurement: Measurement) -> int:
    from hostgap.output.measured import render_measurement
    from hostgap.output.printable import printable

    for problem in measurement.problems:
        click.echo(f"hostgap: warning: {printable(problem, 500)}", err=True)
    code = EXIT_UNMEASURABLE
    if any(one.mode == "cpu+cuda" for one in measurement.passes):
        from hostgap.diagnosis.run import diagnose_run
        from hostgap.output.text import render_text

        diagnosis = diagnose_run(folder)
        render_text(diagnosis, sys.stdout)
        click.echo()
        code = EXIT_UNMEASURABLE if diagnosis.verdict == "unmeasurable" else 0
    render_measurement(measurement, sys.stdout)
    click.echo(f"Wrote {folder}", err=True)
    return code
