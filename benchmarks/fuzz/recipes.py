"""From numbers to files: an input is a seed and a list of mutations, each drawn by one number.

A recipe `[a, b, c]` takes the seed that `a` chooses and applies the mutations that `b` and `c`
draw, so the few numbers reproduce the input, and a fuzzer can lengthen, shorten and mix recipes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import mutate_bytes
import mutate_json
import mutate_sqlite
import values
from seeds import Seed

from hostgap.profiling import measurement as m

LONGEST = 8  # numbers of a recipe
WIDTH = 4  # bytes of a number


@dataclass(frozen=True)
class Case:
    """An input: files by name, the one to analyze ("" is their folder), and options for it.

    `more` says what is done with it beside the diagnosis and its JSON: the text and markdown
    reports ("reports"), a redacted copy that is read back ("redact"), or tables of pandas
    ("tables"). All of them together would take longer than all else.
    """

    files: dict[str, bytes]
    entry: str
    options: dict[str, Any] = field(default_factory=dict)
    judging: dict[str, Any] = field(default_factory=dict)
    more: str = "reports"


def recipe_of(seed: int, number: int) -> list[int]:
    """The recipe of input `number` of an unguided run."""
    rng = random.Random(f"{seed}/{number}")
    return [rng.randrange(2**32) for _ in range(1 + rng.choice((0, 1, 1, 2, 2, 3, 4, 6, 7)))]


def packed(recipe: Sequence[int]) -> bytes:
    """The recipe as bytes, which is what a fuzzer keeps."""
    return b"".join(number.to_bytes(WIDTH, "little") for number in recipe)


def unpacked(data: bytes) -> list[int]:
    """The recipe of some bytes, whatever they are."""
    data = data[: LONGEST * WIDTH]
    return [
        int.from_bytes(data[at : at + WIDTH], "little") for at in range(0, len(data) or 1, WIDTH)
    ]


def made(recipe: Sequence[int], seeds: Sequence[Seed]) -> Case:
    """The input of a recipe."""
    first = random.Random(recipe[0])
    seed = first.choice(seeds)
    rngs = [random.Random(number) for number in recipe[1:]]
    structured = [rng for rng in rngs if rng.random() < 0.75]
    bytewise = [rng for rng in rngs if rng not in structured]
    if seed.raw:
        data = seed.raw
        bytewise, structured = rngs, []
    elif seed.tables:
        tables = mutate_sqlite.copied(seed.tables)
        for rng in structured:
            tables = mutate_sqlite.mutate(tables, rng)
        data = mutate_sqlite.written(tables, first)
    else:
        document = json.loads(_text(seed.name, seed))
        others = [each.document for each in seeds if each.document is not None]
        for rng in structured:
            document = mutate_json.mutate(document, rng, others)
        data = mutate_json.written(document, first)
    for rng in bytewise:
        data = mutate_sqlite.damage(data, rng) if seed.tables else _bytes(data, rng)
    name = "t.sqlite" if seed.tables else "t.json"
    kind = first.random()
    options, judging = _options(first) if kind < 0.3 else ({}, {})
    if kind > 0.9:
        return _run_dir(name, data, [*structured, first], options)
    return Case(
        {name: data},
        name,
        options,
        judging,
        first.choice(("redact", "tables", "reports", "reports", "", "", "", "")),
    )


_texts: dict[str, bytes] = {}


def _text(name: str, seed: Seed) -> bytes:
    """The seed's document, written once."""
    if name not in _texts:
        _texts[name] = values.dumped(seed.document)
    return _texts[name]


