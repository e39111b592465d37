"""A fake server, and `attach` run on it without its patience."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hostgap.serving import attach as attach_module
from hostgap.serving import files, vllm
from hostgap.serving.attach import ENGINES, Attached, attach
from hostgap.serving.server import Server
from tests.serving.fake import Fake, FakeVllm, served
from tests.serving.seen import Run


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits."""
    monkeypatch.setattr(attach_module, "LOAD_S", 0.1)
    monkeypatch.setattr(attach_module, "_FLUSH_S", 3.0)
    monkeypatch.setattr(files, "POLL_S", 0.05)
    monkeypatch.setattr(files, "SETTLE_S", 0.3)
    monkeypatch.setattr(vllm, "_POLL_S", 0.02)
    monkeypatch.setattr(vllm, "_BLIND_S", 0.1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "traces"
    made.mkdir()
    return made


@pytest.fixture
def serve() -> Iterator[Callable[[Fake], Fake]]:
    with ExitStack() as stack:
        yield lambda fake: stack.enter_context(served(fake))


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def run(tmp_path: Path, serve: Callable[[Fake], Fake], notes: list[str]) -> Run:
    def go(fake: Fake, *, key: str | None = None, **options: Any) -> Attached:
        if not fake.url:
            serve(fake)
        engine = ENGINES["vllm" if isinstance(fake, FakeVllm) else "sglang"]()
        given = {"timeout_s": 5.0, "steps": 20, "start_step": 5, "say": str, **options}
        given.setdefault("note", notes.append)
        return attach(Server.at(fake.url, key), engine, tmp_path / "out", fake.folder, **given)

    return go
