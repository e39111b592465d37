"""Make the benchmark traces by repeating the bundled sample traces.

    python benchmarks/make_trace.py            # both
    python benchmarks/make_trace.py stacks     # one of them

A benchmark trace is one Kineto trace of many steps. Its pieces are the sample traces (5 steps
each), laid end to end on one time axis: times are shifted, correlation ids, external ids, event
indices and Python frame ids renumbered, steps counted on, processes merged into one. Nothing else
changes, so that every step keeps its kernels, launches, frames and durations, in the layout Kineto
writes. What the profiler itself does at the end of a sample (its cudaDeviceSynchronize and the
frames around it) stays only at the end of the last piece, and frames that enclose a whole sample
end where the next piece begins.

The same arguments give the same bytes. A piece is written section by section (the operators of all
pieces, then all frames, then GPU work and CUDA calls, then annotations), as Kineto orders a trace,
so memory holds the distinct samples and never the result.
"""

from __future__ import annotations

import argparse
import gzip
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

HERE = Path(__file__).resolve().parent
SAMPLES = HERE.parent / "sample_traces"
DATA = HERE / "data"

# preset -> how often each sample is repeated
PRESETS: dict[str, dict[str, int]] = {
    # about 300 MB and 930k events: eager steps, graph replays, a few compiled steps
    "large": {"eager": 11, "cuda_graph": 17, "compile": 1},
    # about 56 MB and 140k events, a quarter of them Python frames
    "stacks": {"cuda_graph": 7, "compile": 1, "compile_graphs": 2},
}

SECTIONS = ("ops", "frames", "gpu", "annotations")
IDS = ("External id", "Ev Idx", "correlation", "Python id")  # each with a numbering of its own
SAME_ID = {"id": "correlation", "Python parent id": "Python id"}  # key -> the key it refers to
GAP_NS = 20_000  # between the last event of a piece and the first of the next

_SEPARATOR = re.compile(r"\n  \},\n  \{\n")
_SLOT = re.compile(
    r'"(ts|External id|Ev Idx|correlation|Python id|Python parent id|id)": (\d[\d.]*)'
    r'|"ProfilerStep#(\d+)"'
)
_FIELD = {key: re.compile(rf'"{key}": "?([^",\n]+)') for key in ("ph", "cat", "ts", "dur")}
_NUMBER = {key: re.compile(rf'"{key}": (\d+)') for key in ("id", "correlation")}
_DURATION = re.compile(r'"dur": ([\d.]+)')
_HOST = frozenset({"user_annotation", "cpu_op", "python_function", "cuda_runtime", "cuda_driver"})
_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


@dataclass
class Section:
    """Text in pieces: literals, and between them the numbers that change with every repetition.

    `slots[kind]` lists (index into `parts`, value in the sample); kinds are "ts" (ns), "dur" (ns;
    only of events that outlast the piece), "step" and those of `IDS`.
    """

    parts: list[str] = field(default_factory=list)
    slots: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)  # of the events in slots["dur"], ns
    events: int = 0


@dataclass
class Sample:
    """One sample trace as a template. Times are ns and relative to its first host event."""

    header: str
    footer: str
    sections: dict[str, Section]  # for a piece that another follows
    last_sections: dict[str, Section]  # for the last piece: the profiler's own sync included
    metadata: list[str]
    pid: str
    start: int  # of the first host event, on the sample's own clock
    host_end: int  # of the last step on the host
    gpu_start: int
    gpu_end: int
    end: int
    steps: int
    ranges: dict[str, tuple[int, int]]  # kind of id -> smallest and largest


def ns(text: str) -> int:
    """Decimal microseconds as integer ns."""
    whole, _, decimals = text.partition(".")
    return int(whole) * 1000 + int(decimals.ljust(3, "0"))


def us(value: int) -> str:
    """Integer ns as the microseconds Kineto writes."""
    return f"{value // 1000}.{value % 1000:03d}"


def _get(event: str, key: str) -> str:
    match = _FIELD[key].search(event)
    return match[1] if match else ""


def _number(event: str, key: str) -> int:
    match = _NUMBER[key].search(event)
    return int(match[1]) if match else 0


