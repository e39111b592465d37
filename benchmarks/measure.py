"""What a benchmark measures of a process, and on what machine.

CPU time is what the whole process used, interpreter start and exit included (user + system, from
`os.wait4`). Peak memory is its largest resident set. Imports nothing heavy on purpose: on Linux a
new process starts out with the peak of the one it was made from.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path


@dataclass(frozen=True)
class Run:
    """One run of one command."""

    cpu_s: float
    peak_mb: float  # 10**6 bytes
    wall_s: float


@dataclass(frozen=True)
class Command:
    """What to run.

    Attributes:
        name: how tables call it.
        argv: the command line; its output is thrown away.
        runs: in how many of the rounds it runs, None for all of them.
        env: environment variables to add.
    """

    name: str
    argv: Sequence[str | Path]
    runs: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)


class Results:
    """The runs of every command, by round."""

    def __init__(self, names: Sequence[str]) -> None:
        self.runs: dict[str, list[Run]] = {name: [] for name in names}

    def median(self, name: str, figure: str) -> float:
        """The median of a field of `Run`."""
        return float(statistics.median(getattr(run, figure) for run in self.runs[name]))

    def ratio(self, name: str, other: str, figure: str = "cpu_s") -> float:
        """`name` over `other`: the median of the ratios within each round.

        Within one round the machine is most alike, so drift between rounds cancels. Where one of
        the two did not run in every round: the ratio of their medians.
        """
        runs, bases = self.runs[name], self.runs[other]
        if len(runs) != len(bases):
            return self.median(name, figure) / self.median(other, figure)
        pairs = zip(runs, bases, strict=True)
        return float(statistics.median(getattr(r, figure) / getattr(b, figure) for r, b in pairs))


def run(command: Command) -> Run:
    """Run a command to its end.

    Raises:
        SystemExit: it failed; its error output is shown.
    """
    started = time.perf_counter()
    process = subprocess.Popen(
        [os.fspath(part) for part in command.argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **command.env},
    )
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    if process.returncode != 0:
        sys.stderr.write(errors.decode(errors="replace"))
        raise SystemExit(f"{command.name}: exit code {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Run(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit / 1e6, wall)


def interleaved(commands: Sequence[Command], rounds: int) -> Results:
    """Run all commands in turn, `rounds` times, after one round that does not count.

    A command that runs only in some rounds gets no warm-up of its own.
    """
    results = Results([command.name for command in commands])
    for command in commands:
        if command.runs is None:
            run(command)
    for at in range(rounds):
        for command in commands:
            if command.runs is None or at < command.runs:
                progress(f"round {at + 1} of {rounds}: {command.name}")
                results.runs[command.name].append(run(command))
    progress("")
    return results


def progress(text: str) -> None:
    """A line that overwrites itself, on a terminal only."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def script(name: str) -> Path:
    """An installed console script of the running environment."""
    found = Path(sys.executable).parent / name
    if not found.exists():
        raise SystemExit(f"{name} is not installed beside {sys.executable}; run `make bench`")
    return found


def machine(packages: Sequence[str]) -> dict[str, str]:
    """The machine in general words, and the versions that matter."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cpu": f"{model}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        **{package: version(package) for package in packages},
    }
