"""The gate's report as markdown, for a step summary or a pull request."""

from __future__ import annotations

import re

from hostgap.gate.model import GateResult
from hostgap.output import gate_summary as s
from hostgap.output.printable import printable

PLACES = 10
_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#+!|~$&-])")
_MARKS = {"passed": "✅", "failed": "❌", "unmeasurable": "❌", "warning": "⚠️"}


def render_gate_markdown(result: GateResult) -> str:
    """The report as GitHub-flavoured markdown."""
    lines = [f"### {escaped(s.headline(result))}", "", escaped(s.described(result)), ""]
    if result.checks:
        lines += ["| | check | |", "|---|---|---|"]
    lines += [
        f"| {_MARKS.get(check.status, '')} {s.STATUS[check.status]} | {escaped(s.label(check))} | "
        f"{escaped(check.text)} |"
        for check in result.checks
    ]
    seen: set[str] = set()
    for check in result.checks:
        culprits = [c for c in s.shown_culprits(check) if c.fingerprint not in seen]
        if check.status not in ("failed", "warning") or not culprits:
            continue
        seen |= {culprit.fingerprint for culprit in culprits}
        lines += ["", f"**Behind {escaped(check.metric)}**", ""]
        lines += [
            f"- {'**new** ' if culprit.new else ''}{culprit.code} {escaped(s.where(culprit))}, "
            f"{escaped(s.often(culprit))}: {escaped(culprit.title)}. {escaped(culprit.advice)}"
            for culprit in culprits[:PLACES]
        ]
        if len(culprits) > PLACES:
            lines.append(f"- and {len(culprits) - PLACES} more")
    rest = [f"stale, allowed and no longer there: {s.entry_text(entry)}" for entry in result.stale]
    rest += result.notes
    if canary := s.canary_line(result):
        rest.append(canary)
    if rest:
        lines.append("")
    lines += [f"- {escaped(line)}" for line in rest]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Text in which markdown and HTML find nothing of theirs."""
    return _SPECIAL.sub(r"\\\1", printable(text, 500))