def read_sample(name: str) -> Sample:
    """Take a sample trace apart."""
    with gzip.open(SAMPLES / f"{name}.json.gz", "rt", encoding="utf-8") as file:
        text = file.read()
    opening = '"traceEvents": [\n  {\n'
    at = text.index(opening) + len(opening)
    until = text.rindex("\n  }\n  ],")
    header, footer = text[:at], text[until:]
    events = _SEPARATOR.split(text[at:until])
    pid = next(m[1] for e in events if (m := re.search(r'"pid": (\d+)', e)) and m[1] != "0")

    timed: list[tuple[str, str, int, int, str]] = []  # section, category, start, end, text
    metadata = []
    for event in events:
        phase, category = _get(event, "ph"), _get(event, "cat")
        if phase in ("M", "i") or category == "Trace":
            metadata.append(event)
            continue
        start = ns(_get(event, "ts"))
        end = start + (ns(_get(event, "dur")) if phase == "X" else 0)
        if category in ("user_annotation", "cpu_op"):
            section = "ops"
        elif category == "python_function":
            section = "frames"
        elif category == "gpu_user_annotation":
            section = "annotations"
        else:
            section = "gpu"
        timed.append((section, category, start, end, event))

    steps = [e for e in timed if e[1] == "user_annotation" and "ProfilerStep#" in e[4]]
    last_step_end = max(end for *_, end, _ in steps)
    base = min(start for _, category, start, _, _ in timed if category in _HOST)
    gpu = [(start, end) for _, category, start, end, _ in timed if category in _GPU]
    # after the last step the host runs only the profiler's own code
    own = {
        _number(text, "correlation")
        for _, category, start, _, text in timed
        if category in ("cuda_runtime", "cuda_driver") and start >= last_step_end
    }

    def profilers_own(event: tuple[str, str, int, int, str]) -> bool:
        _, category, start, _, text = event
        if category == "ac2g":
            return _number(text, "id") in own
        return start >= last_step_end and (category in _HOST or category == "cuda_sync")

    kept = [event for event in timed if not profilers_own(event)]
    sample = Sample(
        header=header,
        footer=footer,
        sections=_sections(kept, base, last_step_end - base, pid),
        last_sections=_sections(timed, base, None, pid),
        metadata=metadata,
        pid=pid,
        start=base,
        host_end=last_step_end - base,
        gpu_start=min(start for start, _ in gpu) - base,
        gpu_end=max(end for _, end in gpu) - base,
        end=max(end for _, _, _, end, _ in timed) - base,
        steps=len(steps),
        ranges={},
    )
    for kind in (*IDS, "step"):
        values = [
            value
            for section in sample.last_sections.values()
            for value in section.slots.get(kind, ([], []))[1]
        ]
        sample.ranges[kind] = (min(values), max(values)) if values else (0, -1)
    return sample


def _sections(
    events: list[tuple[str, str, int, int, str]], base: int, clip: int | None, pid: str
) -> dict[str, Section]:
    """The events as templates; host events that end after `clip` get a slot for their duration."""
    sections = {name: Section() for name in SECTIONS}
    process = re.compile(rf'("[pt]id": ){pid}\b')
    for name, category, start, end, text in events:
        section = sections[name]
        text = process.sub(r"\g<1>PID", text)
        section.events += 1
        open_end = clip is not None and category in _HOST and end - base > clip
        _cut(section, text, base, (start, end) if open_end else None)
    return sections


def _cut(section: Section, text: str, base: int, open_end: tuple[int, int] | None) -> None:
    """Append one event to a section, its changing numbers as slots."""
    found = [
        (m.start(2), m.end(2), m[1], m[2]) if m[1] else (m.start(3), m.end(3), "step", m[3])
        for m in _SLOT.finditer(text)
    ]
    if open_end is not None and (duration := _DURATION.search(text)):
        found.append((duration.start(1), duration.end(1), "dur", duration[1]))
        section.ends.append(open_end[1] - base)
        found.sort()
    last = 0
    pieces = ["  {\n"]
    for begin, finish, key, value in found:
        kind = SAME_ID.get(key, key)
        number = ns(value) - base if key == "ts" else ns(value) if key == "dur" else int(value)
        if number == 0 and kind in ("External id", "correlation"):
            continue  # none
        pieces[-1] += text[last:begin]
        indices, values = section.slots.setdefault(kind, ([], []))
        indices.append(len(section.parts) + len(pieces))
        values.append(number)
        pieces += ["", ""]
        last = finish
    pieces[-1] += text[last:] + "\n  },\n"
    section.parts += pieces


@dataclass
class Piece:
    """One repetition of a sample: where it lies in time and where its numberings begin."""

    sample: Sample
    offset: int  # ns on the trace's clock
    length: int  # ns until the next piece begins
    shifts: dict[str, int]  # kind of id or "step" -> added to the sample's own
    last: bool

    def section(self, name: str) -> Section:
        return (self.sample.last_sections if self.last else self.sample.sections)[name]


