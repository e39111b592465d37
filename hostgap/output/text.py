"""The terminal report: 80 columns, the answer first."""

from __future__ import annotations

import shlex
from typing import IO

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hostgap.diagnosis.model import DeviceMetrics, Diagnosis, Finding
from hostgap.output import summary as s
from hostgap.output.printable import printable
from hostgap.output.terminal import console_on
from hostgap.units import duration, percent

SITES = 5
FINDINGS = 5
BAR = 12


def render_text(diagnosis: Diagnosis, stream: IO[str], *, color: bool | None = None) -> None:
    """Write the report for people.

    Args:
        diagnosis: what to report.
        stream: where to; on a terminal its width is used, elsewhere 80 columns. What its encoding
            lacks is replaced.
        color: force colour on or off; None decides by the terminal, NO_COLOR and FORCE_COLOR.
    """
    with console_on(stream, color=color) as console:
        _report(diagnosis, console)


def _report(diagnosis: Diagnosis, console: Console) -> None:
    measurable = s.main_device(diagnosis) is not None
    bad = not measurable or diagnosis.trace.integrity.verdict == "unmeasurable"
    console.print(Text(s.headline(diagnosis), style="bold red" if bad else "bold"))
    console.print(Text(s.described(diagnosis), style="dim"))
    _integrity(console, diagnosis)
    if bad:
        console.print(Text(s.count_line(diagnosis)))
        return
    for line in (s.unprofiled_line(diagnosis), s.verdict_line(diagnosis), s.cost_line(diagnosis)):
        if line:
            console.print(Text(line))
    for device in diagnosis.devices:
        _device(console, diagnosis, device)
    console.print()
    console.print(Text(s.count_line(diagnosis)))
    for line in s.class_lines(diagnosis):
        console.print(Padding(Text(line), (0, 0, 0, 2)))
    if line := s.batch_line(diagnosis):
        console.print(Text(line))
    _findings(console, diagnosis)
    console.print()
    console.print(Text(s.caveat(diagnosis), style="dim"))
    if hint := _hint(diagnosis):
        console.print(Text(hint, style="dim"), soft_wrap=True)


def _integrity(console: Console, diagnosis: Diagnosis) -> None:
    integrity = diagnosis.trace.integrity
    style = "dim" if integrity.verdict == "ok" else "yellow"
    for reason in integrity.reasons:
        table = Table.grid(padding=(0, 1))
        table.add_row(Text(reason.code, style=style), Text(printable(reason.text), style=style))
        console.print(table)


def _device(console: Console, diagnosis: Diagnosis, device: DeviceMetrics) -> None:
    console.print()
    n = s.steps_in(diagnosis)
    per = " a step" if s.per_step(diagnosis) else ""
    gpu = f"GPU {printable(str(device.device))}"
    time = duration(device.window_ns / n)
    title = f"Where the time of {gpu} went{s.trace_part(diagnosis)} ({time}{per})"
    console.print(Text(title, style="bold"))
    if device.reason is not None:
        console.print(Text(f"  n/a: {printable(device.reason)}"))
        return
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True, width=BAR)
    table.add_column(overflow="fold", style="dim")
    for row in s.breakdown(device):
        style = "green" if row.busy else "yellow"
        table.add_row(
            Text(row.label, style=style),
            duration(row.ns / n),
            row.percent,
            Text(_bar(row.ns / device.window_ns), style=style),
            row.meaning,
        )
    console.print(Padding(table, (0, 0, 0, 2)))
    if line := s.collectives_line(device):
        console.print(Text(f"  {line}"))
    _sites(console, diagnosis, device)


