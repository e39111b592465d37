"""The report of `hostgap fix` as markdown, and as JSON."""

from __future__ import annotations

import re

from hostgap.fixes.report import FixReport
from hostgap.output import fix_summary as s
from hostgap.output.encoded import indented
from hostgap.output.printable import printable

# Everything that markdown or the HTML in it could take for its own.
_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#+!|~$&-])")


def render_fix_json(report: FixReport) -> bytes:
    """The whole report, indented, with a final newline."""
    return indented(report)


def render_fix_markdown(report: FixReport) -> str:
    """The report as GitHub-flavoured markdown."""
    lines = [f"### {_text(s.headline(report))}", "", _text(s.described(report)), ""]
    if report.problem is not None:
        lines += [f"**Ended early: {_text(printable(report.problem))}**", ""]
    lines += [
        f"| fix | {' | '.join(s.COLUMNS)} | |",
        f"|---|{'--:|' * len(s.COLUMNS)}---|",
    ]
    lines += [
        f"| {_text(s.label(rung))} | "
        f"{' | '.join(_text(cell) for cell in s.cells(rung))} | {_text(s.verdict(rung))} |"
        for rung in report.rungs
    ]
    lines.append("")
    for rung in report.rungs:
        told = s.details(rung)
        if " + " in rung.name:
            told = [s.what(rung), *told]
        if told:
            lines.append(f"- **{_text(s.label(rung))}**: {_text('; '.join(told))}")
    if report.skipped:
        lines += ["", "Not tried:", ""]
        lines += [f"- {_text(each.name)}: {_text(each.why)}" for each in report.skipped]
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)