def spread(counts: dict[str, int]) -> list[str]:
    """The samples in an order that mixes them evenly."""
    places = [
        ((i + 0.5) / count, order, name)
        for order, (name, count) in enumerate(counts.items())
        for i in range(count)
    ]
    return [name for *_, name in sorted(places)]


def lay_out(names: list[str], samples: dict[str, Sample]) -> list[Piece]:
    """Pieces end to end; GPU work of one begins after that of the piece before."""
    offset = samples[names[0]].start
    following = dict.fromkeys((*IDS, "step"), 1)
    pieces = []
    for at, name in enumerate(names):
        sample = samples[name]
        shifts = {}
        for kind, (low, high) in sample.ranges.items():
            shifts[kind] = following[kind] - low
            following[kind] += high - low + 1
        last = at + 1 == len(names)
        length = sample.end
        if not last:
            gpu_start = samples[names[at + 1]].gpu_start
            length = max(sample.host_end, sample.gpu_end - gpu_start) + GAP_NS
        pieces.append(Piece(sample, offset, length, shifts, last))
        offset += length
    return pieces


def write_piece(out: TextIO, piece: Piece, name: str, pid: str) -> None:
    """Write one section of one piece."""
    section = piece.section(name)
    parts = section.parts
    for kind, (indices, values) in section.slots.items():
        numbers: Iterator[str]
        if kind == "ts":
            offset = piece.offset
            numbers = (us(offset + value) for value in values)
        elif kind == "dur":
            cut = piece.length - 1_000
            numbers = (
                us(value - max(0, end - cut))
                for value, end in zip(values, section.ends, strict=True)
            )
        else:
            shift = piece.shifts[kind]
            numbers = (str(value + shift) for value in values)
        for index, number in zip(indices, numbers, strict=True):
            parts[index] = number
    out.write("".join(parts).replace("PID", pid))


def tail(pieces: list[Piece], names: list[str], pid: str) -> list[str]:
    """Metadata of all samples, each once, then the profiler's span and its end."""
    first, last = pieces[0].sample, pieces[-1]
    end = last.offset + last.length
    seen: dict[str, None] = {}
    for piece in dict(zip(names, pieces, strict=True)).values():
        for event in piece.sample.metadata:
            if _get(event, "ph") == "M":
                event = re.sub(r'"ts": [\d.]+', f'"ts": {us(first.start)}', event)
                seen[event.replace(piece.sample.pid, pid)] = None
    events = list(seen)
    for event in first.metadata:
        if _get(event, "ph") == "M":
            continue
        if _get(event, "cat") == "Trace":
            span = end - ns(_get(event, "ts"))
            event = _DURATION.sub(f'"dur": {us(span)}', event)
        elif "Record Window End" in event:
            event = re.sub(r'"ts": [\d.]+', f'"ts": {us(end + GAP_NS)}', event)
        events.append(event)
    return events


def make(counts: dict[str, int], path: Path, log: Callable[[str], None] = lambda _: None) -> None:
    """Write a trace that repeats every sample `counts[name]` times."""
    names = spread(counts)
    samples = {name: read_sample(name) for name in counts}
    pieces = lay_out(names, samples)
    first = pieces[0].sample
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    with partial.open("w", encoding="utf-8", newline="\n") as out:
        out.write(first.header.removesuffix("  {\n"))
        for section in SECTIONS:
            for piece in pieces:
                write_piece(out, piece, section, first.pid)
        ending = tail(pieces, names, first.pid)
        out.write("  {\n" + "\n  },\n  {\n".join(ending) + first.footer)
    partial.replace(path)
    events = sum(piece.section(s).events for piece in pieces for s in SECTIONS) + len(ending)
    steps = sum(piece.sample.steps for piece in pieces)
    size = path.stat().st_size / 1e6
    log(f"{path.name}: {size:.1f} MB, {events:,} events, {steps} steps")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the benchmark traces.")
    parser.add_argument("presets", nargs="*", metavar="PRESET", help=f"of {', '.join(PRESETS)}")
    presets = parser.parse_args().presets or list(PRESETS)
    for preset in presets:
        if preset not in PRESETS:
            parser.error(f"no preset {preset!r}; there are {', '.join(PRESETS)}")
        make(PRESETS[preset], DATA / f"{preset}.json", lambda line: print(line, file=sys.stderr))


if __name__ == "__main__":
    main()
