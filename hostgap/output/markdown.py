"""The report as markdown, for a pull request or a step summary."""

from __future__ import annotations

import re

from hostgap.diagnosis.model import Diagnosis
from hostgap.output import summary as s
from hostgap.output.printable import printable

SITES = 10
SYNCS = 5
# Everything that markdown or the HTML in it could take for its own.
_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#+!|~$&-])")


def render_markdown(diagnosis: Diagnosis) -> str:
    """The report as GitHub-flavoured markdown."""
    lines = [f"### {_text(s.headline(diagnosis))}", "", _text(s.described(diagnosis)), ""]
    if mostly := s.mostly(diagnosis):
        lines += [_text(mostly), ""]
    integrity = diagnosis.trace.integrity
    if integrity.reasons:
        lines += [f"Trace: **{integrity.verdict}**", ""]
        lines += [f"- {reason.code} {_text(reason.text)}" for reason in integrity.reasons]
        lines.append("")
    n = s.steps_in(diagnosis)
    per = " a step" if s.per_step(diagnosis) else ""
    for device in diagnosis.devices:
        if device.reason is not None:
            lines += [f"GPU {_text(str(device.device))}: n/a, {_text(device.reason)}", ""]
            continue
        lines += [
            f"| GPU {_text(str(device.device))} | time{per} | share | |",
            "|---|--:|--:|---|",
        ]
        lines += [
            f"| {_text(row.label)} | {s.duration(row.ns / n)} | "
            f"{_text(row.percent)} | {row.meaning} |"
            for row in s.breakdown(device)
        ]
        lines.append("")
        if device.idle_sites:
            lines += [f"| idle{per} | under | causes | calls and ops |", "|--:|---|---|---|"]
        for idle in device.idle_sites[:SITES]:
            causes = sorted(idle.by_cause, key=lambda cause: -idle.by_cause[cause])
            calls = ", ".join(idle.calls)
            lines.append(
                f"| {s.duration(idle.idle_ns / n)} | {_text(s.place(idle.site))} | "
                f"{_text(', '.join(causes))} | {_text(calls)} |"
            )
        if device.idle_sites:
            lines.append("")
        if line := s.collectives_line(device):
            lines += [_text(line), ""]
    lines += [_text(s.count_line(diagnosis)) + ".", ""]
    lines += [f"- {_text(line)}" for line in s.class_lines(diagnosis)]
    waited = [sync for sync in diagnosis.syncs if sync.blocked_ns or sync.shadow_ns][:SYNCS]
    for sync in waited:
        what, took = s.sync_lines(diagnosis, sync)
        lines.append(f"- {_text(what)}: {_text(took)}")
    lines += ["", s.caveat(diagnosis)]
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", printable(text))
