"""A comparison as markdown, for a pull request."""

from __future__ import annotations

from hostgap.compare.sides import Comparison
from hostgap.output import compare_summary as s
from hostgap.output.gate_markdown import escaped
from hostgap.output.summary import place

PLACES = 10


def render_compare_markdown(comparison: Comparison) -> str:
    """The comparison as GitHub-flavoured markdown."""
    lines = [f"### {escaped(s.headline(comparison))}", ""]
    lines += [f"- {name}: {escaped(line)}" for name, line in s.sides(comparison)]
    lines += [f"- {escaped(line)}" for line in s.step_time(comparison)]
    if comparison.rows:
        lines += ["", "| | base | new | |", "|---|--:|--:|---|"]
    for row in comparison.rows:
        base, new, change = (escaped(cell) for cell in s.cells(row))
        note = s.unjudged(row) or f" {row.change}"
        said = f"{change}{note}" if row.change != "same" else ""
        lines.append(f"| {escaped(row.metric)} | {base} | {new} | {said} |")
    if idle := s.idle_rows(comparison):
        lines += ["", "| idle a step, as recorded | base | new | |", "|---|--:|--:|--:|"]
        lines += ["| " + " | ".join(escaped(cell) for cell in cells) + " |" for cells in idle]
    if comparison.waits:
        lines += ["", "| waits a step: base | new | |", "|--:|--:|---|"]
    for wait in comparison.waits[:PLACES]:
        where = place(wait.site) or "a place that the trace does not name"
        lines.append(f"| {wait.base:.3g} | {wait.new:.3g} | {escaped(where)} ({wait.call}) |")
    if comparison.notes:
        lines.append("")
    lines += [f"- {escaped(note)}" for note in comparison.notes]
    return "\n".join(lines) + "\n"
