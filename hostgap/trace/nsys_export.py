"""Reports (`.nsys-rep`), exported to SQLite through the `nsys` that wrote them."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hostgap.errors import TraceError

TIMEOUT_S = 1800
MAGIC = b"SQLite format 3\0"
REPORTS = (".nsys-rep", ".qdrep")  # .qdrep until 2021


def is_nsys(path: Path) -> bool:
    """Whether `path` is a file of Nsight Systems, or any other SQLite database."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            head = stream.read(len(MAGIC))
    except (OSError, ValueError):  # who opens it next says what is wrong
        return False
    return head == MAGIC or path.suffix in REPORTS


@contextmanager
def exported(path: Path, name: str) -> Iterator[Path]:
    """An SQLite export of `path`: the file itself, or a temporary one made from a `.nsys-rep`.

    Args:
        path: the file.
        name: what it was called, for errors: a URL, of which `path` is a copy.

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
        report = Path(name)
        raise TraceError(
            f"{name}: an Nsight Systems report, and there is no nsys on the PATH to export it with",
            f"where nsys is: nsys export --type sqlite -o {report.stem}.sqlite {report.name}",
        )
    with tempfile.TemporaryDirectory(prefix="hostgap-") as folder:
        target = Path(folder) / "export.sqlite"
        failure = ""
        # with the payloads of Python backtraces, where this nsys can
        for payloads in (["--include-json=true"], []):
            to = ["--type", "sqlite", *payloads, "-o", str(target), str(path.absolute())]
            failure = _run([nsys, "export", *to], Path(folder)) or _absent(target)
            if not failure:
                yield target
                return
        raise TraceError(f"{name}: nsys export failed: {failure}")


def _absent(target: Path) -> str:
    return "" if target.is_file() else "it wrote no file"


def _run(command: list[str], folder: Path) -> str:
    """Run nsys in a folder, where what it leaves behind goes with it; why it failed, else ""."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
            cwd=folder,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    said = (done.stderr or done.stdout).strip().splitlines()
    return said[-1] if said else f"exit code {done.returncode}"
