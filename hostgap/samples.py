"""The traces that come with hostgap: what each one shows, and copying one out of the package."""

from __future__ import annotations

import gzip
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hostgap.errors import HostgapError
from hostgap.files import atomic_output, compressed

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


class Sample(msgspec.Struct, frozen=True):
    """One bundled trace.

    Attributes:
        name: what `hostgap samples NAME` calls it.
        file: its file name.
        what: one sentence: what it shows.
        command: how it was recorded.
        gpu: the GPU's name.
        torch: version of torch.
        steps: steps recorded.
        unprofiled_step_ms: milliseconds a step takes without the profiler, median.
        traced_step_ms: milliseconds a step takes in the trace, median.
    """

    name: str
    file: str
    what: str
    command: str
    gpu: str
    torch: str
    steps: int
    unprofiled_step_ms: float
    traced_step_ms: float

    def read(self) -> bytes:
        """The trace as it is bundled: gzipped JSON, or an Nsight Systems export."""
        return (_folder() / self.file).read_bytes()


def samples() -> list[Sample]:
    """All bundled traces, in the order in which they are best read."""
    return msgspec.json.decode((_folder() / "samples.json").read_bytes(), type=list[Sample])


def sample(name: str) -> Sample:
    """The bundled trace called `name`.

    Raises:
        HostgapError: there is none.
    """
    import difflib

    have = {entry.name: entry for entry in samples()}
    # the file's name will do too
    by_file = {entry.file: entry for entry in have.values()}
    found = (
        have.get(name)
        or by_file.get(name)
        or have.get(name.removesuffix(".gz").removesuffix(".json"))
    )
    if found is not None:
        return found
    near = difflib.get_close_matches(name, have, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}? " if near else ""
    raise HostgapError(f"no sample {name!r}", f"{hint}samples: {', '.join(have)}")


def copy(entry: Sample, out: Path | None = None, *, force: bool = False) -> Path:
    """Copy a bundled trace.

    Args:
        entry: which one.
        out: a file (not gzipped unless it ends in .gz) or a folder; the current folder if None.
        force: replace a file that exists.

    Returns:
        The file written.

    Raises:
        HostgapError: it exists and `force` is not given, or it cannot be written.
    """
    path = Path(entry.file) if out is None else out
    if path.is_dir():
        path = path / entry.file
    with atomic_output(path, force=force) as stream:
        data = entry.read()
        if path.name.endswith(".gz") or not entry.file.endswith(".gz"):
            stream.write(data)
        else:
            with compressed(stream, path.name) as text:
                text.write(gzip.decompress(data))
    return path


def _folder() -> Traversable:
    return files("hostgap.sample_traces")
