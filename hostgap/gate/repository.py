"""Paths of a trace as paths of the repository, which is what a code host can show."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hostgap.gate.places import file_parts

_FOREIGN = ("site-packages", "dist-packages")


@dataclass
class Repository:
    """A checkout.

    Attributes:
        root: its top folder.
    """

    root: Path

    @classmethod
    def here(cls) -> Repository:
        """The one around the current folder; in a GitHub job its workspace."""
        start = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd())
        for folder in (start, *start.parents):
            if (folder / ".git").exists():
                return cls(folder)
        return cls(start)

    @cached_property
    def _tracked(self) -> list[list[str]]:
        """The parts of every tracked file's path; empty without git."""
        command = ["git", "-C", str(self.root), "ls-files", "-z"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError):
            return []  # then only paths that lie there as they are named are found
        names = done.stdout.decode("utf-8", "surrogateescape").split("\0")
        return [name.split("/") for name in names if name]

    def relative(self, file: str) -> str | None:
        """A file of a trace, relative to the root; None where it is not, or several may be, meant.

        A trace made elsewhere names another machine's folders, and one made by a script often only
        its name: the end of the path decides, at least two parts of it if it has more than one.
        """
        parts = file_parts(file)
        if not parts or any(part in _FOREIGN for part in parts) or ".." in parts:
            return None
        root = file_parts(str(self.root))
        if parts[: len(root)] == root and len(parts) > len(root):
            inside = parts[len(root) :]
            if self.root.joinpath(*inside).is_file():
                return "/".join(inside)
        least = min(2, len(parts))
        found: dict[int, list[list[str]]] = {}
        for tracked in self._tracked:
            alike = _common_end(tracked, parts)
            if alike >= least and alike in (len(tracked), len(parts)):
                found.setdefault(alike, []).append(tracked)
        if found:
            best = found[max(found)]
            return "/".join(best[0]) if len(best) == 1 else None
        for first in range(len(parts) - least + 1):  # not tracked, or without git
            if self.root.joinpath(*parts[first:]).is_file():
                return "/".join(parts[first:])
        return None


def _common_end(one: list[str], other: list[str]) -> int:
    n = 0
    while n < min(len(one), len(other)) and one[-1 - n] == other[-1 - n]:
        n += 1
    return n