def _bar(share: float) -> str:
    """A bar of eighths of a cell."""
    eighths = round(share * BAR * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[rest]


def _sites(console: Console, diagnosis: Diagnosis, device: DeviceMetrics) -> None:
    """The places with the most idle time, and how much lies elsewhere."""
    shown = device.idle_sites[:SITES]
    if not shown:
        return
    framed = any(idle.site.file is not None for idle in shown)
    console.print()
    title = "Under which code (function)" if framed else "Under which framework op"
    console.print(Text(f"{title} the GPU was idle", style="bold"))
    n = s.steps_in(diagnosis)
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    table.add_column(overflow="fold", style="dim", max_width=26)
    for idle in shown:
        cause, ns = max(idle.by_cause.items(), key=lambda item: item[1])
        table.add_row(
            duration(idle.idle_ns / n),
            percent(idle.idle_ns, device.window_ns),
            Text(s.place(idle.site)),
            f"{percent(ns, idle.idle_ns)} {cause}",
        )
    rest = device.idle_ns - sum(idle.idle_ns for idle in shown)
    if rest:
        table.add_row(
            duration(rest / n), percent(rest, device.window_ns), Text("elsewhere", "dim"), ""
        )
    console.print(Padding(table, (0, 0, 0, 2)))


def _findings(console: Console, diagnosis: Diagnosis) -> None:
    """What costs most, a rule each, then what was seen and costs nothing."""
    by_code: dict[str, list[Finding]] = {}
    for finding in s.defects(diagnosis):
        by_code.setdefault(finding.code, []).append(finding)
    if by_code:
        console.print()
        console.print(Text("What to change, and what it would save", style="bold"))
    for finding, *others in list(by_code.values())[:FINDINGS]:
        _finding(console, diagnosis, finding, others)
    if len(by_code) > FINDINGS:
        rest = ", ".join(list(by_code)[FINDINGS:])
        console.print(Text(f"  and {rest}", style="dim"))
    if line := s.together_line(diagnosis):
        console.print(Text(f"  {line}"))
    if seen := s.harmless_line(diagnosis):
        console.print()
        console.print(Text(seen, style="dim"))
    for remark in s.remarks(diagnosis):
        console.print(Text(f"{remark.code} {printable(remark.title)}", style="dim"))
    if diagnosis.problems:
        rules = f"{len(diagnosis.problems)} rule{'s' if len(diagnosis.problems) > 1 else ''}"
        console.print(Text(f"{rules} did not run: see the warnings", style="yellow"))


def _finding(
    console: Console, diagnosis: Diagnosis, finding: Finding, others: list[Finding]
) -> None:
    style = "red" if finding.severity == "error" else "yellow"
    low, high = finding.predicted_saving_low_ns, finding.predicted_saving_ns
    head = Text(f"{finding.code} ", style=f"bold {style}")
    head.append(f"{finding.severity} ", style=style)
    head.append(f"{finding.name}: saves {s.saving(diagnosis, low, high)}", style="bold")
    console.print(Padding(head, (0, 0, 0, 2)))
    where = s.place(finding.site)
    at = f", at {where}" if where else ""
    also = ""
    if others:
        most = max(other.predicted_saving_ns or 0 for other in others) / s.steps_in(diagnosis)
        also = f" (and at another place, {duration(most)})"
        if len(others) > 1:
            also = f" (and at {len(others)} more places, up to {duration(most)} each)"
    lines = (
        (printable(finding.title) + s.shadow(diagnosis, finding), ""),
        (f"{s.often(diagnosis, finding)}{at}{also}", "dim"),
        (printable(finding.advice), "dim"),
    )
    for text, line_style in lines:
        console.print(Padding(Text(text, style=line_style), (0, 0, 0, 4)))


def _hint(diagnosis: Diagnosis) -> str:
    """What would show more."""
    found = s.defects(diagnosis)
    sites = [finding.site for finding in found]
    sites += [idle.site for device in diagnosis.devices for idle in device.idle_sites]
    lines = []
    if (found or sites) and not any(site is not None and site.file for site in sites):
        if diagnosis.trace.source == "nsys":
            lines.append(
                "Lines of your own code: nsys profile --cudabacktrace=all "
                "--python-backtrace=cuda\nand nsys export --include-json=true."
            )
        else:
            lines.append("Record with profile(..., with_stack=True) to see lines of your own code.")
    if found:
        lines.append(f"What to do about it: hostgap explain {found[0].code}")
    elif not lines and diagnosis.unprofiled is None and diagnosis.trace.file != "stdin":
        name = printable(shlex.quote(diagnosis.trace.file), 4096)
        what, option = "Every figure", "--format json"
        if diagnosis.verdict == "gpu-bound":
            what, option = "Every kernel and its time", "-o report.html"
        lines.append(f"{what}: hostgap analyze {name} {option}")
    return "\n".join(lines)
