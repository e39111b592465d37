"""What the rules mean, for people: one rule's page, and the reference of all of them."""

from __future__ import annotations

import sys
import textwrap

from hostgap.analysis.causes import ADVICE, MEANING
from hostgap.analysis.integrity import REASONS
from hostgap.diagnosis.registry import Registry, load_rules, unknown_code

FAMILIES = {
    "1": "The host waits for the GPU",
    "2": "Too many launches",
    "3": "Not captured",
    "4": "Allocation and loading in a step",
    "5": "The host is busy or stalled",
    "6": "Copies",
    "7": "Ranks",
    "9": "About the trace",
}


def explain(registry: Registry, code: str) -> str:
    """The page of a rule, by code or name, of a code about the trace, or of a cause of idle time.

    Raises:
        ConfigError: there is no such code; the nearest is named.
    """
    for cause, meaning in MEANING.items():
        if cause.label == code.lower():
            return f"{cause.label}: {meaning}\n\nA cause of idle time. {ADVICE[cause]}"
    by_name = {rule.name: name for name, rule in registry.rules.items()}
    wanted = by_name.get(code.lower(), code.upper())
    rule = registry.rules.get(wanted)
    if rule is None:
        reason = REASONS.get(wanted)
        if reason is None:
            raise unknown_code(
                code, [*registry.rules, *REASONS, *(cause.label for cause in MEANING)]
            )
        return (
            f"{wanted}: {reason.meaning}\n\nIt makes the trace {reason.verdict.label}."
            f"\n\n{textwrap.fill(reason.remedy, 80)}"
        )
    needs = "\n".join(f"- {need.value}" for need in rule.needs)
    page = registry.docs[wanted].strip()
    return f"{page}\n\n## Needs\n{needs}" if needs else page


def wrapped(page: str, width: int) -> str:
    """A page with its paragraphs and list items filled to a width; headings and code stay."""
    lines: list[str] = []
    paragraph: list[str] = []

    def flush() -> None:
        hanging = "  " if paragraph and paragraph[0].startswith("- ") else ""
        text = " ".join(line.strip() for line in paragraph)
        lines.extend(textwrap.wrap(text, max(width, 20), subsequent_indent=hanging))
        paragraph.clear()

    for line in page.splitlines():
        as_it_is = not line.strip() or line.startswith(("#", "    "))
        if as_it_is or line.startswith("- "):
            flush()
        if as_it_is:
            lines.append(line)
        else:
            paragraph.append(line)
    flush()
    return "\n".join(lines)


def reference(registry: Registry) -> str:
    """The rule reference, docs/rules.md, as markdown."""
    lines = [
        "# Rules",
        "",
        "Made by `make docs` from the rules' own files; `hostgap explain CODE` shows one of them.",
        "A finding is a defect only if it costs exposed time: what saves less than 1 % of the step",
        '(`--min-saving`) is `info`, "seen, harmless".',
        "",
    ]
    family = ""
    for code, rule in registry.rules.items():
        if code[2] != family:
            family = code[2]
            lines += [f"## HG{family}: {FAMILIES.get(family, 'Others')}", ""]
        body = explain(registry, code).split("\n", 1)[1].strip()
        lines += [f"### {code} {rule.name}", "", f"{rule.title}.", ""]
        lines += _markdown(body)
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _markdown(body: str) -> list[str]:
    """A page's headings two levels down; indented code needs an empty line before it."""
    lines: list[str] = []
    for line in body.splitlines():
        if line.startswith("## "):
            lines += [f"**{line[3:]}**", ""]
            continue
        code = line.startswith("    ")
        if code and lines and lines[-1] and not lines[-1].startswith("    "):
            lines.append("")
        lines.append(line)
    return lines


if __name__ == "__main__":
    sys.stdout.write(reference(load_rules()))
