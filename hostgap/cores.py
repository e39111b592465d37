"""How many processor cores this process may use."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cores(root: Path = Path("/")) -> float:
    """Cores of the process's affinity, or of its cgroup's quota if that is less, such as 1.5.

    Args:
        root: of the file system.
    """
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0)
    cores = cores or float(os.cpu_count() or 1)
    quota = quota_cores(root)
    return cores if quota is None else min(cores, quota)


def quota_cores(root: Path = Path("/")) -> float | None:
    """Cores of the quota of the process's cgroup, None without one.

    Args:
        root: of the file system.
    """
    try:
        text = (root / "sys/fs/cgroup/cpu.max").read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    quota, _, period = text.strip().partition(" ")
    if not (quota.isdigit() and period.isdigit() and int(quota) and int(period)):
        return None  # "max", or nothing that is known
    return int(quota) / int(period)
