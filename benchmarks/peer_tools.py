"""The other tools: their environments, how each is run on a trace, and what it answers.

Each is installed by pip into an environment of its own under benchmarks/data on first use. Every
figure is taken from what the tool itself writes; None where it gives none.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from measure import Command

Argv = list[str | Path]

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"
HTA_PACKAGES = ("HolisticTraceAnalysis", "ijson", "pandas<3")  # 0.5.0 was written for pandas 2
# HTA rounds times to whole us by default and then trips over its own assertion
HTA_ENV = {"HTA_DISABLE_NS_ROUNDING": "1"}
TRACELENS = "git+https://github.com/AMD-AGI/TraceLens@171dd74721ca1ec45709e5805b68ae1f65e27811"
_NSYS_AI = re.compile(
    r"Span: (?P<span>[\d.]+)ms .*Idle: (?P<idle>[\d.]+)ms .*\n *Kernels: (?P<kernels>\d+)"
)


@dataclass
class Said:
    """What a tool says of a whole trace, times in ns.

    `kernels` ran on the GPU, `launches` are the host's calls that started them.
    """

    window_ns: float | None = None
    idle_ns: float | None = None
    kernels: int | None = None
    launches: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Tool:
    """A way to run a tool.

    Attributes:
        name: how tables call it.
        command: given a trace and an empty folder, the command that answers.
        said: given that folder, what it answered.
        only_kernels: its idle time and window are those of kernels, without copies and memsets.
        step_ns: how finely it prints its times.
    """

    name: str
    command: Callable[[Path, Path], Command]
    said: Callable[[Path], Said]
    only_kernels: bool = False
    step_ns: float = 1.0

    @property
    def kin(self) -> str:
        """The tool behind it: its name up to a comma."""
        return self.name.partition(",")[0]


def environment(name: str, packages: Sequence[str]) -> Path:
    """The interpreter of an environment with some packages, made anew when they change.

    Raises:
        subprocess.CalledProcessError: pip could not install them.
    """
    home = DATA / name
    python, ready = home / "bin" / "python", home / ".installed"
    wanted = "\n".join(packages)
    if not ready.exists() or ready.read_text(encoding="utf-8").strip() != wanted:
        print(f"installing {', '.join(packages)} into {home.name}", file=sys.stderr)
        venv.create(home, with_pip=True, clear=True)
        pip: Argv = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, *packages], check=True)
        ready.write_text(wanted + "\n", encoding="utf-8")
    return python


def versions(python: Path, packages: Sequence[str]) -> str:
    """The versions of packages in an environment, in one line."""
    code = (
        "import sys, importlib.metadata as m;"
        "print(', '.join(f'{n} {m.version(n)}' for n in sys.argv[1:]))"
    )
    argv: Argv = [python, "-c", code, *packages]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def hta_python() -> Path:
    """The interpreter of HTA's environment."""
    return environment("hta-venv", HTA_PACKAGES)


def tracelens_python(source: str = TRACELENS) -> Path:
    """The interpreter of TraceLens's environment; `source` is what pip installs."""
    return environment("tracelens-venv", [source])


