"""`hostgap gate`: a verdict for CI, by budgets and a committed baseline."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
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
    source_root_option,
    step_class_option,
    step_marker_option,
    steps_option,
)

if TYPE_CHECKING:
    from hostgap.gate.baseline import Entry
    from hostgap.gate.model import GateResult
    from hostgap.gate.settings import Settings
    from hostgap.gate.subject import Subject

FORMATS = ("text", "json", "markdown", "github", "sarif", "junit")
EXTENSIONS = {
    ".json": "json",
    ".md": "markdown",
    ".markdown": "markdown",
    ".txt": "text",
    ".sarif": "sarif",
    ".xml": "junit",
}
EXIT_UNMEASURABLE = 3


@click.command(name="gate", short_help="Fail when budgets or a baseline are exceeded.")
@click.argument("new", metavar="NEW", type=PathGiven(path_type=Path))
@click.option(
    "--baseline",
    type=PathGiven(path_type=Path),
    metavar="FILE",
    help="The committed baseline; hostgap.json where there is one.",
)
@click.option(
    "--base",
    type=PathGiven(path_type=Path),
    metavar="RUNS",
    help="Runs of what it is compared with, measured in turn with NEW: for the step's time.",
)
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    metavar="K=V",
    help="Such as sync_calls_per_step=0, kernel_utilization=95%, step_time=5%. Repeatable.",
)
@click.option("--strict", is_flag=True, help="Fail where it cannot be decided, too.")
@mismatch_option
@click.option("--canary", is_flag=True, help="Show that one more .item() a step would fail.")
@click.option(
    "--update-baseline", is_flag=True, help="Write what NEW has into the baseline, and judge not."
)
@step_class_option
@steps_option
@step_marker_option
@device_option
@source_root_option
@format_option(FORMATS)
@output_option(".json", ".md", ".txt", ".sarif", ".xml")
@force_option
@click.pass_context
def command(
    ctx: click.Context,
    new: Path,
    baseline: Path | None,
    base: Path | None,
    budgets: tuple[str, ...],
    strict: bool,
    allow_mismatch: bool,
    canary: bool,
    update_baseline: bool,
    step_class: str | None,
    steps: tuple[int | None, int | None] | None,
    step_marker: str | None,
    device: str | None,
    source_roots: tuple[Path, ...],
    kind: str | None,
    outputs: tuple[Path, ...],
    force: bool,
) -> int:
    """Fail when budgets or a baseline are exceeded.

    NEW is a trace, a result of `hostgap analyze --format json`, a run directory, or a folder of
    run directories. Budgets, the allow list and the baseline's place may stand in the table `gate`
    of the configuration; see docs/gate.md.

    Exit codes: 0 passed, warnings, undecided; 1 failed (with --strict also undecided); 2 wrong
    input or comparison; 3 the trace supports no verdict.
    """
    from hostgap.analysis.examine import Options
    from hostgap.cli.progress import reading
    from hostgap.diagnosis.judge import Judging
    from hostgap.files import refuse_output
    from hostgap.gate.baseline import read_baseline
    from hostgap.gate.judge import gate
    from hostgap.gate.subject import load_subject
    from hostgap.output.printable import printable

    kinds = [format_of(path, EXTENSIONS) for path in outputs]
    if len({os.path.realpath(path) for path in outputs}) < len(outputs):
        raise click.UsageError("-o names the same file twice", ctx)
    refuse_what_is_read(outputs, (new, baseline or Path("hostgap.json")), ctx)
    for path in outputs:
        refuse_output(path, force=force)
    if update_baseline and (canary or base):
        raise click.UsageError("--update-baseline judges nothing: no --canary and no --base", ctx)
    if update_baseline and (outputs or kind):
        raise click.UsageError("--update-baseline writes the baseline: no --format and no -o", ctx)
    settings = _settings(baseline, budgets, strict, allow_mismatch, step_class)
    assert settings.baseline is not None
    options = Options(
        steps=steps, step_marker=step_marker, device=device, source_roots=source_roots
    )
    config = ctx.obj
    judging = Judging(
        folders=tuple(Path(each) for each in (config.rules or ())) if config else (),
        thresholds=config.rule if config else {},
    )
    entries = None
    if not update_baseline and (settings.baseline_named or settings.baseline.exists()):
        entries = read_baseline(settings.baseline).entries
    subject = load_subject(new, options, judging, reading)
    for problem in subject.diagnosis.problems if subject.diagnosis else []:
        click.echo(f"hostgap: warning: {printable(problem, 500)}", err=True)
    if update_baseline:
        return _update(settings, subject)
    beside = load_subject(base, options, judging, reading) if base is not None else None
    name = str(settings.baseline) if entries is not None else None
    result = gate(subject, settings, entries, beside, name)
    if canary:
        result = _with_canary(result, subject, settings, entries, beside, name)

    for path, one in zip(outputs, kinds, strict=True):
        _write(result, path, one, force=force)
    if kind is not None or not outputs:
        _print(result, kind or "text")
    if kind == "github":
        _append_summary(result)
    return result.exit_code


def _settings(
    baseline: Path | None,
    budgets: tuple[str, ...],
    strict: bool,
    allow_mismatch: bool,
    step_class: str | None,
) -> Settings:
    """The configuration's settings, under those of the command line."""
    from hostgap.config import find_config, load_config
    from hostgap.gate.settings import DEFAULT_BASELINE, Settings, parse_budgets, read_settings

    here = Path.cwd()
    found = find_config(here)
    settings = Settings()
    if found is not None:
        settings = read_settings(load_config(here).gate, found[0].name, found[0].parent)
    default = (found[0].parent if found is not None else here) / DEFAULT_BASELINE
    place = baseline or settings.baseline or default
    if place.is_absolute() and here in place.parents:
        place = place.relative_to(here)
    return replace(
        settings,
        budgets=settings.budgets | parse_budgets(budgets),
        baseline=place,
        baseline_named=baseline is not None or settings.baseline_named,
        strict=strict or settings.strict,
        allow_mismatch=allow_mismatch or settings.allow_mismatch,
        step_class=step_class or settings.step_class,
    )


