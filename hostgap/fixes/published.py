"""Ladders measured on an H200, which come with the package."""

from __future__ import annotations

from importlib import resources

import msgspec

from hostgap.fixes.report import SCHEMA, FixReport

FOLDER = "h200"  # in hostgap.reports


def published() -> list[FixReport]:
    """The published ladders, by the names of their files; other JSON beside them is left out."""
    folder = resources.files("hostgap.reports").joinpath(FOLDER)
    if not folder.is_dir():
        return []
    found = []
    for file in sorted(folder.iterdir(), key=lambda each: each.name):
        if not file.name.endswith(".json"):
            continue
        data = file.read_bytes()
        if msgspec.json.decode(data, type=_Marked).schema == SCHEMA:
            found.append(msgspec.json.decode(data, type=FixReport))
    return found


class _Marked(msgspec.Struct):
    schema: str = ""
