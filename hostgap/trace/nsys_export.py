"""`.nsys-rep` reports, exported to SQLite through the `nsys` that wrote them."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hostgap.errors import TraceError
from hostgap.trace.sqlite import MAGIC

TIMEOUT_S = 1800


def is_nsys(path: Path) -> bool:
    """Whether `path` is a file of Nsight Systems, or any other SQLite database."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            head = stream.read(len(MAGIC))
    except (OSError, ValueError):  # who opens it next says what is wrong
        return False
    return head == MAGIC or path.suffix == ".nsys-rep"


@contextmanager
def exported(path: Path) -> Iterator[Path]:
    """An SQLite export of `path`: the file itself, or a temporary one made from a `.nsys-rep`.

    Raises:
        TraceError: there is no `nsys` to export with, or it failed.
    """
    with path.open("rb") as stream:
        is_export = stream.read(len(MAGIC)) == MAGIC
    if is_export:
        yield path
        return
    nsys = shutil.which("nsys")
    if nsys is None:
        raise TraceError(
            f"{path}: an Nsight Systems report, and there is no nsys on the PATH to export it with",
            f"where nsys is: nsys export --type sqlite -o {path.stem}.sqlite {path.name}",
        )
    with tempfile.TemporaryDirectory(prefix="hostgap-") as folder:
        target = Path(folder) / "export.sqlite"
        command = [nsys, "export", "--type", "sqlite", "-o", str(target), str(path.absolute())]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=TIMEOUT_S,
                check=False,
                cwd=folder,  # what it leaves behind goes with it
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise TraceError(f"{path}: nsys export failed: {error}") from error
        if done.returncode != 0 or not target.is_file():
            said = (done.stderr or done.stdout).strip().splitlines()
            how = f"exit code {done.returncode}" if done.returncode else "it wrote no file"
            reason = said[-1] if said else how
            raise TraceError(f"{path}: nsys export failed: {reason}")
        yield target