def _update(settings: Settings, subject: Subject) -> int:
    """Put the subject's counts into the baseline, and say what changed."""
    from hostgap.errors import ConfigError
    from hostgap.gate.baseline import entry_of, read_baseline, told, updated, write_baseline
    from hostgap.gate.judge import unmeasurable
    from hostgap.gate.subject import choose_class

    path = settings.baseline
    assert path is not None
    old = read_baseline(path) if path.exists() else None
    if subject.diagnosis is None:
        raise ConfigError(
            f"{subject.name}: no trace to count in", "give a trace or a run directory"
        )
    known = [each.key.step_class for each in old.entries] if old else []
    step = choose_class(subject.diagnosis, settings.step_class, known)
    reason = unmeasurable(subject.diagnosis)
    if reason is None and step is None:
        reason = "the trace has no steps (--step-marker)"
    if reason is not None or step is None:
        click.echo(f"hostgap: error: no baseline from {subject.name}: {reason}", err=True)
        return EXIT_UNMEASURABLE
    entry = entry_of(subject, step)
    write_baseline(path, updated(old, entry))
    before = next((each for each in old.entries if each.key == entry.key), None) if old else None
    click.echo(f"{'Updated' if before else 'New'}: {told(entry.key)}, {entry.steps} steps")
    for name, value in entry.metrics.items():
        was = before.metrics.get(name) if before else None
        change = "" if was is None or was == value else f" (was {was:g})"
        click.echo(f"  {name} {value:g}{change}")
    click.echo(f"Wrote {path}", err=True)
    return 0


