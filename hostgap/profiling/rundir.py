"""A run directory: `measurement.json` and the traces of one profiled target.

Of several ranks there is a folder that holds one for each, `rank0`, `rank1`, ... and nothing else.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from hostgap.errors import HostgapError, TraceError
from hostgap.files import atomic_output, read_whole
from hostgap.profiling.measurement import LONGEST_NS, MOST_STEPS, SCHEMA, SHORTEST_NS, Measurement

NAME = "measurement.json"
_RANK = re.compile(r"rank\d{1,6}")
LONGEST_NAME = 255  # bytes of a file's name
LARGEST = 64 * 1024 * 1024  # bytes of a measurement.json; a real one has some thousands


@contextmanager
def new_run_dir(path: Path, *, force: bool) -> Iterator[Path]:
    """A folder to fill, which becomes `path` when the block ends without an error, or not at all.

    Args:
        path: the run directory to make, or the folder of ranks' run directories.
        force: replace it if it exists; only a run directory, or those of ranks, is ever replaced.

    Raises:
        HostgapError: it exists and may not be replaced, or cannot be written.
    """
    refuse_run_dir(path, force=force)
    target = Path(os.path.realpath(path))
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    made = [folder for folder in target.parents if not folder.exists()]
    try:
        try:
            part.mkdir(parents=True)
        except OSError as error:
            raise _unwritable(path, error) from error
        yield part
        refuse_run_dir(path, force=force)  # it may have appeared meanwhile
        old = part.with_suffix(".old")
        try:
            if target.exists():
                target.rename(old)
            part.rename(target)
        except OSError as error:
            raise _unwritable(path, error) from error
        finally:
            if old.exists() and not target.exists():
                old.rename(target)  # the new one could not take its place
            shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        for folder in made:  # innermost first; those that hold something stay
            with suppress(OSError):
                folder.rmdir()


def refuse_run_dir(path: Path, *, force: bool) -> None:
    """Say no before any work is done, when `path` cannot become a run directory.

    Raises:
        HostgapError: it exists and `force` is not given, or is something else than a run directory.
    """
    if os.path.realpath(path) == os.path.realpath(Path.cwd()):  # unlike resolve(), ends with loops
        raise HostgapError(f"{path} is the current folder", "give the name of a folder to make")
    if not path.exists():
        return
    if not path.is_dir():
        raise HostgapError(f"{path} is a file", "give the name of a folder to make")
    if not any(path.iterdir()):
        return
    if not _only_a_run(path):
        raise HostgapError(f"{path} exists and is no run of hostgap", "give another name")
    if not force:
        raise HostgapError(f"{path} exists", "use --force to overwrite it")


def _only_a_run(path: Path) -> bool:
    """Whether a folder holds a run, or those of ranks, and nothing else: what may be replaced."""
    entries = list(path.iterdir())
    if all(_RANK.fullmatch(one.name) and one.is_dir() and not one.is_symlink() for one in entries):
        return bool(entries) and all(_one_run(one) for one in entries)
    return _one_run(path)


def _one_run(path: Path) -> bool:
    try:
        measurement = read_measurement(path)
    except TraceError:
        return False
    own = {NAME, *(trace_name(one.mode) for one in measurement.passes)}
    return all(
        entry.name in own and entry.is_file() and not entry.is_symlink() for entry in path.iterdir()
    )


def rank_name(rank: int) -> str:
    """The run directory of a rank in the folder of its job."""
    return f"rank{rank}"


def trace_name(mode: str) -> str:
    """The file of a pass in a run directory."""
    return f"{mode.replace('+', '_')}.json.gz"


def write_measurement(folder: Path, measurement: Measurement) -> None:
    """Write `measurement.json` into a run directory."""
    text = msgspec.json.format(msgspec.json.encode(measurement), indent=2)
    with atomic_output(folder / NAME, force=True) as out:
        out.write(text + b"\n")


def is_run_dir(path: Path) -> bool:
    """Whether a folder has a `measurement.json`."""
    return (path / NAME).is_file()


def read_measurement(folder: Path) -> Measurement:
    """The measurement of a run directory.

    Raises:
        TraceError: there is none, it is not of this schema, or it names files outside the folder.
    """
    path = folder / NAME
    try:
        data = read_whole(path, LARGEST)
    except OSError as error:
        hint = "a run directory is what `hostgap profile` writes"
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}", hint) from error
    return parse_measurement(data, path)


def parse_measurement(data: bytes, path: Path) -> Measurement:
    """The measurement that a file holds.

    Args:
        data: its bytes.
        path: its name, for errors.

    Raises:
        TraceError: see `read_measurement`.
    """
    try:
        head = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        schema = msgspec.json.decode(head.get("schema", msgspec.Raw(b"null")))
    except (msgspec.DecodeError, RecursionError) as error:
        raise TraceError(f"{path}: not JSON: {error}") from error
    if schema != SCHEMA:
        raise TraceError(f"{path}: schema {schema!r}; this hostgap reads {SCHEMA!r}")
    try:
        measurement = msgspec.json.decode(data, type=Measurement)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TraceError(f"{path}: {error}") from error
    for one in measurement.passes:
        if Path(one.file).name != one.file or one.file in ("", ".", ".."):
            raise TraceError(f"{path}: names a trace outside its folder: {one.file!r}")
        if "\0" in one.file or len(os.fsencode(one.file)) > LONGEST_NAME:
            raise TraceError(f"{path}: no name of a file: {one.file[:50]!r}")
    _check_times(path, measurement)
    return measurement


def _check_times(path: Path, measurement: Measurement) -> None:
    """Refuse figures of which nothing can be made: no step has such times.

    Raises:
        TraceError: see above.
    """
    step = measurement.timing.step
    if not SHORTEST_NS <= step.low_ns <= step.median_ns <= step.high_ns <= LONGEST_NS:
        raise TraceError(f"{path}: its step takes {step.median_ns:g} ns, which is no time")
    times = {"span_ns": measurement.span_ns or 0.0}
    most = LONGEST_NS
    waits = measurement.waits
    if waits is not None:
        for name in ("step_ns", "collectives", "replays", "unwatched"):
            times[f"waits.{name}"] = getattr(waits, name)
        for name in ("inside", "wait", "caused", "lost"):
            one = getattr(waits, name)
            times[f"waits.{name}"] = min(one.low_ns, one.median_ns)
            times[f"waits.{name}.high_ns"] = one.high_ns
        late = waits.late  # negative where the others are later
        times["waits.late"] = max(abs(late.low_ns), abs(late.median_ns), abs(late.high_ns))
        most = min(most, MOST_STEPS * waits.step_ns) if waits.step_ns > 0 else most
    for name, value in times.items():
        if not 0 <= value <= (most if name.startswith("waits.") else LONGEST_NS):
            raise TraceError(f"{path}: {name} is {value:g}, which no step has")


def _unwritable(path: Path, error: OSError) -> HostgapError:
    return HostgapError(f"{path}: cannot be written: {error.strerror or error}")
