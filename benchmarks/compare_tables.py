"""The results of compare_tools.py as Markdown tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from peer_tools import Tool

BASE = "hostgap"
Trace = dict[str, Any]


def tables(report: dict[str, Any], kineto: Sequence[Tool], nsys: Sequence[Tool]) -> str:
    """Everything: the machine, cost by size, answers by trace."""
    traces = report["traces"]
    made = [trace for trace in traces if trace["kind"] == "trace"]
    exports = [trace for trace in traces if trace["kind"] == "export"]
    read = [trace for trace in traces if trace["kind"] != "export"]
    parts = ["\n".join(f"- {key}: {value}" for key, value in report["machine"].items())]
    parts += [f"{name}: {why}." for name, why in report["missing"].items()]
    for heading, some, tools in (
        ("torch.profiler traces", made, kineto),
        ("Nsight Systems exports", exports, nsys),
    ):
        if some:
            parts += [f"## Cost: {heading}", cost(some, tools)]
    parts += ["## Answers: torch.profiler traces", answers(read, kineto)]
    parts += ["## Answers: Nsight Systems exports", answers(exports, nsys)]
    parts += notes(traces)
    return "\n\n".join(parts) + "\n"


def cost(traces: Sequence[Trace], tools: Sequence[Tool]) -> str:
    """CPU seconds and peak memory, a column per trace."""
    head = [f"{trace['mb']:,.1f} MB" for trace in traces]
    lines = [
        row("", head),
        row("---", ["---:"] * len(traces)),
        row("events", ["-" if t["events"] is None else f"{t['events']:,}" for t in traces]),
    ]
    for tool in tools:
        cells = (figure(trace, tool, "cpu_s", "{:,.2f}") for trace in traces)
        lines.append(row(f"{tool.name}, CPU s", cells))
    for tool in tools:
        cells = (figure(trace, tool, "peak_mb", "{:,.0f}") for trace in traces)
        lines.append(row(f"{tool.name}, peak MB", cells))
    for tool in tools[1:]:
        name = f"{tool.name}, CPU / {BASE}'s"
        lines.append(row(name, (ratio(trace, tool) for trace in traces)))
    apart = [
        (max(times) / min(times) - 1, f"{tool.name}, {trace['name']}")
        for trace in traces
        for tool in tools
        if len(times := runs(trace, tool, "cpu_s")) > 1
    ]
    if apart:
        most, where = max(apart)
        lines.append(f"\nMedians. Furthest apart are the runs of {where}: {most:.0%} in CPU time.")
    return "\n".join(lines)


def row(name: str, cells: Iterable[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join([name, *cells])} |"


def runs(trace: Trace, tool: Tool, name: str) -> list[float]:
    """One figure of all runs of a tool."""
    return [run[name] for run in trace["tools"][tool.name]["runs"]]


def figure(trace: Trace, tool: Tool, name: str, layout: str) -> str:
    """The median of one figure, or in a word why there is none."""
    found = runs(trace, tool, name)
    if found:
        return layout.format(statistics.median(found))
    return str(trace["tools"][tool.name]["error"]).partition(":")[0].partition(",")[0]


def ratio(trace: Trace, tool: Tool) -> str:
    """The median of a tool's CPU times over that of hostgap's."""
    mine, base = (
        [run["cpu_s"] for run in trace["tools"][name]["runs"]] for name in (tool.name, BASE)
    )
    return f"{statistics.median(mine) / statistics.median(base):.1f}" if mine and base else "-"


def answers(traces: Sequence[Trace], tools: Sequence[Tool]) -> str:
    """Each tool's figures against the oracle's, a row per trace.

    Where a tool is run in several ways, the answers are those of the first that came to its end.
    """
    shown: dict[str, list[Tool]] = {}
    for tool in tools:
        if any(has_answer(trace, tool) for trace in traces):
            shown.setdefault(tool.kin, []).append(tool)
    lines = [
        row("trace", ["exact: utilization, idle, kernels, launches", *shown]),
        row("---", ["---"] * (1 + len(shown))),
    ]
    for trace in traces:
        exact = trace["oracle"]
        busy = exact["busy_ns"] / exact["window_ns"]
        cells = [
            f"{busy:.4%}, {exact['idle_ns']:,} ns, {exact['kernels']:,}, {exact['launches']:,}"
        ]
        for kin in shown.values():
            ended = [tool for tool in kin if trace["tools"][tool.name]["said"] is not None]
            cells.append(verdict(trace, (ended or kin)[0]))
        lines.append(row(trace["name"], cells))
    return "\n".join(lines)


def has_answer(trace: Trace, tool: Tool) -> bool:
    """Whether it gives any figure."""
    said = trace["tools"][tool.name]["said"] or {}
    return any(value is not None for key, value in said.items() if key != "note")


def verdict(trace: Trace, tool: Tool) -> str:
    """How a tool's figures differ from the exact ones: "exact", or what is off by how much."""
    one, exact = trace["tools"][tool.name], trace["oracle"]
    said = one["said"]
    if said is None:
        return str(one["error"]).partition(":")[0].partition(",")[0] or "-"
    window = exact["kernel_window_ns"] if tool.only_kernels else exact["window_ns"]
    busy = exact["kernel_busy_ns"] if tool.only_kernels else exact["busy_ns"]
    off, given = [], []
    if said["idle_ns"] is not None and said["window_ns"]:
        given.append("idle")
        idle = said["idle_ns"] - (window - busy)
        points = 100 * ((1 - said["idle_ns"] / said["window_ns"]) - busy / window)
        least = 0.51 * tool.step_ns
        if abs(idle) > least or abs(said["window_ns"] - window) > least:
            off.append(f"idle {idle:+,.0f} ns")
            if abs(points) >= 0.0001:
                off.append(f"utilization {points:+.4f} points")
    for name in ("kernels", "launches"):
        if said[name] is not None:
            given.append(name)
            if said[name] != exact[name]:
                off.append(f"{name} {said[name] - exact[name]:+,}")
    if not given:
        return said["note"] or "-"
    left = [name for name in ("idle", "kernels", "launches") if name not in given]
    text = "; ".join(off) or "exact"
    if not off and tool.step_ns > 1:
        text = f"right to {tool.step_ns / 1e6:g} ms"
    return text + (f" (no {', '.join(left)})" if left else "")


def notes(traces: Sequence[Trace]) -> list[str]:
    """What failed or was stopped, each once."""
    lines = [
        f"- {name}, {trace['name']}: {short(one['error'])}"
        for trace in traces
        for name, one in trace["tools"].items()
        if one["error"]
    ]
    return ["\n".join(lines)] if lines else []


def short(error: str) -> str:
    """How it ended, and the last line of what it said."""
    first, *more = error.strip().splitlines()
    return f"{first.partition(':')[0]}: {more[-1][:300]}" if more else first[:300]
