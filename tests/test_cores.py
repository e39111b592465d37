"""Cores that a process may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from hostgap.cores import usable_cores
from hostgap.ranks import engines


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)


@pytest.mark.usefixtures("eight")
@pytest.mark.parametrize(
    ("limit", "cores"),
    [
        ("150000 100000\n", 1.5),
        ("900000 100000\n", 8.0),
        ("max 100000\n", 8.0),
        ("100000 0\n", 8.0),
        ("0 100000\n", 8.0),
        ("nonsense", 8.0),
        ("", 8.0),
    ],
)
def test_a_quota_counts_where_it_is_less(tmp_path: Path, limit: str, cores: float) -> None:
    file = tmp_path / "sys/fs/cgroup/cpu.max"
    file.parent.mkdir(parents=True)
    file.write_text(limit)
    assert usable_cores(tmp_path) == cores


@pytest.mark.usefixtures("eight")
def test_without_cgroups(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == 8.0


@pytest.mark.parametrize(("cores", "processes"), [(0.5, 1), (1.5, 2), (2.0, 2)])
def test_as_many_processes_as_the_quota_keeps_busy(
    monkeypatch: pytest.MonkeyPatch, cores: float, processes: int
) -> None:
    monkeypatch.setattr(engines, "usable_cores", lambda: cores)
    assert engines.Local().processes == processes
