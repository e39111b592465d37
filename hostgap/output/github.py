"""The gate as GitHub annotations: commands that the runner reads off stdout, a line each."""

from __future__ import annotations

from hostgap.gate.model import GateResult
from hostgap.gate.repository import Repository
from hostgap.output import gate_summary as s
from hostgap.output.printable import printable

MOST = 10  # GitHub shows ten of a kind a step, and drops the rest without a word
LONGEST = 1_000  # characters of a message


def render_github(result: GateResult, repository: Repository) -> str:
    """Annotations: the ten worst problems, how many more there are, and the outcome."""
    found = s.problems(result, repository)
    lines = []
    for problem in found[:MOST]:
        properties = {"title": f"hostgap gate: {problem.check.metric}"}
        if problem.path is not None:
            properties = {"file": problem.path, **properties}
            if problem.line is not None:
                properties["line"] = str(problem.line)
        lines.append(_command(problem.level, properties, problem.text))
    if len(found) > MOST:
        more = f"and {len(found) - MOST} more: see the step summary"
        lines.append(_command("notice", {"title": "hostgap gate"}, more))
    lines += [
        _command(
            "warning",
            {"title": "hostgap gate: allow list"},
            f"no longer there, so remove it: {s.entry_text(entry)}",
        )
        for entry in result.stale[: MOST // 2]
    ]
    if result.canary is not None and not result.canary.caught:
        lines.append(_command("error", {"title": "hostgap gate: canary"}, s.canary_line(result)))
    lines.append(_command("notice", {"title": "hostgap gate"}, s.headline(result)))
    return "".join(line + "\n" for line in lines)


def _command(kind: str, properties: dict[str, str], message: str) -> str:
    said = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{kind} {said}::{_data(printable(message, LONGEST))}"


def _data(text: str) -> str:
    """A message as the runner unescapes it."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """A property: what ends one, or the list of them, is escaped too."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
