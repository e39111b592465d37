"""JUnit XML: what Jenkins's schema asks for, and no character that XML forbids.

`ALLOWED` is what junit-10.xsd of Jenkins's xunit plugin lets stand where. Where that file itself
lies beside the repository (shared/schemas, or $PUBLISHED_SCHEMAS), it is asked too.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from hostgap.gate.model import Allow, Canary
from hostgap.output.junit import render_junit
from tests.gate.sides import check, culprit, judged, result, sample
from tests.output.test_github import NASTY

ROOT = Path(__file__).parents[2]
SCHEMA = Path(os.environ.get("PUBLISHED_SCHEMAS", ROOT.parent / "shared" / "schemas"))
SCHEMA /= "junit-10.xsd"

_OUTCOME: tuple[set[str], set[str], set[str]] = (set(), {"type", "message"}, set())
# element -> attributes it must have, attributes it may have, children
ALLOWED: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors"},
        {"group", "time", "skipped", "timestamp", "hostname", "id", "package", "file"},
        {"testsuite", "properties", "testcase", "system-out", "system-err"},
    ),
    "testcase": (
        {"name"},
        {"time", "classname", "group"},
        {"skipped", "error", "failure", "system-out", "system-err"},
    ),
    "properties": (set(), set(), {"property"}),
    "property": ({"name", "value"}, set(), set()),
    "failure": _OUTCOME,
    "error": _OUTCOME,
    "skipped": _OUTCOME,
    "system-out": (set(), set(), set()),
}


def valid(one: Any) -> ET.Element:
    """The document, after every check."""
    data = render_junit(one)
    root = ET.fromstring(data)
    for element in root.iter():
        must, may, children = ALLOWED[element.tag]
        assert must <= set(element.attrib) <= must | may, element.tag
        assert {child.tag for child in element} <= children, element.tag
    (suite,) = root
    cases = suite.findall("testcase")
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.attrib[name]) == len(suite.findall(f"testcase/{tag}")), name
    assert int(suite.attrib["tests"]) == len(cases)
    if SCHEMA.is_file():
        etree = pytest.importorskip("lxml.etree")
        etree.XMLSchema(etree.parse(str(SCHEMA))).assertValid(etree.fromstring(data))
    return root


def everything(text: str = "text", **fields: Any) -> Any:
    statuses = ("passed", "failed", "warning", "inconclusive", "skipped", "unmeasurable")
    checks = [
        check(metric=f"m{n}", status=status, text=text, culprits=[culprit(title=text)])
        for n, status in enumerate(statuses)
    ]
    stale = [Allow(owner="me", reason=text, function="gone")]
    canary = Canary(caught=False, by=[])
    return result(*checks, subject=text, notes=[text], stale=stale, canary=canary, **fields)


def test_every_status() -> None:
    (suite,) = valid(everything())
    names = {case.attrib["name"]: [child.tag for child in case] for case in suite.iter("testcase")}
    assert names == {
        "m0": ["system-out"],
        "m1": ["failure"],
        "m2": ["system-out"],
        "m3": ["skipped"],
        "m4": ["skipped"],
        "m5": ["error"],
        "canary": ["failure"],
    }


def test_undecided_fails_when_strict() -> None:
    (suite,) = valid(everything(strict=True))
    assert [child.tag for child in suite.findall("testcase")[3]] == ["failure"]


@pytest.mark.parametrize("name", [*NASTY, "\x00\x08\x1b\ud800\ufffe", "]]><x>&amp;\x85", "🚀"])
def test_names_survive(name: str) -> None:
    (suite,) = valid(everything(name))
    legal = re.sub("[^\t\n\r\x20-\x7e\U0001f680]", "", name)
    message = suite.findall("testcase")[1][0].attrib["message"]
    assert message.replace("\r", "\n").split() == legal.split()


def test_real_results() -> None:
    for name in ("eager_item.json.gz", "cuda_graph.json.gz", "eager_item.sqlite"):
        table = {"sync_calls_per_step": {"max": 0}, "step_time": {"max_regression": "5%"}}
        valid(judged(sample(name), **table))
