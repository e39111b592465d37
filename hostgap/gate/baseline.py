"""The committed baseline, `hostgap.json`: counts per GPU model, versions and class of steps."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from hostgap import __version__
from hostgap.diagnosis.model import Diagnosis, Site, StepClass
from hostgap.errors import ConfigError
from hostgap.files import atomic_output, read_whole
from hostgap.gate.metrics import EXACT, METRICS, is_sync
from hostgap.gate.model import Key, Tool
from hostgap.gate.subject import Subject

SCHEMA = "hostgap.baseline/1"
LARGEST = 16 * 1024 * 1024  # bytes; an entry has about a thousand


class _Base(msgspec.Struct, frozen=True, kw_only=True):
    """Frozen, keyword-only."""


class KnownSync(_Base, frozen=True):
    """A wait that the baseline has; its line is not kept, for it moves."""

    call: str
    file: str | None
    function: str | None
    op: str | None
    per_step: float

    @property
    def site(self) -> Site:
        """As a place without a line."""
        return Site(file=self.file, line=None, function=self.function, op=self.op, precision="none")


class Entry(_Base, frozen=True):
    """The counts of one class of steps; `steps` is how many they were counted over."""

    key: Key
    source: Literal["kineto", "nsys"]
    whole_graphs: bool
    steps: int
    metrics: dict[str, float]
    syncs: list[KnownSync]


class Baseline(_Base, frozen=True):
    """The file."""

    schema: str
    tool: Tool
    entries: list[Entry]


def entry_of(subject: Subject, step: StepClass) -> Entry:
    """What a subject with a trace would add to a baseline."""
    diagnosis = subject.diagnosis
    assert diagnosis is not None
    n = max(1, diagnosis.steps.count)
    syncs = [
        KnownSync(
            call=sync.call,
            file=_short(sync.site.file) if sync.site else None,
            function=sync.site.function if sync.site else None,
            op=sync.site.op if sync.site else None,
            per_step=round(sync.count / n, 6),
        )
        for sync in diagnosis.syncs
        if sync.count and is_sync(sync)
    ]
    values = {name: METRICS[name].value(diagnosis, step) for name in EXACT}
    return Entry(
        key=subject.key(step),
        source=diagnosis.trace.source,
        whole_graphs=whole_graphs(diagnosis),
        steps=len(step.steps),
        metrics={name: round(value, 6) for name, value in values.items() if value is not None},
        syncs=sorted(syncs, key=lambda s: (s.function or "", s.op or "", s.call)),
    )


def whole_graphs(diagnosis: Diagnosis) -> bool:
    """Whether the trace shows graphs as one row each, so that copies in them are not seen."""
    return any(reason.code == "HG905" for reason in diagnosis.trace.integrity.reasons)


def _short(file: str | None) -> str | None:
    """The end of a path: a committed file names no home folder."""
    return "/".join(file.replace("\\", "/").split("/")[-2:]) if file else None


def read_baseline(path: Path) -> Baseline:
    """Read a baseline.

    Raises:
        ConfigError: missing, unreadable, not JSON, another schema, or broken.
    """
    again = "`hostgap gate TRACE --update-baseline` writes one"
    try:
        data = read_whole(path, LARGEST)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such baseline", again) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        head = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(
            f"{path}: the baseline is not JSON: {error}", "restore it, or remove it and write it"
        ) from error
    schema = head.get("schema") if isinstance(head, dict) else None
    if schema != SCHEMA:
        raise ConfigError(f"{path}: schema {schema!r}; this hostgap reads {SCHEMA!r}", again)
    try:
        baseline = msgspec.convert(head, Baseline)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ConfigError(f"{path}: a broken baseline: {error}", again) from error
    for entry in baseline.entries:
        if not all(0 <= value < 1e12 for value in entry.metrics.values()):
            raise ConfigError(f"{path}: a broken baseline: a count is no count", again)
    return baseline


def updated(baseline: Baseline | None, entry: Entry) -> Baseline:
    """The baseline with an entry in the place of the one with its key."""
    entries = [each for each in (baseline.entries if baseline else []) if each.key != entry.key]
    entries.append(entry)

    def order(each: Entry) -> tuple[str, ...]:
        key = each.key
        return (key.gpu or "", key.torch or "", key.cuda or "", key.step_class)

    tool = Tool(name="hostgap", version=__version__)
    return Baseline(schema=SCHEMA, tool=tool, entries=sorted(entries, key=order))


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Write it whole, in place of the old one; a change of one count changes one line."""
    text = msgspec.json.format(msgspec.json.encode(baseline), indent=2)
    with atomic_output(path, force=True) as out:
        out.write(text + b"\n")


def find_entry(
    entries: Iterable[Entry], key: Key, *, allow_mismatch: bool
) -> tuple[Entry | None, list[str]]:
    """The entry to compare with, and what there is to say about it.

    What one side does not know is not held against the other, and is said. None where nothing
    agrees with what is known.

    Args:
        entries: of the baseline.
        key: of what is gated.
        allow_mismatch: compare with the nearest one all the same.
    """
    entries = list(entries)
    names = ("gpu", "torch", "cuda")

    def differing(entry: Entry) -> list[str]:
        pairs = [(name, getattr(entry.key, name), getattr(key, name)) for name in names]
        return [name for name, old, new in pairs if old and new and old != new]

    def unknown(entry: Entry) -> list[str]:
        return [n for n in names if not (getattr(entry.key, n) and getattr(key, n))]

    classes = [entry for entry in entries if entry.key.step_class == key.step_class]
    fits = [entry for entry in classes if not differing(entry)]
    if fits:
        best = min(fits, key=lambda entry: len(unknown(entry)))
        notes = [
            f"{_NAMES[name]} is not known for {_side(best, key, name)}: compared all the same"
            for name in unknown(best)
        ]
        return best, notes
    if allow_mismatch and entries:
        pool = classes or entries
        best = min(pool, key=lambda entry: len(differing(entry)))
        told = [
            f"{_NAMES[n]} {getattr(best.key, n)}, not {getattr(key, n)}" for n in differing(best)
        ]
        if best.key.step_class != key.step_class:
            told.append(f"steps {_class(best.key)}, not {_class(key)}")
        return best, [f"compared with a baseline of another kind: {'; '.join(told)}"]
    return None, []


_NAMES = {"gpu": "the GPU", "torch": "torch's version", "cuda": "CUDA's version"}


def _side(entry: Entry, key: Key, name: str) -> str:
    if getattr(key, name):
        return "the baseline"
    return "this trace" if getattr(entry.key, name) else "either side"


def _class(key: Key) -> str:
    return repr(key.step_class) if key.step_class else "without a label"


def told(key: Key) -> str:
    """A key in words."""
    parts = [key.gpu or "unknown GPU"]
    parts.append(f"torch {key.torch}" if key.torch else "unknown torch")
    parts.append(f"CUDA {key.cuda}" if key.cuda else "unknown CUDA")
    if key.step_class:
        parts.append(f"steps {key.step_class!r}")
    return ", ".join(parts)
