"""The fuzzing harness itself: what it makes is reproducible, and what it checks can fail."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

FUZZ = Path(__file__).parents[2] / "benchmarks" / "fuzz"
MODULES = (
    "drive", "limits", "mutate_bytes", "mutate_json", "mutate_sqlite", "recipes", "seeds", "values",
)  # fmt: skip
INPUTS = 40


@pytest.fixture(scope="module")
def fuzz() -> Iterator[Any]:
    """Imports a module of the harness: they import each other as the script does."""
    if sys.version_info < (3, 11):
        pytest.skip("the harness needs Python 3.11")
    sys.path.insert(0, str(FUZZ))
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(str(FUZZ))
        for name in MODULES:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def seeds(fuzz: Any) -> Any:
    return fuzz("seeds").seeds()


def test_seeds_are_small_and_whole(fuzz: Any, seeds: Any, tmp_path: Path) -> None:
    """Unmutated, each is analyzed, redacted and read back."""
    drive, recipes = fuzz("drive"), fuzz("recipes")
    for seed in seeds:
        if seed.tables:
            assert sum(len(table.rows) for table in seed.tables.values()) < 1000
            continue
        assert len(seed.document["traceEvents"]) <= 120
        data = fuzz("values").dumped(seed.document)
        case = recipes.Case({"t.json": data}, "t.json", more="redact")
        assert drive.drive(case, tmp_path, thorough=True).reached == "analyzed", seed.name


def test_a_recipe_gives_the_same_input_again(fuzz: Any, seeds: Any) -> None:
    recipes = fuzz("recipes")
    for number in range(INPUTS):
        recipe = recipes.recipe_of(7, number)
        assert recipes.unpacked(recipes.packed(recipe)) == recipe[: recipes.LONGEST]
        assert recipes.made(recipe, seeds) == recipes.made(recipe, seeds)


def test_some_inputs(fuzz: Any, seeds: Any, tmp_path: Path) -> None:
    """A few of every run: none fails, and some come all the way."""
    drive, recipes = fuzz("drive"), fuzz("recipes")
    reached = []
    for number in range(INPUTS):
        case = recipes.made(recipes.recipe_of(11, number), seeds)
        result = drive.drive(case, tmp_path)
        assert result.failure is None, result.failure.text
        reached.append(result.reached)
    assert {"analyzed", "refused"} <= set(reached)


def test_what_it_checks_can_fail(
    fuzz: Any, seeds: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive, recipes = fuzz("drive"), fuzz("recipes")
    seed = next(seed for seed in seeds if seed.document is not None)
    case = recipes.Case({"t.json": fuzz("values").dumped(seed.document)}, "t.json")

    def failure() -> str:
        found = drive.drive(case, tmp_path).failure
        assert found is not None
        return str(found.key)

    real = drive.judge

    def wrong(*arguments: Any) -> Any:
        made = real(*arguments)
        device = msgspec.structs.replace(made.devices[0], idle_ns=made.devices[0].idle_ns + 1)
        return msgspec.structs.replace(made, devices=[device])

    monkeypatch.setattr(drive, "judge", wrong)
    assert "busy and idle time are not the window" in failure()
    monkeypatch.setattr(
        drive, "judge", lambda *a: msgspec.structs.replace(real(*a), problems=["HG101: failed"])
    )
    assert "a rule failed" in failure()
    monkeypatch.setattr(drive, "judge", real)
    monkeypatch.setattr(drive, "render_markdown", lambda diagnosis: "a\x1bb")
    assert "markdown holds" in failure()
    monkeypatch.setattr(drive, "load_trace", lambda path: {}[path])
    assert "KeyError" in failure()
