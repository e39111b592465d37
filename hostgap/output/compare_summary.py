"""What the formats say of a comparison, before it is laid out: a view of a `Comparison`."""

from __future__ import annotations

import statistics

from hostgap.compare.sides import Comparison, Row
from hostgap.gate.baseline import told
from hostgap.gate.metrics import METRICS, shown
from hostgap.gate.step_time import change_of
from hostgap.output.printable import printable
from hostgap.units import duration

CAUSES = 6
LEAST_CHANGE = 0.01  # of the idle time, that is worth a word
LEAST_NS = 100  # of a cause's change that is worth a line


def headline(comparison: Comparison) -> str:
    """What matters most, in one line."""
    counts = [row for row in comparison.rows if METRICS[row.metric].kind == "count"]
    worse = [row.metric for row in counts if row.change == "worse"]
    better = [row.metric for row in counts if row.change == "better"]
    parts = []
    timed = comparison.step_time
    if timed is not None:
        ratio = change_of(timed.times.ratio) if timed.times.ratio is not None else ""
        parts.append(
            {
                "slower": f"Slower: step {ratio}",
                "faster": f"Faster: step {ratio}",
                "alike": f"No change of 5 % in the step ({ratio})",
                "inconclusive": f"Undecided: step {ratio or 'n/a'}",
            }[timed.verdict]
        )
    if worse:
        parts.append(f"worse: {', '.join(worse)}")
    if better:
        parts.append(f"better: {', '.join(better)}")
    if counts and not (worse or better):
        parts.append("the same counts")
    base = sum(row.base_ns for row in comparison.idle)
    new = sum(row.new_ns for row in comparison.idle)
    if abs(new - base) > LEAST_CHANGE * max(base, new):
        parts.append(f"idle as recorded {duration(base)} -> {duration(new)}")
    line = "; ".join(parts)
    return line[:1].upper() + line[1:]


def sides(comparison: Comparison) -> list[tuple[str, str]]:
    """`base` and `new` with what they are."""
    lines = []
    for name, side in (("base", comparison.base), ("new", comparison.new)):
        parts = [printable(side.name, 60), printable(told(side.key))]
        if side.steps:
            parts.append(f"{side.steps} steps")
        if side.runs:
            parts.append(f"{side.runs} runs")
        lines.append((name, " · ".join(parts)))
    return lines


def unjudged(row: Row) -> str:
    """Why a change is neither better nor worse, "" where it is."""
    if row.change != "varies":
        return ""
    return " (in place of launches)" if METRICS[row.metric].kind == "count" else " (profiled)"


def cells(row: Row) -> tuple[str, str, str]:
    """Base, new, and what changed."""
    metric = METRICS[row.metric]
    base, new = shown(metric, row.base), shown(metric, row.new)
    if row.base is None or row.new is None or row.change == "same":
        return base, new, ""
    if metric.kind == "share":
        change = f"{(row.new - row.base) * 100:+.1f} points"
    elif row.base:
        change = change_of(row.new / row.base)
    else:
        change = "new"
    return base, new, change


def step_time(comparison: Comparison) -> list[str]:
    """The unprofiled step of both sides, with its interval; nothing without runs."""
    if comparison.step_time is None:
        return []
    times = comparison.step_time.times
    middle = [duration(statistics.median(side)) for side in (times.base_ns, times.new_ns)]
    line = f"step without a profiler: {middle[0]} -> {middle[1]}"
    if times.ratio is None:
        return [line]
    line += f", {change_of(times.ratio)}"
    if times.low is not None and times.high is not None:
        line += f" ({change_of(times.low)} to {change_of(times.high)})"
    runs = f"{len(times.base_ns)} and {len(times.new_ns)} processes"
    lines = [line, f"{runs}, spread {times.spread:.1%}"]
    if comparison.step_time.verdict == "inconclusive":
        needed = times.runs_needed
        lines[1] += f"; {needed if needed else 'more than 50'} a side would decide"
    return [each.replace("%", " %") for each in lines]


def idle_rows(comparison: Comparison) -> list[tuple[str, str, str, str]]:
    """Cause, base, new and difference, the largest differences first."""
    rows = [row for row in comparison.idle if abs(row.new_ns - row.base_ns) >= LEAST_NS]
    result = []
    for row in rows[:CAUSES]:
        difference = row.new_ns - row.base_ns
        sign = "+" if difference > 0 else "-"
        result.append(
            (
                row.cause,
                duration(row.base_ns),
                duration(row.new_ns),
                f"{sign}{duration(abs(difference))}",
            )
        )
    return result
