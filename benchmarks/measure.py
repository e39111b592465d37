"""What a benchmark measures of a process, and on what machine.

CPU time is what the whole process used, interpreter start and exit included (user + system, from
`os.wait4`). Peak memory is its largest resident set. Imports nothing heavy on purpose: on Linux a
new process starts out with the peak of the one it was made from.
"""

from __future__ import annotations

import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

_LOOK_S = 0.2  # between looks at a command's memory
_MOST_SAID = 2000  # characters of its error output that are shown


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
        argv: the command line.
        runs: in how many of the rounds it runs, None for all of them.
        env: environment variables to add.
        out: a file for its output, which is thrown away otherwise.
    """

    name: str
    argv: Sequence[str | Path]
    runs: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    out: Path | None = None


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


class Failed(Exception):
    """A command did not come to a good end; the message says how it ended."""


class Passed(Failed):
    """It was stopped, as it passed a limit."""


@dataclass(frozen=True)
class Limits:
    """When to stop a command: wall time, and the resident memory of all its processes together.

    Memory is looked at some times a second, and only on Linux.
    """

    seconds: float = float("inf")
    mb: float = float("inf")


def attempt(command: Command, limits: Limits | None = None) -> Run:
    """Run a command to its end, or until it passes a limit.

    Raises:
        Passed: it was stopped.
        Failed: its exit code is not 0; the message holds the end of its error output.
    """
    limits = limits or Limits()
    with ExitStack() as stack:
        errors = stack.enter_context(tempfile.TemporaryFile())
        out = stack.enter_context(command.out.open("wb")) if command.out else subprocess.DEVNULL
        started = time.perf_counter()
        process = subprocess.Popen(
            [os.fspath(part) for part in command.argv],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            env={**_environment(), **command.env},
            start_new_session=True,
        )
        try:
            passed, status, usage = _wait(process.pid, limits, started)
        except BaseException:  # Ctrl-C does not reach a session of its own
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if passed:
            raise Passed(passed)
        if process.returncode != 0:
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip()
            raise Failed(f"exit code {process.returncode}: {said[-_MOST_SAID:]}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Run(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit / 1e6, wall)


def run(command: Command) -> Run:
    """Run a command to its end.

    Raises:
        SystemExit: it failed; its error output is shown.
    """
    try:
        return attempt(command)
    except Failed as error:
        raise SystemExit(f"{command.name}: {error}") from None


def _environment() -> dict[str, str]:
    """This process's, but that bytecode is kept: what pip installs comes with it compiled."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _wait(pid: int, limits: Limits, started: float) -> tuple[str, int, resource.struct_rusage]:
    """Wait for a process; which limit it was killed for, its status and what it used."""
    if limits == Limits():
        _, status, usage = os.wait4(pid, 0)
        return "", status, usage
    passed = ""
    while True:
        ended, status, usage = os.wait4(pid, 0 if passed else os.WNOHANG)
        if ended:
            return passed, status, usage
        if time.perf_counter() - started > limits.seconds:
            passed = f"more than {limits.seconds:,.0f} s"
        elif _resident_mb(pid) > limits.mb:
            passed = f"more than {limits.mb:,.0f} MB of memory"
        if passed:
            os.killpg(pid, signal.SIGKILL)
        else:
            time.sleep(_LOOK_S)


def _resident_mb(session: int) -> float:
    """The resident memory of all processes of a session, 0 where there is no /proc."""
    pages = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[3]) == session:
            pages += int(fields[21])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


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
