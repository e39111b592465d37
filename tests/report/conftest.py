"""Pages for the report's tests, and a browser to open them in."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hostgap.output.html import render_html
from hostgap.report.sources import read_page

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

sys.path.insert(0, str(HERE))  # for `traces` and `browser`


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes the report of traces or results, once each: made("name", path, against=...)."""
    folder = tmp_path_factory.mktemp("reports")
    done: dict[str, Path] = {}

    def make(name: str, *paths: Path, against: Path | None = None) -> Path:
        if name not in done:
            page = folder / f"{name}.html"
            page.write_bytes(render_html(read_page(paths, against)))
            done[name] = page
        return done[name]

    return make


@pytest.fixture(scope="session")
def sample(made: Callable[..., Path]) -> Path:
    """The report of a real trace with stacks and many findings."""
    return made("eager_item", ROOT / "sample_traces" / "eager_item.json.gz")


@pytest.fixture(scope="session")
def _browser() -> Iterator[object]:
    missing = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    if importlib.util.find_spec("selenium") is None:
        missing.append("selenium")
    if missing:
        why = f"the report's browser tests need {', '.join(missing)}"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    from browser import Browser

    browser = Browser()
    yield browser
    browser.driver.quit()


@pytest.fixture
def browser(_browser: object) -> object:
    """A browser as a new visitor has it: 1280 pixels wide, light."""
    _browser.reset()  # type: ignore[attr-defined]
    return _browser
