"""The report as markdown, for a pull request or a step summary."""

from __future__ import annotations

import re

from hostgap.diagnosis.model import Diagnosis
from hostgap.output import summary as s
from hostgap.output.printable import printable
from hostgap.units import duration

SITES = 10
FINDINGS = 10
# Everything that markdown or the HTML in it could take for its own.
_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#+!|~$&-])")


def render_markdown(diagnosis: Diagnosis) -> str:
    """The report as GitHub-flavoured markdown."""
    lines = [f"### {_text(s.headline(diagnosis))}", "", _text(s.described(diagnosis)), ""]
    if measured := s.unprofiled_line(diagnosis):
        lines += [_text(measured), ""]
    if verdict := s.verdict_line(diagnosis):
        lines += [f"**{_text(verdict)}**", ""]
    if cost := s.cost_line(diagnosis):
        lines += [_text(cost), ""]
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
            f"| GPU {_text(str(device.device))} | time{per}{s.trace_part(diagnosis)} | share | |",
            "|---|--:|--:|---|",
        ]
        lines += [
            f"| {_text(row.label)} | {duration(row.ns / n)} | "
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
                f"| {duration(idle.idle_ns / n)} | {_text(s.place(idle.site))} | "
                f"{_text(', '.join(causes))} | {_text(calls)} |"
            )
        if device.idle_sites:
            lines.append("")
        if line := s.collectives_line(device):
            lines += [_text(line), ""]
    lines += [_text(s.count_line(diagnosis)) + ".", ""]
    lines += [f"- {_text(line)}" for line in s.class_lines(diagnosis)]
    if line := s.batch_line(diagnosis):
        lines.append(f"- {_text(line)}")
    lines += _findings(diagnosis)
    lines += ["", s.caveat(diagnosis)]
    return "\n".join(lines) + "\n"


def _findings(diagnosis: Diagnosis) -> list[str]:
    """A table of what costs something, and a line of what does not."""
    found = s.defects(diagnosis)
    lines: list[str] = []
    if found:
        lines += ["", "| | finding | where | saves |", "|---|---|---|--:|"]
    for finding in found[:FINDINGS]:
        low, high = finding.predicted_saving_low_ns, finding.predicted_saving_ns
        lines.append(
            f"| {finding.severity} | {finding.code} {_text(finding.title)}, "
            f"{_text(s.often(diagnosis, finding))}. {_text(finding.advice)} | "
            f"{_text(s.place(finding.site))} | {s.saving(diagnosis, low, high)} |"
        )
    if len(found) > FINDINGS:
        lines += ["", f"and {len(found) - FINDINGS} more"]
    if together := s.together_line(diagnosis):
        lines += ["", _text(together)]
    lines += [f"- {remark.code} {_text(remark.title)}" for remark in s.remarks(diagnosis)]
    if seen := s.harmless_line(diagnosis):
        lines += ["", _text(seen)]
    return lines


def _text(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", printable(text))
