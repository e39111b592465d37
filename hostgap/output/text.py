"""The terminal report: 80 columns, the answer first."""

from __future__ import annotations

import io
import os
from typing import IO, Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hostgap.diagnosis.model import DeviceMetrics, Diagnosis
from hostgap.output import summary as s

SITES = 8
SYNCS = 3
BAR = 12
WIDTH = 80


def render_text(diagnosis: Diagnosis, stream: IO[str], *, color: bool | None = None) -> None:
    """Write the report for people.

    Args:
        diagnosis: what to report.
        stream: where to; on a terminal its width is used, elsewhere 80 columns.
        color: force colour on or off; None decides by the terminal, NO_COLOR and FORCE_COLOR.
    """
    if color is None and not stream.isatty():
        color = None if os.environ.get("FORCE_COLOR") else False
    if color is False:
        plain = io.StringIO()
        _report(diagnosis, Console(file=plain, width=WIDTH, no_color=True, **_PLAIN))
        stream.writelines(line.rstrip() + "\n" for line in plain.getvalue().splitlines())
    else:
        width = None if stream.isatty() else WIDTH
        _report(diagnosis, Console(file=stream, width=width, force_terminal=color, **_PLAIN))


_PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}


def _report(diagnosis: Diagnosis, console: Console) -> None:
    measurable = s.main_device(diagnosis) is not None
    bad = not measurable or diagnosis.trace.integrity.verdict == "unmeasurable"
    console.print(Text(s.headline(diagnosis), style="bold red" if bad else "bold"))
    console.print(Text(s.described(diagnosis), style="dim"))
    _integrity(console, diagnosis)
    if bad:
        console.print(Text(s.count_line(diagnosis)))
        return
    for device in diagnosis.devices:
        _device(console, diagnosis, device)
    console.print()
    console.print(Text(s.count_line(diagnosis)))
    _classes(console, diagnosis)
    _syncs(console, diagnosis)
    console.print()
    console.print(Text(s.UPPER_BOUND, style="dim"))
    console.print(Text(f"Next: {_next(diagnosis)}", style="dim"), soft_wrap=True)


def _integrity(console: Console, diagnosis: Diagnosis) -> None:
    integrity = diagnosis.trace.integrity
    for reason in integrity.reasons:
        style = "dim" if integrity.verdict == "ok" else "yellow"
        head = Text(f"{reason.code} ", style=style)
        console.print(head + Text(s.printable(reason.text), style=style))


def _device(console: Console, diagnosis: Diagnosis, device: DeviceMetrics) -> None:
    console.print()
    n = s.steps_in(diagnosis)
    per = f"{s.duration(device.window_ns / n)} a step" if n > 1 else s.duration(device.window_ns)
    title = f"Where the time of GPU {s.printable(str(device.device))} went ({per})"
    console.print(Text(title, style="bold"))
    if device.reason is not None:
        console.print(Text(f"  n/a: {s.printable(device.reason)}"))
        return
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True, width=BAR)
    table.add_column(overflow="fold", style="dim")
    for row in s.breakdown(device):
        style = "green" if row.busy else "yellow"
        percent = f"{row.percent} %" if row.percent or not row.ns else "<1 %"
        table.add_row(
            Text(row.label, style=style),
            s.duration(row.ns / n),
            percent,
            Text(_bar(row.ns / device.window_ns), style=style),
            row.meaning,
        )
    console.print(Padding(table, (0, 0, 0, 2)))
    _sites(console, diagnosis, device)


def _bar(share: float) -> str:
    """A bar of eighths of a cell."""
    eighths = round(share * BAR * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[rest]


def _sites(console: Console, diagnosis: Diagnosis, device: DeviceMetrics) -> None:
    """The places with the most idle time."""
    if not device.idle_sites:
        return
    console.print()
    console.print(Text("Under which code the GPU was idle", style="bold"))
    n = s.steps_in(diagnosis)
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    table.add_column(overflow="fold", style="dim", max_width=26)
    for idle in device.idle_sites[:SITES]:
        percent = f"{idle.idle_ns / device.window_ns:.0%}".replace("%", " %")
        cause, ns = max(idle.by_cause.items(), key=lambda item: item[1])
        mostly = f"{cause} {ns / idle.idle_ns:.0%}".replace("%", " %")
        table.add_row(s.duration(idle.idle_ns / n), percent, Text(s.place(idle.site)), mostly)
    console.print(Padding(table, (0, 0, 0, 2)))


def _classes(console: Console, diagnosis: Diagnosis) -> None:
    classes = diagnosis.steps.classes
    if len(classes) < 2 or diagnosis.trace.window == "trace":
        return
    for step_class in sorted(classes, key=lambda c: -len(c.steps)):
        console.print(
            Text(
                f"  {len(step_class.steps)} x {s.printable(step_class.label)}: "
                f"{s.duration(step_class.duration_median_ns)} a step (median), "
                f"{s.duration(step_class.per_step.idle_ns)} idle"
            )
        )


def _syncs(console: Console, diagnosis: Diagnosis) -> None:
    """Calls on which the host waited."""
    shown = [sync for sync in diagnosis.syncs if sync.blocked_ns or sync.shadow_ns][:SYNCS]
    if not shown:
        return
    n = s.steps_in(diagnosis)
    each = " a step" if n > 1 else ""
    console.print()
    console.print(Text("Where the host waited for the GPU", style="bold"))
    for sync in shown:
        what = s.printable(sync.call) + (f" ({sync.copy} copy)" if sync.copy else "")
        where = s.place(sync.site)
        console.print(
            Text(f"  {sync.count / n:.3g}x{each} {what}" + (f" at {where}" if where else ""))
        )
        line = f"    {s.duration(sync.blocked_ns / n)} inside"
        if sync.shadow_ns:
            line += f", then {s.duration(sync.shadow_ns / n)} of idle GPU in its shadow"
        console.print(Text(line))


def _next(diagnosis: Diagnosis) -> str:
    name = s.printable(diagnosis.trace.file)
    if diagnosis.trace.window == "trace":
        return f"hostgap analyze {name}"
    return f"hostgap analyze {name} --format json"
