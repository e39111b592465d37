"""Fuzzes what reads hostgap's own files: gate, compare and report, with results that are none.

    python benchmarks/fuzz/results.py --inputs 3000

A diagnosis, a measurement, a report of fixes and a baseline are changed in a few places each and
given to the commands, in one process. Exit code 70, an error of more than two lines, more than ten
seconds of CPU time or control characters in what is printed are failures.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import limits  # noqa: E402
import msgspec  # noqa: E402
import mutate_bytes  # noqa: E402
import recipes  # noqa: E402
import values  # noqa: E402

from hostgap.cli import run  # noqa: E402

SAMPLES = ROOT / "sample_traces"
COMMANDS = (
    ("gate", "{result}", "--budget", "sync_calls_per_step=1", "--budget", "step_time=5"),
    ("gate", "{good}", "--baseline", "{baseline}"),
    ("gate", "{result}", "--baseline", "{base}"),
    ("compare", "{good}", "{result}"),
    ("compare", "{result}", "{good}"),
    ("report", "{result}", "-o", "{out}", "--force"),
    ("report", "{fix}", "-o", "{out}", "--force"),
    ("gate", "{run}", "--baseline", "{base}"),
)
_UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hostgap-fuzz-") as name:
        return _run(arguments, Path(name))


def _run(arguments: argparse.Namespace, folder: Path) -> int:
    originals = _originals(folder)
    limits.prepare()
    codes: Counter[str] = Counter()
    failures: dict[str, int] = {}
    began = time.monotonic()
    for number in range(arguments.first, arguments.first + arguments.inputs):
        rng = random.Random(f"{arguments.seed}/{number}")
        command = _made(rng, originals, folder)
        code, error = _ran(command)
        codes[f"{command[0]} {code}"] += 1
        if error and error not in failures:
            failures[error] = number
            print(f"\n== input {number}: {' '.join(command)}\n{error}", flush=True)
    figures = {
        "inputs": arguments.inputs,
        "seconds": round(time.monotonic() - began, 1),
        "exit codes": dict(codes),
        "failures": len(failures),
        "peak_mb": round(limits.peak() / 1e6, 1),
    }
    print(json.dumps(figures, indent=2))
    return 1 if failures else 0


def _originals(folder: Path) -> dict[str, Any]:
    """One of each kind of file, as hostgap writes them."""
    trace = str(SAMPLES / "eager_item.json.gz")
    good, base = folder / "good.json", folder / "base.json"
    _quietly(["analyze", trace, "-o", str(good)])
    _quietly(["gate", trace, "--baseline", str(base), "--update-baseline"])
    found = {"result": json.loads(good.read_bytes()), "baseline": json.loads(base.read_bytes())}
    found["run"] = msgspec.to_builtins(recipes._measurement("t.json.gz"))
    ladder = next(iter(sorted((ROOT / "reports" / "h200").rglob("*.json"))), None)
    for path in sorted((ROOT / "reports" / "h200").rglob("*.json")):
        if b"hostgap.fix" in path.read_bytes()[:300]:
            ladder = path
    found["fix"] = json.loads(ladder.read_bytes()) if ladder else found["result"]
    run_dir = folder / "run"
    run_dir.mkdir()
    (run_dir / "t.json.gz").write_bytes((SAMPLES / "gpu_bound.json.gz").read_bytes())
    return found


def _made(rng: random.Random, originals: dict[str, Any], folder: Path) -> list[str]:
    """The command of one input, with the changed file that it reads."""
    command = rng.choice(COMMANDS)
    names = {"good": folder / "good.json", "base": folder / "base.json", "out": folder / "o.html"}
    names |= {"run": folder / "run"}
    for kind, original in originals.items():
        if f"{{{kind}}}" not in command:
            continue
        document = json.loads(json.dumps(original))
        for _ in range(rng.choice((0, 1, 1, 2, 5))):
            recipes._change(document, rng)
        data = values.dumped(document)
        if rng.random() < 0.1:
            data = mutate_bytes.damage(data, rng)
        path = folder / "run" / "measurement.json" if kind == "run" else folder / f"{kind}.json"
        path.write_bytes(data)
        names.setdefault(kind, path)
    return [part.format(**names) for part in command]


def _ran(command: list[str]) -> tuple[int, str]:
    """Exit code, and what is wrong, "" where nothing is."""
    out, error = _Text(), _Text()
    try:
        with (
            limits.limited(),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(error),
        ):
            code = run(command)
    except limits.Hung:
        return -1, "took too long"
    except Exception as found:  # noqa: BLE001  this is what is looked for
        return -1, f"escaped: {type(found).__name__}: {found}"[:300]
    said = error.getvalue()
    if code == 70:
        return code, re.sub(r"\d+", "0", said)[:200]
    if found := _UNSAFE.search(out.getvalue() + said):
        return code, f"prints {found[0]!r}"
    lines = [line for line in said.splitlines() if "warning:" not in line and "note:" not in line]
    if code == 2 and len(lines) > 2:
        return code, f"an error of {len(lines)} lines"
    return code, ""


class _Text(io.TextIOWrapper):
    """A stream of text whose bytes are kept: some commands write to its buffer."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors="replace", write_through=True)

    def getvalue(self) -> str:
        """What was written."""
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode("utf-8", "replace")


def _quietly(command: list[str]) -> None:
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        code = run(command)
    if code:
        raise SystemExit(f"{' '.join(command)}: exit code {code}")


if __name__ == "__main__":
    sys.exit(main())
