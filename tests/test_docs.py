"""The documentation says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from hostgap.analysis.causes import ADVICE, MEANING, Cause

ROOT = Path(__file__).parents[1]


def test_every_cause_is_documented_and_no_other() -> None:
    text = (ROOT / "docs" / "causes.md").read_text(encoding="utf-8").split("## The verdict")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    documented = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(documented) == sorted(cause.label for cause in Cause)


def test_meanings_fit_beside_the_bars() -> None:
    assert set(MEANING) == set(ADVICE) == set(Cause)
    assert all(len(meaning) <= 36 for meaning in MEANING.values())


def test_links_of_the_documentation_exist() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("*/README.md")]
    assert len(pages) > 5
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_readme_shows_what_the_samples_give() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ("eager_item", "cuda_graph"):
        golden = (ROOT / "tests" / "output" / "golden" / f"{name}.txt").read_text(encoding="utf-8")
        assert golden.strip() in readme, f"README does not show the report of {name}"
