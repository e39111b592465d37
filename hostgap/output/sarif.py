"""The gate as SARIF 2.1.0, for code scanning.

A problem at a line of the repository is a result. One that has no line there, of a trace without
stacks or in somebody else's code, is a notification of the run: code scanning would put a result
without a place at a line that has nothing to do with it.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from hostgap import __version__
from hostgap.gate.metrics import METRICS
from hostgap.gate.model import GateResult
from hostgap.gate.repository import Repository
from hostgap.output import gate_summary as s
from hostgap.output.printable import printable

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
VERSION = "2.1.0"
FINGERPRINT = "hostgap/v1"
MOST = 1_000  # results; code scanning takes 25,000 and shows 5,000


def render_sarif(result: GateResult, repository: Repository) -> bytes:
    """The whole log, indented, with a final newline."""
    found = s.problems(result, repository)[:MOST]
    placed = [problem for problem in found if problem.path and problem.line]
    others = [problem for problem in found if not (problem.path and problem.line)]
    rules = list(dict.fromkeys(_rule_id(problem) for problem in placed))
    run: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": "hostgap",
                "semanticVersion": __version__,
                "rules": [_rule(rule) for rule in rules],
            }
        },
        "automationDetails": {"id": "hostgap/gate/"},
        "columnKind": "unicodeCodePoints",
        "results": [_result(problem, rules) for problem in placed],
        "invocations": [
            {
                "executionSuccessful": result.outcome != "unmeasurable",
                "exitCode": result.exit_code,
                "toolExecutionNotifications": [
                    {"level": problem.level, "message": {"text": printable(problem.text, 1_000)}}
                    for problem in others
                ]
                + [
                    {"level": "note", "message": {"text": printable(note, 1_000)}}
                    for note in result.notes
                ],
            }
        ],
    }
    log = {"$schema": SCHEMA, "version": VERSION, "runs": [run]}
    return json.dumps(log, indent=2).encode("ascii") + b"\n"


def _rule_id(problem: s.Problem) -> str:
    return f"gate/{problem.check.metric}"


def _rule(rule: str) -> dict[str, Any]:
    metric = METRICS.get(rule.removeprefix("gate/"))
    meaning = metric.meaning if metric else "what the trace supports"
    return {
        "id": rule,
        "shortDescription": {"text": f"{rule.removeprefix('gate/')}: {meaning}"},
        "help": {"text": "See docs/gate.md, and `hostgap explain` for the code in the message."},
    }


def _result(problem: s.Problem, rules: list[str]) -> dict[str, Any]:
    culprit = problem.culprit
    assert culprit is not None
    assert problem.path is not None
    rule = _rule_id(problem)
    location: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(problem.path), "uriBaseId": "%SRCROOT%"},
            "region": {"startLine": problem.line},
        }
    }
    if culprit.function:
        location["logicalLocations"] = [{"name": printable(culprit.function), "kind": "function"}]
    return {
        "ruleId": rule,
        "ruleIndex": rules.index(rule),
        "level": problem.level,
        "message": {"text": printable(f"{culprit.code}: {problem.text}", 1_000)},
        "locations": [location],
        "partialFingerprints": {FINGERPRINT: culprit.fingerprint},
    }
