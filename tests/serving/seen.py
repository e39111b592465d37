"""What was asked of a fake server, and what `attach` left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hostgap.serving.attach import Attached
from tests.serving.fake import Fake

Run = Callable[..., Attached]


def posts(fake: Fake) -> list[str]:
    return [path for method, path, _ in fake.asked if method == "POST"]


def left(tmp_path: Path) -> list[str]:
    out = tmp_path / "out"
    return sorted(path.name for path in out.iterdir()) if out.exists() else []
