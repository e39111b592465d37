"""The gate as JUnit XML, in the form that Jenkins's schema asks for: a test case per check."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from hostgap.gate.model import Check, GateResult
from hostgap.output import gate_summary as s

# What XML 1.0 has no way to write at all, not even escaped, and what could disguise a name.
_ILLEGAL = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u200d\u2010-\u2027\u2030-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
)


def render_junit(result: GateResult) -> bytes:
    """One suite, with a final newline. Undecided and skipped checks are skipped tests."""
    checks = result.checks
    stale = [s.entry_text(entry) for entry in result.stale]
    failed = [check for check in checks if check.status == "failed"]
    errors = [check for check in checks if check.status == "unmeasurable"]
    skipped = [check for check in checks if check.status in ("skipped", "inconclusive")]
    failures, tests = len(failed), len(checks)
    strict = result.strict
    if strict:  # undecided is failed
        undecided = [check for check in skipped if check.status == "inconclusive"]
        failures += len(undecided)
        skipped = [check for check in skipped if check.status != "inconclusive"]
    if result.canary is not None:
        tests += 1
        failures += not result.canary.caught
    suite = ET.Element(
        "testsuite",
        name="hostgap gate",
        tests=str(tests),
        failures=str(failures),
        errors=str(len(errors)),
        skipped=str(len(skipped)),
    )
    properties = ET.SubElement(suite, "properties")
    for name, value in (("subject", result.subject), ("described", s.described(result))):
        ET.SubElement(properties, "property", name=name, value=_legal(value))
    for check in checks:
        _case(suite, check, strict=strict)
    if result.canary is not None:
        case = ET.SubElement(suite, "testcase", name="canary", classname="hostgap.gate")
        if not result.canary.caught:
            line = s.canary_line(result)
            ET.SubElement(case, "failure", type="failed", message=line).text = line
    notes = [f"stale, allowed and no longer there: {entry}" for entry in stale] + result.notes
    if notes:
        ET.SubElement(suite, "system-out").text = _legal("\n".join(notes))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    written: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def _case(suite: ET.Element, check: Check, *, strict: bool) -> None:
    case = ET.SubElement(suite, "testcase", name=_legal(s.label(check)), classname="hostgap.gate")
    kind = {"failed": "failure", "unmeasurable": "error", "skipped": "skipped"}.get(check.status)
    if check.status == "inconclusive":
        kind = "failure" if strict else "skipped"
    places = [
        f"{culprit.code} {s.where(culprit)}, {s.often(culprit)}: {culprit.title}. {culprit.advice}"
        for culprit in s.shown_culprits(check)
    ]
    if kind is not None:
        text = "\n".join([check.text, *places])
        found = ET.SubElement(case, kind, type=check.status, message=_legal(check.text))
        found.text = _legal(text)
    else:
        said = "\n".join([check.text, *(places if check.status == "warning" else [])])
        ET.SubElement(case, "system-out").text = _legal(said)


def _legal(text: str) -> str:
    """Text without the characters that XML forbids."""
    return _ILLEGAL.sub("", text)
