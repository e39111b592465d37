"""What the tests of hostile input share: events, traces, and a command with its peak of memory."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RUN = """
import os, re, sys
from hostgap.cli import run
code = run(sys.argv[1:])
sys.stdout.flush()
# not getrusage: its peak begins with that of the process that started this one
found = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())
print(f"\\npeak {found[1]}", file=sys.stderr)
sys.exit(code)
"""


@dataclass(frozen=True)
class Ran:
    """A finished command: exit code, what it wrote, and its peak of memory in MiB."""

    code: int
    out: str
    error: str
    peak_mib: float


def hostgap(*arguments: str | Path, cwd: Path | None = None, timeout: float = 60) -> Ran:
    """Run a command line of hostgap."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, *map(str, arguments)],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    error, _, peak = done.stderr.decode("utf-8", "replace").rpartition("\npeak ")
    return Ran(done.returncode, done.stdout.decode("utf-8"), error, int(peak) / 1024)


def event(category: str, name: str, start: float, length: float, **more: Any) -> dict[str, Any]:
    """An event of a Kineto trace; what is no field of it goes to its arguments."""
    fields = {key: more.pop(key) for key in ("pid", "tid") if key in more}
    row = {"pid": 1, "tid": 1} | fields
    return {
        "ph": "X", "cat": category, "name": name, "ts": start, "dur": length, **row, "args": more,
    }  # fmt: skip


def launches(n: int, **more: Any) -> list[dict[str, Any]]:
    """`n` launches 100 us apart, each with its kernel; `more` maps a field to a function of i."""
    events = []
    for i in range(n):
        each = {key: value(i) for key, value in more.items()}
        call = {"tid": each.pop("tid", 1)}
        name = each.pop("name", "kernel")
        events.append(
            event("cuda_runtime", "cudaLaunchKernel", i * 100, 5, correlation=i + 1, **call)
        )
        op = {"device": 0, "stream": 7} | each
        events.append(event("kernel", name, i * 100 + 10, 50, correlation=i + 1, **op))
    return events


def steps(n: int, every: float = 1000) -> list[dict[str, Any]]:
    """`n` annotated steps from 0 on."""
    return [event("user_annotation", f"ProfilerStep#{i}", i * every, every - 1) for i in range(n)]


def write(path: Path, events: Iterable[dict[str, Any]]) -> Path:
    """A trace of these events; compressed where its name says so."""
    text = json.dumps({"traceEvents": list(events)}).encode("utf-8", "surrogatepass")
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path
