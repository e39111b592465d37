"""A recording of many variants: a process each, some at a time, by torch.profiler or by Nsight."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
from labelled import NSYS
from variants import VARIANTS

PROBE = "probe"
GRACE_S = 5
NSYS_EXPORT_S = 40
NSYS_OPTIONS = (
    *("-t", "cuda,nvtx", "-s", "none", "-b", "none", "--cpuctxsw=none"),
    *("--cuda-graph-trace=node", "-c", "cudaProfilerApi", "--capture-range-end=stop"),
    *("-f", "true", "--wait=primary"),
)


@dataclass
class Task:
    """One process to run: a variant by torch.profiler in both ways, or by Nsight."""

    name: str
    formats: tuple[str, ...]


@dataclass
class Suite:
    """A recording of many variants.

    Attributes:
        out: the folder.
        nsys, importer, libraries: Nsight's command, its QdstrmImporter, and where that one's
            shared libraries lie; None where they are not needed.
        timeout: seconds that one variant may take.
        ends: when to stop, by time.monotonic.
        outcome: variant -> format -> "ok" or what went wrong.
    """

    out: Path
    nsys: Path | None
    importer: Path | None
    libraries: str | None
    timeout: float
    ends: float
    outcome: dict[str, dict[str, str]] = field(default_factory=dict)
    _say: threading.Lock = field(default_factory=threading.Lock)

    def run(self, tasks: Sequence[Task], jobs: int) -> None:
        """Run the tasks, `jobs` at a time, until the time is up."""
        waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
        for task in tasks:
            waiting.put(task)

        def work() -> None:
            while True:
                try:
                    task = waiting.get_nowait()
                except queue.Empty:
                    return
                started = time.monotonic()
                if started >= self.ends:
                    said = dict.fromkeys(task.formats, "no time left")
                else:
                    try:
                        said = self.one(task)
                    except Exception as error:  # noqa: BLE001  one task must not end the others
                        reason = f"{type(error).__name__}: {error}"
                        said = dict.fromkeys(task.formats, reason)
                with self._say:
                    self.outcome.setdefault(task.name, {}).update(said)
                    for name, text in said.items():
                        click.echo(
                            f"{task.name:28} {name:13} {time.monotonic() - started:5.1f} s  "
                            f"{text.splitlines()[-1] if text else ''}"
                        )

        threads = [threading.Thread(target=work) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def one(self, task: Task) -> dict[str, str]:
        """Run a task: format -> "ok" or what went wrong."""
        if task.formats == (NSYS,):
            text = self.by_nsys(task.name)
        else:
            text = self.call([*here("one", task.name), "-o", str(self.out)], self.timeout)
        said = {}
        for name in task.formats:
            there = self.file(task.name, name).exists()
            said[name] = "ok" if there else text or "nothing was written"
        return said

    def file(self, name: str, kind: str) -> Path:
        """The trace of a variant in a format."""
        return self.out / file_name(name, kind)

    def by_nsys(self, name: str) -> str:
        """Record with Nsight and export: "" or what went wrong."""
        folder = self.out / f"nsys-{name}"
        folder.mkdir(exist_ok=True)
        base = folder / "report"
        try:
            text = self.call(
                [str(self.nsys), "profile", *NSYS_OPTIONS, "-o", str(base), *here("steps", name)],
                self.timeout,
            )
            report, raw = base.with_suffix(".nsys-rep"), base.with_suffix(".qdstrm")
            if not report.exists() and raw.exists() and self.importer is not None:
                variables = {"LD_LIBRARY_PATH": self.libraries} if self.libraries else {}
                text += self.call([str(self.importer), "-i", str(raw)], NSYS_EXPORT_S, variables)
            if not report.exists():
                return text or f"nsys wrote {sorted(p.name for p in folder.iterdir())}"
            export = folder / "export.sqlite"
            text += self.call(
                [
                    *(str(self.nsys), "export", "--type", "sqlite", "-q", "true", "-f", "true"),
                    *("-o", str(export), str(report)),
                ],
                NSYS_EXPORT_S,
            )
            if export.exists():
                export.rename(self.file(name, NSYS))
                return ""
            return text or "nsys exported nothing"
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def call(
        self, command: Sequence[str], timeout: float, variables: dict[str, str] | None = None
    ) -> str:
        """Run a command: "" when it succeeds, else the end of what it said."""
        left = max(1.0, min(timeout, self.ends + GRACE_S - time.monotonic()))
        # a file: whoever outlives the command would keep a pipe open
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as file:
            with subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(variables or {})},
                start_new_session=True,  # so that it can be ended with everything it started
            ) as process:
                try:
                    process.wait(timeout=left)
                    end = f"exit code {process.returncode}"
                except subprocess.TimeoutExpired:
                    end = f"stopped after {left:.0f} s"
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            file.seek(0)
            said = file.read()[-1500:]
        return "" if process.returncode == 0 else f"{said}\n{end}"


def here(*arguments: str) -> list[str]:
    """The recording script with other arguments."""
    return [sys.executable, str(Path(__file__).resolve().with_name("record.py")), *arguments]


def file_name(name: str, kind: str) -> str:
    """The file of a variant's trace in a format."""
    return f"{name}.{kind}.{'sqlite' if kind == NSYS else 'json.gz'}"


def nsys_order(names: Sequence[str]) -> list[str]:
    """What to record by Nsight, the most telling first, should the time not suffice for all."""
    first: dict[str, str] = {}
    controls, probe, rest = [], [], []
    for name in names:
        label = None if name == PROBE else VARIANTS[name].label
        if label is None:
            probe.append(name)
        elif label.code is None:
            controls.append(name)
        elif NSYS in label.formats and first.setdefault(label.code, name) != name:
            rest.append(name)
    return [*first.values(), *controls, *probe, *rest]