def _with_canary(
    result: GateResult,
    subject: Subject,
    settings: Settings,
    entries: list[Entry] | None,
    base: Subject | None,
    baseline: str | None,
) -> GateResult:
    """The result, with what the gate says of the same trace and one `.item()` a step more."""
    import msgspec

    from hostgap.gate.canary import with_item
    from hostgap.gate.judge import gate
    from hostgap.gate.model import Canary

    if result.outcome == "unmeasurable":
        return result
    sung = gate(with_item(subject), settings, entries, base, baseline)
    before = {
        (check.metric, check.against): check.value
        for check in result.checks
        if check.status == "failed"
    }
    by = [
        check.metric
        for check in sung.checks
        if check.status == "failed"
        and (check.value or 0) > (before.get((check.metric, check.against)) or -1)
    ]
    canary = Canary(caught=bool(by), by=list(dict.fromkeys(by)))
    return msgspec.structs.replace(result, canary=canary)


def refuse_what_is_read(outputs: Sequence[Path], read: Sequence[Path], ctx: click.Context) -> None:
    """Refuse outputs that would replace what is read, or the measurement of any run.

    Raises:
        UsageError: one would.
    """
    from hostgap.profiling.rundir import NAME

    real = {os.path.realpath(path) for path in read}  # unlike resolve(), ends with loops
    for path in outputs:
        target = os.path.realpath(path)
        if target in real or Path(target).name == NAME:
            raise click.UsageError(f"-o {path}: that is what is read", ctx)


def format_of(path: Path, extensions: dict[str, str]) -> str:
    """The format that a file's extension asks for.

    Raises:
        UsageError: none does.
    """
    kind = extensions.get(path.suffix.lower())
    if kind is None:
        known = ", ".join(extensions)
        raise click.UsageError(f"-o {path}: the format is told by the extension; known: {known}")
    return kind


def _write(result: GateResult, path: Path, kind: str, *, force: bool) -> None:
    from hostgap.files import atomic_output

    with atomic_output(path, force=force) as out:
        out.write(_rendered(result, kind))
    click.echo(f"Wrote {path}", err=True)


def _print(result: GateResult, kind: str) -> None:
    if kind == "text":
        from hostgap.output.gate_text import render_gate_text

        render_gate_text(result, sys.stdout)
        return
    sys.stdout.buffer.write(_rendered(result, kind))
    sys.stdout.buffer.flush()


def _append_summary(result: GateResult) -> None:
    """Add the report to the page of the job that runs this, if it has one.

    Raises:
        HostgapError: it cannot be written.
    """
    from hostgap.errors import HostgapError

    name = os.environ.get("GITHUB_STEP_SUMMARY")
    if not name:
        return
    path = Path(name)
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise HostgapError(f"GITHUB_STEP_SUMMARY: {name}: not a regular file")
        with path.open("ab") as page:
            page.write(_rendered(result, "markdown") + b"\n")
    except OSError as error:
        reason = error.strerror or error
        raise HostgapError(f"GITHUB_STEP_SUMMARY: {name}: cannot be written: {reason}") from error


def _rendered(result: GateResult, kind: str) -> bytes:
    from hostgap.gate.repository import Repository

    if kind == "json":
        from hostgap.output.gate_json import render_gate_json

        return render_gate_json(result)
    if kind == "markdown":
        from hostgap.output.gate_markdown import render_gate_markdown

        return render_gate_markdown(result).encode("utf-8")
    if kind == "github":
        from hostgap.output.github import render_github

        return render_github(result, Repository.here()).encode("utf-8")
    if kind == "sarif":
        from hostgap.output.sarif import render_sarif

        return render_sarif(result, Repository.here())
    if kind == "junit":
        from hostgap.output.junit import render_junit

        return render_junit(result)
    from hostgap.output.gate_text import render_gate_text

    text = io.StringIO()
    render_gate_text(result, text, color=False)
    return text.getvalue().encode("utf-8")
