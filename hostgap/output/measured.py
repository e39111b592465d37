"""What `hostgap profile` measured, as text: the step unprofiled, and what profiling adds to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hostgap.output.printable import printable
from hostgap.output.terminal import console_on
from hostgap.profiling.measurement import BatchTiming, Estimate, Inflation, Measurement, Region

HOST_BOUND = 1.05  # a step longer than its GPU span by more than this waits for its host
MOST_SITES = 8


def render_measurement(measurement: Measurement, out: TextIO) -> None:
    """Write the unprofiled figures of a run, where the step waits, and what the profiler adds."""
    with console_on(out) as console:
        console.print(Text(_headline(measurement), "bold"))
        for line in _traced(measurement):
            console.print(Text(line))
        for region in measurement.regions:
            console.print(Text(_as_graph(region)))
        _sites(measurement, console)
        if measurement.inflation:
            console.print(Text("\nWhat the profiler makes of calls on this machine, us"))
            console.print(_inflation(measurement.inflation))
        if measurement.batches:
            console.print(Text("\nBy batch, without a profiler"))
            console.print(_sweep(measurement.batches))
            if any(one.recorded for one in measurement.batches):
                console.print(Text("~ of a recording: the step itself waits for the GPU"))
            console.print(Text(host_bound_below(measurement.batches)))
        here = measurement.environment
        clocks = f", {here.sm_mhz} MHz" if here.sm_mhz is not None else ""
        driver = f", driver {here.driver}" if here.driver is not None else ""
        said = f"Measured on {here.gpu}{clocks}, torch {here.torch}{driver}."
        console.print(Text("\n" + printable(said, 200), "dim"))


def ranks_lines(measured: Sequence[Measurement]) -> list[str]:
    """A line per rank: its step without and with the profiler, ranks from 0."""
    lines = []
    for rank, one in enumerate(measured):
        text = f"rank {rank}: without a profiler a step takes {_ms(one.timing.step)}"
        traced = [each.step.median_ns for each in one.passes if each.mode == "cpu+cuda"]
        lines.append(text + "".join(f"; traced, {ns / 1e6:,.3f}" for ns in traced))
    return lines


def host_bound_below(batches: list[BatchTiming]) -> str:
    """From which batch on the GPU, and not its host, sets the pace."""
    known = [one for one in batches if one.span_ns]
    if len(known) < len(batches):
        return (
            "At some batches the GPU's work is not known, so it cannot be said who sets the pace."
        )
    bound = [one.batch for one in known if one.step.median_ns > HOST_BOUND * (one.span_ns or 0)]
    free = [one.batch for one in known if one.batch not in bound]
    if not bound:
        return "The GPU sets the pace at every batch."
    above = [batch for batch in free if batch > max(bound)]
    if not above:
        return f"The host sets the pace up to batch {max(bound)}, the largest tried."
    return f"Host-bound below batch {min(above)}."


def _headline(measurement: Measurement) -> str:
    step = measurement.timing.step
    text = f"Without a profiler a step takes {_ms(step)}"
    if measurement.span_ns is None:
        return text + "; it waits for the GPU in between."
    idle = max(0.0, step.median_ns - measurement.span_ns)
    return (
        f"{text}, its GPU work {measurement.span_ns / 1e6:,.3f}: "
        f"{idle / step.median_ns:.1%} of it the GPU waits for its host."
    )


def _traced(measurement: Measurement) -> list[str]:
    unprofiled = measurement.timing.step.median_ns
    names = {"cuda": "CUDA alone", "cpu+cuda": "CPU and CUDA", "stacks": "with Python stacks"}
    return [
        f"Traced, {names[one.mode]}: {one.step.median_ns / 1e6:,.3f} ms, "
        f"{one.step.median_ns / unprofiled:.2f} times as long."
        for one in measurement.passes
    ]


def _as_graph(region: Region) -> str:
    """What the same takes as one CUDA graph, which was timed beside it."""
    faster = region.eager_ns / region.graph_ns
    text = f"As one CUDA graph it takes {region.graph_ns / 1e6:,.3f} ms"
    if faster < 1:
        return f"{text}, {1 / faster:.2f} times as long: leave it as it is."
    return f"{text}, {faster:.2f} times as fast; `hostgap fix` proves that the output is the same."


def _sites(measurement: Measurement, console: Console) -> None:
    if not measurement.sites:
        return
    console.print(Text("\nLines that wait for the GPU, by waits a step"))
    for site in measurement.sites[:MOST_SITES]:
        place = printable(f"{_near(site.file)}:{site.line} {site.function}", 200)
        console.print(Text(f"  {site.per_step:>5g}  {place} ({site.what})"))
    left = len(measurement.sites) - MOST_SITES
    if left > 0:
        console.print(Text(f"         and {left} more"))


def _near(file: str) -> str:
    """A path as seen from here, where that is shorter."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


def _columns(*heads: str) -> Table:
    """A plain table, its first column to the left and the others to the right."""
    table = Table(box=None, padding=(0, 0, 0, 2))
    for index, head in enumerate(heads):
        table.add_column(head, justify="right" if index else "left", header_style="dim")
    return table


def _inflation(rows: list[Inflation]) -> Table:
    table = _columns("", "without", "CUDA", "CPU+CUDA")
    for row in rows:
        what = row.what if row.nodes is None else f"{row.what} of {row.nodes:,}"
        values = (row.unprofiled_ns, row.cuda_ns, row.cpu_cuda_ns)
        table.add_row(what, *("-" if v is None else f"{v / 1e3:,.1f}" for v in values))
    return table


def _sweep(batches: list[BatchTiming]) -> Table:
    table = _columns("batch", "step ms", "GPU work ms", "us a request")
    for one in batches:
        span = "-" if one.span_ns is None else f"{'~' * one.recorded}{one.span_ns / 1e6:,.3f}"
        request = one.step.median_ns / 1e3 / one.batch
        table.add_row(str(one.batch), f"{one.step.median_ns / 1e6:,.3f}", span, f"{request:,.1f}")
    return table


def _ms(step: Estimate) -> str:
    return f"{step.median_ns / 1e6:,.3f} ms ({step.low_ns / 1e6:,.3f} to {step.high_ns / 1e6:,.3f})"
