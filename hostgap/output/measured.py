"""What `hostgap profile` measured, as text: the step unprofiled, and what profiling adds to it."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hostgap.output.printable import printable
from hostgap.profiling.measurement import BatchTiming, Estimate, Inflation, Measurement

HOST_BOUND = 1.05  # a step longer than its GPU span by more than this waits for its host
MOST_SITES = 8


def render_measurement(measurement: Measurement, out: TextIO) -> None:
    """Write the unprofiled figures of a run, the profiler's inflation, and where the step waits."""
    console = Console(file=out, highlight=False, soft_wrap=False)
    console.print(Text(_headline(measurement), "bold"))
    for line in _traced(measurement):
        console.print(Text(line))
    if measurement.sites:
        console.print()
        console.print(_sites(measurement))
    if measurement.inflation:
        console.print()
        console.print(_inflation(measurement.inflation))
    if measurement.batches:
        console.print()
        console.print(_sweep(measurement.batches))
        console.print(Text(host_bound_below(measurement.batches)))
    here = measurement.environment
    clocks = f", {here.sm_mhz} MHz" if here.sm_mhz is not None else ""
    driver = f", driver {here.driver}" if here.driver is not None else ""
    console.print(
        Text(printable(f"Measured on {here.gpu}{clocks}, torch {here.torch}{driver}.", 200))
    )


def host_bound_below(batches: list[BatchTiming]) -> str:
    """From which batch on the GPU, and not its host, sets the pace."""
    known = [one for one in batches if one.span_ns]
    if len(known) < len(batches):
        return "At some batches the step waits for the GPU, so it cannot be said who sets the pace."
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


def _sites(measurement: Measurement) -> Table:
    table = Table("waits a step", "for", "at", title="Lines that wait for the GPU", box=None)
    table.columns[0].justify = "right"
    for site in measurement.sites[:MOST_SITES]:
        place = f"{site.function}, {site.file}:{site.line}"
        table.add_row(f"{site.per_step:g}", site.what, Text(printable(place, 200)))
    if len(measurement.sites) > MOST_SITES:
        table.add_row("", "", f"and {len(measurement.sites) - MOST_SITES} more lines")
    return table


def _inflation(rows: list[Inflation]) -> Table:
    table = Table(box=None, title="What the profiler makes of calls on this machine, us")
    for head in ("call", "without", "CUDA", "CPU+CUDA"):
        table.add_column(head, justify="left" if head == "call" else "right")
    for row in rows:
        what = row.what if row.nodes is None else f"{row.what}, {row.nodes:,} nodes"
        values = (row.unprofiled_ns, row.cuda_ns, row.cpu_cuda_ns)
        table.add_row(what, *("-" if v is None else f"{v / 1e3:,.1f}" for v in values))
    return table


def _sweep(batches: list[BatchTiming]) -> Table:
    table = Table(box=None, title="By batch, ms a step without a profiler")
    for head in ("batch", "step", "GPU work", "us a request"):
        table.add_column(head, justify="right")
    for one in batches:
        span = "-" if one.span_ns is None else f"{one.span_ns / 1e6:,.3f}"
        request = one.step.median_ns / 1e3 / one.batch
        table.add_row(str(one.batch), f"{one.step.median_ns / 1e6:,.3f}", span, f"{request:,.1f}")
    return table


def _ms(step: Estimate) -> str:
    return f"{step.median_ns / 1e6:,.3f} ms ({step.low_ns / 1e6:,.3f} to {step.high_ns / 1e6:,.3f})"