def tracelens_commit(source: str) -> str:
    """Of which commit a source of TraceLens is, "" where that cannot be told."""
    if not Path(source).is_dir():
        return source.rpartition("@")[2][:12]
    argv = ["git", "-C", source, "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(argv, capture_output=True, text=True).stdout.strip()


def nsys_ai_python() -> Path:
    """The interpreter of nsys-ai's environment."""
    return environment("nsys-ai-venv", ["nsys-ai"])


def hostgap_tool(name: str, *options: str) -> Tool:
    """hostgap of this checkout, over the whole trace."""

    def command(trace: Path, folder: Path) -> Command:
        argv: Argv = [
            sys.executable,
            "-m",
            "hostgap",
            "analyze",
            trace,
            "--window",
            "trace",
            *options,
        ]
        return Command(name, [*argv, "-o", folder / "hostgap.json"])

    def said(folder: Path) -> Said:
        report = json.loads((folder / "hostgap.json").read_text(encoding="utf-8"))
        device, counts = report["devices"][0], report["counts"]
        return Said(
            device["window_ns"],
            device["idle_ns"],
            device["kernels"],
            counts["launches"] + counts["graph_launches"],
        )

    return Tool(name, command, said)


def hta_tool(name: str, mode: str, python: Path) -> Tool:
    """HTA; see hta_analyze.py."""

    def command(trace: Path, folder: Path) -> Command:
        argv: Argv = [python, HERE / "hta_analyze.py", mode, trace, folder / "hta.json"]
        return Command(name, argv, env=HTA_ENV)

    def said(folder: Path) -> Said:
        report = json.loads((folder / "hta.json").read_text(encoding="utf-8"))
        return Said(
            report["window_us"] * 1000,
            report["idle_us"] * 1000,
            launches=report["launches"],
            note=", ".join(f"{key} {value:.2f} s" for key, value in report["cpu_s"].items()),
        )

    return Tool(name, command, said)


def tracelens_command(python: Path, trace: Path, folder: Path, *options: str) -> Argv:
    """The command line of TraceLens's report, which goes to `folder` as CSV files."""
    report = python.parent / "TraceLens_generate_perf_report_pytorch"
    return [report, "--profile_json_path", trace, "--output_csvs_dir", folder, *options]


def tracelens_times(folder: Path) -> tuple[float, float]:
    """All time and idle time in TraceLens's gpu_timeline, ms."""
    rows = {row["type"]: float(row["time ms"]) for row in rows_of(folder / "gpu_timeline.csv")}
    return rows["total_time"], rows["idle_time"]


def tracelens_tool(name: str, python: Path) -> Tool:
    """TraceLens's report, with the table that counts kernels."""

    def command(trace: Path, folder: Path) -> Command:
        return Command(name, tracelens_command(python, trace, folder, "--enable_kernel_summary"))

    def said(folder: Path) -> Said:
        window, idle = tracelens_times(folder)
        counts = [int(row["Kernel duration (µs)_count"]) for row in rows_of(_summary(folder))]
        return Said(window * 1e6, idle * 1e6, kernels=sum(counts))

    return Tool(name, command, said)


def _summary(folder: Path) -> Path:
    return folder / "kernel_summary.csv"


def rows_of(path: Path) -> list[dict[str, str]]:
    """A CSV file's rows."""
    csv.field_size_limit(sys.maxsize)
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def nsys_ai_tools(python: Path) -> list[Tool]:
    """nsys-ai: the summary that has the figures, and its whole diagnosis."""
    script = python.parent / "nsys-ai"

    def summary(trace: Path, folder: Path) -> Command:
        out = folder / "summary.txt"
        return Command("nsys-ai summary", [script, "summary", trace, "--gpu", "0"], out=out)

    def said(folder: Path) -> Said:
        text = (folder / "summary.txt").read_text(encoding="utf-8")
        found = _NSYS_AI.search(text)
        if found is None:
            return Said(note=text.strip().splitlines()[-1][:200] if text.strip() else "no output")
        return Said(
            float(found["span"]) * 1e6, float(found["idle"]) * 1e6, kernels=int(found["kernels"])
        )

    def diagnose(trace: Path, folder: Path) -> Command:
        argv: Argv = [script, "diagnose", trace, "--session", folder / "of" / "one", "--no-browser"]
        return Command("nsys-ai diagnose", argv)

    def no_figures(_: Path) -> Said:
        return Said(note="findings, no totals")

    return [
        Tool("nsys-ai summary", summary, said, only_kernels=True, step_ns=1e5),
        Tool("nsys-ai diagnose", diagnose, no_figures),
    ]


def nsys_ai_engine(python: Path) -> str:
    """What nsys-ai reads exports with here: it prefers DuckDB, whose SQLite reader it downloads."""
    code = "import duckdb; duckdb.connect().execute('INSTALL sqlite_scanner')"
    done = subprocess.run([python, "-c", code], capture_output=True)
    return "through DuckDB" if done.returncode == 0 else "sqlite3: DuckDB's reader is not to be had"


def nsys_tools() -> list[Tool]:
    """`nsys stats` and `nsys analyze`; none where nsys is not on the PATH."""
    nsys = shutil.which("nsys")
    if nsys is None:
        return []

    def stats(trace: Path, folder: Path) -> Command:
        argv: Argv = [nsys, "stats", "-q", "-f", "csv", "-r", "cuda_gpu_kern_sum", trace]
        return Command("nsys stats", argv, out=folder / "stats.csv")

    def said(folder: Path) -> Said:
        lines = (folder / "stats.csv").read_text(encoding="utf-8").splitlines()
        heads = [at for at, line in enumerate(lines) if "Instances" in line.split(",")]
        if not heads:  # "SKIPPED: ... does not contain CUDA kernel data"
            return Said(note=" ".join(lines)[:200])
        rows = csv.DictReader(line for line in lines[heads[0] :] if line)
        return Said(kernels=sum(int(row["Instances"]) for row in rows), note="sums, no union")

    def analyze(trace: Path, folder: Path) -> Command:
        argv: Argv = [nsys, "analyze", "-q", "-f", "csv", "-r", "gpu_gaps,gpu_time_util", trace]
        return Command("nsys analyze", argv, out=folder / "analyze.csv")

    def no_figures(_: Path) -> Said:
        return Said(note="gaps over a threshold, no totals")

    return [Tool("nsys stats", stats, said), Tool("nsys analyze", analyze, no_figures)]


def nsys_version() -> str:
    """What `nsys --version` says, "" without nsys."""
    nsys = shutil.which("nsys")
    if nsys is None:
        return ""
    return subprocess.run([nsys, "--version"], capture_output=True, text=True).stdout.strip()
