"""How long `hostgap --help` takes, as a whole process, against importing click alone.

python benchmarks/bench_startup.py [--rounds 41]
"""

from __future__ import annotations

import argparse
import sys

from measure import Command, interleaved, machine, script

HELP, CLICK, BARE = "hostgap --help", "import click", "python alone"
MOST = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the start of hostgap.")
    parser.add_argument("--rounds", type=int, default=41, help="runs of each command [41]")
    options = parser.parse_args()
    results = interleaved(
        [
            Command(HELP, [script("hostgap"), "--help"]),
            Command(CLICK, [sys.executable, "-c", "import click"]),
            Command(BARE, [sys.executable, "-c", "pass"]),
        ],
        options.rounds,
    )
    print("\n".join(f"{key}: {value}" for key, value in machine(("hostgap", "click")).items()))
    print("\n| | CPU ms | wall ms | CPU / import click | wall / import click |")
    print("|---|---:|---:|---:|---:|")
    for name in results.runs:
        print(
            f"| {name} | {results.median(name, 'cpu_s') * 1e3:.1f} "
            f"| {results.median(name, 'wall_s') * 1e3:.1f} "
            f"| {results.ratio(name, CLICK):.2f} | {results.ratio(name, CLICK, 'wall_s'):.2f} |"
        )
    measured = results.ratio(HELP, CLICK, "wall_s")
    verdict = "met" if measured <= MOST else "MISSED"
    print(f"\ntarget: wall time over that of `import click` at most {MOST:g}: ", end="")
    print(f"{measured:.2f}, {verdict}")


if __name__ == "__main__":
    main()
