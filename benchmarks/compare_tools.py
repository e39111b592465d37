"""hostgap, HTA, TraceLens, nsys-ai and nsys on the same traces: time, memory, and answers.

    python benchmarks/compare_tools.py -o results.json
    python benchmarks/compare_tools.py --tracelens ~/TraceLens --sizes 1,10,100 -o results.json

torch.profiler traces: the bundled samples, and traces of about `--sizes` MB that make_trace.py lays
together from them (more than 1 GB: removed again). Nsight exports: the bundled ones, and one of a
million rows. Every tool runs as a process of its own, from start to exit, in turns. Its answers are
held against those of oracle.py. A tool that passes a limit is stopped, and not tried on anything
larger; a tool that cannot be installed or is not there is listed as such.

Writes results.json, and beside it the same as tables, results.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench_nsys import LARGE as LARGE_EXPORT
from bench_nsys import make_large as make_large_export
from compare_tables import tables
from measure import Failed, Limits, Passed, Run, attempt, machine, progress
from peer_tools import (
    DATA,
    HERE,
    HTA_PACKAGES,
    TRACELENS,
    Said,
    Tool,
    hostgap_tool,
    hta_python,
    hta_tool,
    nsys_ai_engine,
    nsys_ai_python,
    nsys_ai_tools,
    nsys_tools,
    nsys_version,
    tracelens_commit,
    tracelens_python,
    tracelens_tool,
    versions,
)

SAMPLES = HERE.parent / "sample_traces"
SIZES = "1,10,100,330,1000,2500,5000"  # MB; 330 has a million events
KEPT_MB = 1000  # larger traces are removed when they are measured
ROUNDS_MB = 400  # larger ones are measured once
SAMPLE_MB = {"gpu_bound": 0.121, "compile": 10.8, "eager": 17.1, "cuda_graph": 6.0}  # of text


@dataclass
class OneTool:
    """What became of one tool on one trace; `error` says how it failed or why it did not run."""

    runs: list[Run] = field(default_factory=list)
    said: Said | None = None
    error: str = ""


@dataclass
class OneTrace:
    """A trace: its exact answers, and what each tool made of it."""

    name: str
    kind: str  # sample, trace or export
    mb: float
    events: int | None
    oracle: dict[str, int]
    tools: dict[str, OneTool]


def counts_for(mb: float) -> dict[str, int]:
    """How often make_trace.py repeats which samples for a trace of about so many MB."""
    if mb < 5:
        return {"gpu_bound": max(1, round(mb / SAMPLE_MB["gpu_bound"]))}
    if mb < 50:
        return {"compile": round(mb / SAMPLE_MB["compile"]) or 1}
    rest = mb - SAMPLE_MB["compile"]  # in the proportion of the preset "large"
    pairs = rest / (11 * SAMPLE_MB["eager"] + 17 * SAMPLE_MB["cuda_graph"])
    return {"eager": round(11 * pairs), "cuda_graph": round(17 * pairs), "compile": 1}


@contextmanager
def trace_of(mb: float) -> Iterator[Path]:
    """A trace of about so many MB, which is removed afterwards where it is large."""
    path = DATA / f"compare_{mb:g}.json"
    if not path.exists():
        code = (
            f"import sys; sys.path.insert(0, {str(HERE)!r}); from pathlib import Path;"
            f"from make_trace import make; make({counts_for(mb)!r}, Path(sys.argv[1]))"
        )  # in a process of its own: its memory would show up in every child's peak
        subprocess.run([sys.executable, "-c", code, path], check=True)
    try:
        yield path
    finally:
        if mb > KEPT_MB:
            path.unlink()


def oracle(path: Path) -> dict[str, int]:
    """The exact answers; see oracle.py."""
    argv: list[str | Path] = [sys.executable, HERE / "oracle.py", path]
    found: dict[str, int] = json.loads(subprocess.check_output(argv))
    return found


class Comparison:
    """Runs tools on traces, and remembers which have passed a limit."""

    def __init__(self, limits: Limits, rounds: int) -> None:
        self.limits = limits
        self.rounds = rounds
        self.traces: list[OneTrace] = []
        self.passed: dict[str, str] = {}

    def measure(self, path: Path, kind: str, tools: list[Tool], *, once: bool = False) -> OneTrace:
        """All tools on one trace, in turns."""
        mb = path.stat().st_size / 1e6
        found = OneTrace(path.name, kind, mb, None, oracle(path), {})
        for tool in tools:
            known = self.passed.get(tool.name)
            found.tools[tool.name] = OneTool(error=f"not tried, as {known}" if known else "")
        rounds = 1 if once or mb > ROUNDS_MB else self.rounds
        for at in range(rounds):
            for tool in tools:
                one = found.tools[tool.name]
                if not one.error:
                    progress(f"{path.name}, round {at + 1} of {rounds}: {tool.name}")
                    self._run(path, tool, one, found)
        progress("")
        self.traces.append(found)
        return found

    def _run(self, path: Path, tool: Tool, one: OneTool, trace: OneTrace) -> None:
        with tempfile.TemporaryDirectory(dir=DATA.resolve()) as name:  # nsys-ai refuses links
            folder = Path(name)
            if path.suffix == ".sqlite":  # some write caches beside it
                path = Path(shutil.copy(path, folder))
            try:
                took = attempt(tool.command(path, folder), self.limits)
                one.said = tool.said(folder)
                one.runs.append(took)  # a time without an answer is none
                trace.events = events(folder) or trace.events
            except Passed as error:
                one.error = f"stopped: {error}"
                self.passed[tool.name] = f"it took {error} for {path.name}"
            except (Failed, OSError, LookupError, ValueError) as error:
                one.error = f"failed: {type(error).__name__}: {error}"


def events(folder: Path) -> int | None:
    """How many events the trace has, where hostgap has just read it."""
    path = folder / "hostgap.json"
    if not path.exists():
        return None
    count: int = json.loads(path.read_text(encoding="utf-8"))["trace"]["events"]
    return count


def installed(name: str, make_it: Callable[[], Path], missing: dict[str, str]) -> Path | None:
    """An environment's interpreter; None where pip cannot make it, which is noted."""
    try:
        return make_it()
    except (subprocess.CalledProcessError, OSError) as error:
        missing[name] = f"could not be installed: {error}"
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default=SIZES, help=f"MB of the traces to make [{SIZES}]")
    parser.add_argument("--tracelens", default=TRACELENS, metavar="PATH", help="a checkout of it")
    parser.add_argument("--only", default="", metavar="A,B", help="of these tools, by name")
    parser.add_argument("--rounds", type=int, default=3, help="up to 400 MB; once above [3]")
    parser.add_argument("--seconds", type=float, default=900, help="limit of wall time [900]")
    parser.add_argument("--mb", type=float, default=8000, help="limit of memory [8000]")
    parser.add_argument("-o", "--output", type=Path, default=Path("results.json"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the tool that runs, too
    sizes = sorted(float(size) for size in options.sizes.split(","))
    DATA.mkdir(exist_ok=True)

    missing: dict[str, str] = {}
    about = machine(("hostgap", "msgspec", "numpy"))
    kineto = [hostgap_tool("hostgap"), hostgap_tool("hostgap, no rules", "--ignore", "HG")]
    nsys = [hostgap_tool("hostgap")]
    if python := installed("HTA", hta_python, missing):
        kineto += [hta_tool("HTA", "json", python), hta_tool("HTA, lean", "lean", python)]
        about["HTA"] = versions(python, (HTA_PACKAGES[0], "ijson", "pandas", "numpy"))
    if python := installed("TraceLens", lambda: tracelens_python(options.tracelens), missing):
        kineto.append(tracelens_tool("TraceLens", python))
        commit = tracelens_commit(options.tracelens)
        about["TraceLens"] = f"{versions(python, ('TraceLens', 'pandas', 'numpy'))}, {commit}"
    if python := installed("nsys-ai", nsys_ai_python, missing):
        nsys += nsys_ai_tools(python)
        about["nsys-ai"] = f"{versions(python, ('nsys-ai', 'duckdb'))}, {nsys_ai_engine(python)}"
    if version := nsys_version():
        nsys += nsys_tools()
        about["nsys"] = version
    else:
        missing["nsys"] = "not on the PATH"

    if options.only:
        only = ("hostgap", *options.only.split(","))  # and their variants
        names = tuple(name + end for name in only for end in (" ", ","))
        kineto, nsys = (
            [one for one in some if f"{one.name} ".startswith(names)] for some in (kineto, nsys)
        )
    comparison = Comparison(Limits(options.seconds, options.mb), options.rounds)

    def write() -> None:
        report: dict[str, Any] = {
            "machine": about,
            "missing": missing,
            "limits": asdict(comparison.limits),
            "traces": [asdict(trace) for trace in comparison.traces],
        }
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        text = tables(report, kineto, nsys)
        options.output.with_suffix(".md").write_text(text, encoding="utf-8")

    for path in sorted(SAMPLES.glob("*.json.gz")):  # the first run of each, which is slower
        comparison.measure(path, "sample", kineto, once=True)
    for path in sorted(SAMPLES.glob("*.sqlite")):
        comparison.measure(path, "export", nsys)
    if not LARGE_EXPORT.exists():
        make_large_export()
    comparison.measure(LARGE_EXPORT, "export", nsys)
    write()
    for mb in sizes:
        with trace_of(mb) as path:
            comparison.measure(path, "trace", kineto)
        write()
    print(options.output.with_suffix(".md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
