"""Measure hostgap analyze on an Nsight Systems export of a million rows.

    python benchmarks/bench_nsys.py [--rounds 5] [--export x.sqlite]

Against it: reading the columns that hostgap uses with sqlite3 alone, and `nsys stats` on the same
file where nsys is on the PATH. Every row is a whole process: CPU time and peak memory.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import sys
from pathlib import Path

from measure import Command, interleaved

ROOT = Path(__file__).resolve().parent
SOURCE = ROOT.parent / "sample_traces" / "eager_item.sqlite"
LARGE = ROOT / "data" / "large.sqlite"
ROWS = 1_000_000
TIMED = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "start end",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start end",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start end",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "start end",
    "NVTX_EVENTS": "start end",
}
COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "start end deviceId streamId correlationId globalPid graphNodeId "
    "demangledName",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start end deviceId streamId correlationId globalPid graphNodeId "
    "bytes copyKind srcKind dstKind",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end globalTid correlationId nameId",
    "NVTX_EVENTS": "start end eventType globalTid textId",
}


def make_large() -> None:
    """Lay the sample export end to end until it has a million rows of GPU ops and API calls."""
    LARGE.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(SOURCE, LARGE)
    database = sqlite3.connect(LARGE)
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    timed = {table: columns.split() for table, columns in TIMED.items() if table in tables}
    count = "SELECT (SELECT count(*) FROM {}) + (SELECT count(*) FROM {})"
    (rows,) = database.execute(count.format(*list(COLUMNS)[:3:2])).fetchone()
    (low, high) = database.execute(
        "SELECT min(start), max(end) FROM CUPTI_ACTIVITY_KIND_RUNTIME"
    ).fetchone()
    (ids,) = database.execute(
        "SELECT max(correlationId) FROM CUPTI_ACTIVITY_KIND_RUNTIME"
    ).fetchone()
    for table, times in timed.items():
        names = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        database.execute(f"CREATE TEMP TABLE piece AS SELECT * FROM {table}")
        for copy in range(1, -(-ROWS // rows)):
            shift = copy * (high - low + 1_000_000)
            moved = ", ".join(
                f'"{name}" + {shift}'
                if name in times
                else f'"{name}" + {copy * (ids + 1)}'
                if name == "correlationId"
                else f'"{name}"'
                for name in names
            )
            database.execute(f"INSERT INTO {table} SELECT {moved} FROM temp.piece")
        database.execute("DROP TABLE temp.piece")
    database.commit()
    database.close()


def read_alone(path: str) -> None:
    """Read the columns hostgap uses, and keep nothing."""
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    for table, columns in COLUMNS.items():
        cursor = database.execute(f"SELECT {', '.join(columns.split())} FROM {table}")
        while cursor.fetchmany(16384):
            pass


def main() -> None:
    """Make the export if need be, measure, print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--export", type=Path, help="an export of your own")
    parser.add_argument("--read-alone", metavar="EXPORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read_alone:
        read_alone(options.read_alone)
        return
    path = options.export or LARGE
    if options.export is None and not LARGE.exists():
        make_large()
    python = sys.executable
    commands = [
        Command("hostgap analyze", [python, "-m", "hostgap", "analyze", path, "--format", "json"]),
        Command("sqlite3 alone", [python, __file__, "--read-alone", path]),
    ]
    if nsys := shutil.which("nsys"):
        commands.append(Command("nsys stats", [nsys, "stats", "-q", "-r", "cuda_api_sum", path]))
    print(f"{path.name}, {path.stat().st_size / 1e6:.1f} MB\n")
    print("| | CPU s | peak MB | CPU / sqlite3 alone |\n|---|---:|---:|---:|")
    results = interleaved(commands, options.rounds)
    for command in commands:
        name = command.name
        cpu, peak = results.median(name, "cpu_s"), results.median(name, "peak_mb")
        ratio = results.ratio(name, "sqlite3 alone")
        print(f"| {name} | {cpu:.2f} | {peak:,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
