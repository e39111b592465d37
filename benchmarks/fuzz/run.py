"""Fuzzes the whole path from a file to its reports, redaction included, in one process.

    python benchmarks/fuzz/run.py --inputs 100000                    # unguided, in order
    python benchmarks/fuzz/run.py --inputs 100000 --guided           # by coverage, needs atheris
    python benchmarks/fuzz/run.py --recipe 1234.99.3                 # one input again

Every failure is shown once, with the recipe that reproduces it; the first of each kind is kept
with --failures DIR. Exits with 1 where there was any.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[2]))

THOROUGH = 40  # one input in so many is checked against the JSON schema


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--guided", action="store_true", help="by coverage, with atheris")
    parser.add_argument("--seeds", type=Path, action="append", default=[], metavar="DIR")
    parser.add_argument("--recipe", help="numbers with dots between them")
    parser.add_argument("--failures", type=Path, metavar="DIR")
    parser.add_argument("--corpus", type=Path, metavar="DIR", help="what a guided run keeps")
    parser.add_argument("--output", type=Path, metavar="FILE", help="figures as JSON")
    arguments = parser.parse_args()
    if arguments.guided:
        import atheris

        with atheris.instrument_imports(include=["hostgap"], enable_loader_override=False):
            run = _Run(arguments)
        return _guided(run, arguments, atheris)
    run = _Run(arguments)
    if arguments.recipe:
        run.one([int(number) for number in arguments.recipe.split(".")])
        return run.finished()
    from recipes import recipe_of

    for number in range(arguments.first, arguments.first + arguments.inputs):
        run.one(recipe_of(arguments.seed, number))
        if run.elapsed() > arguments.seconds:
            break
    return run.finished()


def _guided(run: _Run, arguments: argparse.Namespace, atheris: Any) -> int:
    """Let libFuzzer keep the recipes that reach new code, and lengthen and mix those."""
    from recipes import LONGEST, WIDTH, packed, unpacked

    def one(data: bytes) -> None:
        run.one(unpacked(data))
        if run.inputs >= arguments.inputs or run.elapsed() > arguments.seconds:
            os._exit(run.finished())

    def changed(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        recipe = unpacked(data)
        kind = rng.randrange(8)
        if kind < 3 and len(recipe) < LONGEST:
            recipe.append(rng.randrange(2**32))
        elif kind == 3:
            recipe = [rng.randrange(2**32), *recipe[1:]]
        elif kind < 6 and len(recipe) > 1:
            recipe[rng.randrange(1, len(recipe))] = rng.randrange(2**32)
        elif kind == 6 and len(recipe) > 2:
            del recipe[rng.randrange(1, len(recipe))]
        else:
            recipe = [rng.randrange(2**32) for _ in range(rng.randrange(2, 6))]
        return packed(recipe)[:most]

    def crossed(one: bytes, other: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        first, second = unpacked(one), unpacked(other)
        return packed([*first, *second[rng.randrange(len(second)) :]][:LONGEST])[:most]

    length = LONGEST * WIDTH
    options = [sys.argv[0], "-timeout=1000000", f"-seed={arguments.seed}", f"-max_len={length}"]
    options += ["-rss_limit_mb=0", "-len_control=0", "-print_final_stats=1"]
    if arguments.corpus:
        arguments.corpus.mkdir(parents=True, exist_ok=True)
        options.append(str(arguments.corpus))
    atheris.Setup(options, one, custom_mutator=changed, custom_crossover=crossed)
    atheris.Fuzz()
    return run.finished()


class _Run:
    """The inputs so far."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import drive
        import limits
        import recipes
        import seeds

        self._drive: Callable[..., Any] = drive.drive
        self._made: Callable[..., Any] = recipes.made
        self._limits = limits
        self._arguments = arguments
        self._seeds = seeds.seeds(arguments.seeds)
        self._current = None  # a file with the recipe that runs, for what ends the process
        if arguments.failures:
            arguments.failures.mkdir(parents=True, exist_ok=True)
            self._current = (arguments.failures / "running").open("w", encoding="ascii")
        self._folder = tempfile.TemporaryDirectory(prefix="hostgap-fuzz-")
        self.inputs = 0
        self.reached: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.first: dict[str, str] = {}
        self.slowest = (0.0, "")
        # once, so that what is imported late counts as nobody's memory or time
        for _ in range(2):
            drive.drive(recipes.made([1], self._seeds), Path(self._folder.name), thorough=True)
        limits.prepare()
        self._began = time.monotonic()

    def elapsed(self) -> float:
        """Seconds since the first input."""
        return time.monotonic() - self._began

    def one(self, recipe: Sequence[int]) -> None:
        """Run one input and note how it went."""
        name = ".".join(map(str, recipe))
        if self._current is not None:
            self._current.seek(0)
            self._current.write(f"{name}\n")
            self._current.flush()
        case = self._made(recipe, self._seeds)
        before = time.monotonic()
        result = self._drive(case, Path(self._folder.name), thorough=self.inputs % THOROUGH == 0)
        self.slowest = max(self.slowest, (time.monotonic() - before, name))
        self.inputs += 1
        self.reached[result.reached] += 1
        if result.failure is not None:
            self._failed(result.failure, name, case)
        if self.inputs % 1000 == 0:
            self._report()

    def _failed(self, failure: Any, name: str, case: Any) -> None:
        self.failures[failure.key] += 1
        if failure.key in self.first:
            return
        self.first[failure.key] = name
        print(f"\n== {failure.key}\n   --recipe {name}\n{failure.text}", flush=True)
        if self._arguments.failures:
            folder = self._arguments.failures / f"{len(self.first):03}"
            folder.mkdir(parents=True, exist_ok=True)
            for file, data in case.files.items():
                (folder / file).write_bytes(data)
            about = f"{failure.key}\n{name}\n{case.options} {case.judging}\n{failure.text}"
            (folder / "failure.txt").write_text(about, encoding="utf-8", errors="replace")

    def figures(self) -> dict[str, Any]:
        """What there is to publish."""
        return {
            "inputs": self.inputs,
            "seconds": round(self.elapsed(), 1),
            "seeds": len(self._seeds),
            "reached": dict(self.reached),
            "failures": dict(self.failures),
            "recipes": self.first,
            "slowest_s": round(self.slowest[0], 3),
            "slowest": self.slowest[1],
            "peak_mb": round(self._limits.peak() / 1e6, 1),
        }

    def _report(self) -> None:
        shown = {key: value for key, value in self.figures().items() if key != "recipes"}
        print(json.dumps(shown), flush=True)
        self._written()

    def _written(self) -> None:
        if self._arguments.output:
            text = json.dumps(self.figures(), indent=2) + "\n"
            self._arguments.output.write_text(text, encoding="utf-8")

    def finished(self) -> int:
        """Say how it went; the exit code."""
        print(json.dumps(self.figures(), indent=2), flush=True)
        self._written()
        self._folder.cleanup()
        return 1 if self.failures else 0


if __name__ == "__main__":
    sys.exit(main())
