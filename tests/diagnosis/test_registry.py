"""Every file of rules/ is a rule, documented and tested in the same form."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from hostgap.diagnosis.explain import FAMILIES, explain, reference
from hostgap.diagnosis.registry import load_rules
from hostgap.diagnosis.rule import HEADINGS
from hostgap.diagnosis.scaffold import write_rule
from hostgap.errors import ConfigError, HostgapError

ROOT = Path(__file__).parents[2]
REGISTRY = load_rules()
FILES = sorted(path for path in (ROOT / "rules").glob("*.py") if path.stem != "__init__")


def test_every_file_is_a_rule() -> None:
    assert [path.stem.split("_")[0].upper() for path in FILES] == list(REGISTRY.rules)


@pytest.mark.parametrize("code", REGISTRY.rules)
def test_a_rule_and_its_file_agree(code: str) -> None:
    rule, doc = REGISTRY.rules[code], REGISTRY.docs[code]
    stem = f"{code.lower()}_{rule.name.replace('-', '_')}"
    assert (ROOT / "rules" / f"{stem}.py").is_file()
    assert doc.startswith(f"{code} {rule.name}: ")
    assert re.findall(r"^## (.*)$", doc, re.MULTILINE) == list(HEADINGS)
    assert all(re.split(r"^## .*$", doc, flags=re.MULTILINE))
    assert type(rule).__doc__
    assert code[2] in FAMILIES
    assert not rule.title.endswith(".")
    assert rule.advice.endswith(".")
    options = {field.encode_name for field in msgspec.structs.fields(rule.options)}
    described = doc.split("## Options")[1].split("## Sources")[0]
    assert set(re.findall(r"^- `([\w-]+)`", described, re.MULTILINE)) == options


@pytest.mark.parametrize("code", REGISTRY.rules)
def test_a_rule_has_a_case_that_fires_and_one_that_must_not(code: str) -> None:
    stem = f"{code.lower()}_{REGISTRY.rules[code].name.replace('-', '_')}"
    tests = (ROOT / "tests" / "rules" / f"test_{stem}.py").read_text(encoding="utf-8")
    assert "def test_fires" in tests
    assert "def test_silent" in tests


def test_the_reference_is_true() -> None:
    """`make docs` writes it."""
    assert (ROOT / "docs" / "rules.md").read_text(encoding="utf-8") == reference(REGISTRY)


def test_explain_knows_rules_and_remarks_on_the_trace() -> None:
    assert "## Use instead" in explain(REGISTRY, "hg101")
    assert "clocks disagree" in explain(REGISTRY, "HG904")
    with pytest.raises(ConfigError) as caught:
        explain(REGISTRY, "HG1001")
    assert "did you mean HG1" in str(caught.value.hint)


def test_the_scaffold_is_a_rule(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "tests" / "rules").mkdir(parents=True)
    rule, test = write_rule(tmp_path, "HG199", "slow-thing")
    found = load_rules([rule.parent])
    assert (found.rules["HG199"].name, found.problems) == ("slow-thing", ())
    assert re.findall(r"^## (.*)$", found.docs["HG199"], re.MULTILINE) == list(HEADINGS)
    compile(test.read_text(), str(test), "exec")
    with pytest.raises(HostgapError, match="exists already"):
        write_rule(tmp_path, "HG199", "slow-thing")


@pytest.mark.parametrize(
    ("code", "name"), [("hg199", "a"), ("HG1", "a"), ("HG199", "Slow"), ("HG101", "scalar-read")]
)
def test_the_scaffold_refuses(tmp_path: Path, code: str, name: str) -> None:
    with pytest.raises(HostgapError):
        write_rule(tmp_path, code, name)
