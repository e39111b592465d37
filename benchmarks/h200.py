"""Everything in reports/h200, made on one H200.

    python benchmarks/h200.py DIR [PART...]

Each part is a command that can be run by itself; without names all of them run, one after another.
A part that fails is said, and the others go on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

FIX = [sys.executable, "-m", "hostgap", "fix", "--force"]
HERE = Path(__file__).parent
TARGETS = os.path.relpath(HERE / "targets")  # as it is published
# Tuning on the machine tries what max-autotune tries and more; Inductor's own graphs are the same
# kernels under another launcher.
QUICK = ["--skip", "compile-max-autotune+cuda-graph,compile-reduce-overhead"]


def parts(out: Path) -> dict[str, list[str]]:
    """Name -> command."""

    def rungs(way: str) -> list[str]:
        return [sys.executable, str(HERE / "rungs.py"), f"{out}/rungs{way[1:]}.json", way]

    return {
        "fix-small": [*FIX, "decoder", "--defect", "all", *QUICK, "-o", f"{out}/fix-small.json"],
        "fused": [
            sys.executable,
            str(HERE / "bench_fused.py"),
            str(out),
            "--presets",
            "small,8b",
            "--budget",
            "20",
        ],
        "fix-8b": [
            *FIX,
            "decoder",
            "--preset",
            "8b",
            "--steps",
            "20",
            "--repeat",
            "6",
            "--only",
            "async-input,async-output,cuda-graph,kernels+cuda-graph",
            "-o",
            f"{out}/fix-8b.json",
        ],
        "rungs-eager": rungs("--eager"),
        "rungs-captured": rungs("--captured"),
        "fix-hf": [*FIX, f"{TARGETS}/hf_decoder.py:decode", *QUICK, "-o", f"{out}/fix-hf.json"],
        "fix-recommender": [
            *FIX,
            f"{TARGETS}/other_steps.py:recommender",
            *QUICK,
            "-o",
            f"{out}/fix-recommender.json",
        ],
        "fix-gpu-bound": [
            *FIX,
            f"{TARGETS}/other_steps.py:gpu_bound",
            *QUICK,
            "-o",
            f"{out}/fix-gpu-bound.json",
        ],
        "fix-large-batch": [
            *FIX,
            "decoder",
            "--batch",
            "512",
            "--only",
            "async-input,async-output,cuda-graph",
            "--steps",
            "10",
            "--repeat",
            "6",
            "-o",
            f"{out}/fix-large-batch.json",
        ],
        "savings": [sys.executable, str(HERE / "savings.py"), "record", f"{out}/savings"],
        "profile": [
            sys.executable,
            "-m",
            "hostgap",
            "profile",
            "--batch",
            "1,8,64,256",
            "--no-stack",
            "--force",
            "-o",
            f"{out}/profile",
        ],
    }


def main() -> None:
    """Run the parts that are named, or all."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    known = parts(out)
    for name in sys.argv[2:] or known:
        begun = time.perf_counter()
        print(f"== {name}: {' '.join(known[name])}", flush=True)
        code = subprocess.run(known[name], check=False).returncode
        print(f"== {name}: exit {code} after {time.perf_counter() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