def _bytes(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.2:
        return mutate_bytes.compressed(data, rng)
    return mutate_bytes.damage(data, rng)


def _options(rng: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    end = (None, 0, 1, 2, -1, 5, 10**30, -(10**30))
    options: dict[str, Any] = {}
    judging: dict[str, Any] = {}
    for _ in range(rng.choice((1, 1, 2))):
        kind = rng.randrange(6)
        if kind == 0:
            options["window"] = "trace"
        elif kind == 1:
            options["steps"] = (rng.choice(end), rng.choice(end))
        elif kind == 2:
            options["step_marker"] = rng.choice((".*", "ProfilerStep", "aten::", "x*", "", "step"))
        elif kind == 3:
            options["device"] = rng.choice((0, "0", 1, "x", -1))
        elif kind == 4:
            judging["gpu_price"] = rng.choice((1e-6, 2.5, 1e9))
            judging["tokens_per_step"] = rng.choice((None, 1e-6, 4.0, 1e9))
        else:
            judging["unprofiled_step_ms"] = rng.choice((1e-9, 0.001, 1.5, 1e6, 1e300))
    return options, judging


# --- run directories ---------------------------------------------------------------------------


def _run_dir(
    name: str, data: bytes, rngs: Sequence[random.Random], options: dict[str, Any]
) -> Case:
    """A run directory around a trace, with a measurement that is not what was measured."""
    document = msgspec.to_builtins(_measurement(name))
    for rng in rngs:
        for _ in range(rng.choice((0, 1, 1, 3))):
            _change(document, rng)
    rng = rngs[-1]
    text = values.dumped(document)
    if rng.random() < 0.15:
        text = mutate_bytes.damage(text, rng)
    return Case({"measurement.json": text, name: data}, "", options)


def _change(document: Any, rng: random.Random) -> None:
    """One value somewhere inside replaced, scaled, dropped or repeated."""
    spot, key = document, rng.choice(list(document))
    while isinstance(spot[key], dict | list) and spot[key] and rng.random() < 0.85:
        spot = spot[key]
        key = rng.choice(list(spot)) if isinstance(spot, dict) else rng.randrange(len(spot))
    old, kind = spot[key], rng.randrange(6)
    numeric = isinstance(old, int | float) and not isinstance(old, bool)
    if kind < 3 and numeric:
        spot[key] = rng.choice((0, -old, old * 1e-6, old * 1e6, old * 1e300, -1, 1e-300, None))
    elif kind == 3 and isinstance(old, list):
        spot[key] = old * rng.choice((0, 2, 40))
    elif kind == 4 and isinstance(spot, dict) and len(spot) > 1:
        del spot[key]
    else:
        spot[key] = values.value(rng)


def _measurement(file: str) -> m.Measurement:
    def estimate(ns: float) -> m.Estimate:
        return m.Estimate(median_ns=ns, low_ns=ns * 0.99, high_ns=ns * 1.01)

    return m.Measurement(
        schema=m.SCHEMA,
        target="decoder",
        options={"preset": "small", "batch": 1},
        status="complete",
        problems=["a pass failed"],
        environment=m.Environment(
            gpu="NVIDIA H200",
            driver="580.159.04",
            torch="2.11.0",
            cuda="13.0",
            python="3.12.3",
            hostgap="0.1.0",
            cpus=16,
            sm_mhz=1980,
            memory_mhz=3201,
        ),
        timing=m.Timing(step=estimate(1.5e6), steps=30, blocks_ns=[1.49e6, 1.5e6, 1.51e6]),
        span_ns=1.1e6,
        graphs=[m.GraphTimes(call_ns=430_000, span_ns=1.2e6)],
        host=m.HostTimes(
            wall_ns=1.5e6,
            cpu_ns=1.0e6,
            run_delay_ns=400_000,
            throttled_ns=0,
            involuntary_switches=0.1,
            gc_ns=1000,
            gc_collections=0.1,
            threads=9,
            cores=2,
        ),
        inflation=[
            m.Inflation(
                what=what, nodes=nodes, unprofiled_ns=8_700, cuda_ns=9_800, cpu_cuda_ns=11_100
            )
            for what, nodes in (("eager launch", None), ("graph launch", 10), ("graph span", 10))
        ],
        sites=[m.Site(what="item", file="a.py", line=3, function="step", per_step=1.0)],
        passes=[
            m.Pass(mode="cpu+cuda", file=file, step=estimate(2e6)),
            m.Pass(mode="cuda", file=file, step=estimate(1.8e6)),
        ],
        batches=[
            m.BatchTiming(batch=b, step=estimate(1e6 * b), span_ns=1e6 * b) for b in (1, 2, 4)
        ],
        tokens_per_step=1,
        regions=[
            m.Region(file="a.py", line=3, function="step", graph_ns=2e6, eager_ns=1.5e6),
            m.Region(file=None, line=None, function=None, graph_ns=1.0, eager_ns=2.0),
        ],
    )
