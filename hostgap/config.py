"""Configuration files: the nearest `hostgap.toml`, else `[tool.hostgap]` in `pyproject.toml`.

Precedence is the command line, then `HOSTGAP_*` variables, then the file. A key that hostgap does
not know is refused: a misspelt threshold that silently does nothing is worse than an error.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from hostgap.errors import ConfigError
from hostgap.files import read_head, read_whole

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


LARGEST = (
    8 << 20
)  # bytes of a configuration; in a larger pyproject.toml only the first are looked at


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """The settings a file may hold; their names are those of the options."""

    window: Literal["steps", "trace"] | None = None
    step_marker: str | None = None
    device: int | str | None = None
    format: Literal["text", "json", "markdown", "html"] | None = None
    source_roots: list[str] | None = None
    select: list[str] | str | None = None
    ignore: list[str] | str | None = None
    rules: list[str] | None = None
    min_saving: float | str | None = None
    fail_on: Literal["warning", "error"] | None = None
    gpu_price: float | None = None
    tokens_per_step: float | None = None
    unprofiled_step_ms: float | None = None
    rule: dict[str, dict[str, Any]] = {}  # thresholds: [tool.hostgap.rule.HG201]
    gate: dict[str, Any] = {}  # budgets and more, read by hostgap.gate.settings

    def options(self) -> dict[str, Any]:
        """The settings that are given, by the names of the options' parameters; no tables."""
        return {
            key: value
            for key, value in msgspec.structs.asdict(self).items()
            if value is not None and key not in ("rule", "gate")
        }


def find_config(start: Path) -> tuple[Path, dict[str, Any]] | None:
    """The nearest configuration at or above `start`: its file and its raw settings.

    Raises:
        ConfigError: the file cannot be read or is not TOML, or `tool.hostgap` is no table.
    """
    for folder in (start, *start.parents):
        own = folder / "hostgap.toml"
        if own.is_file():
            return own, _toml(own)
        project = folder / "pyproject.toml"
        if project.is_file() and b"hostgap" in (head := read_head(project, LARGEST)):
            try:
                tools = _toml(project).get("tool")
            except ConfigError:
                if b"tool.hostgap" in head:
                    raise
                continue  # somebody else's need not even be valid
            table = tools.get("hostgap") if isinstance(tools, dict) else None
            if isinstance(table, dict):
                return project, table
            if table is not None:
                raise ConfigError(f"{project}: tool.hostgap is no table", "write [tool.hostgap]")
    return None


def load_config(start: Path) -> Config:
    """The configuration that applies in `start`; the defaults without a file.

    Raises:
        ConfigError: unreadable, not TOML, an unknown key (with the nearest known one) or one that
            is there twice, a bad value.
    """
    found = find_config(start)
    if found is None:
        return Config()
    path, settings = found
    refuse_twice(settings, str(path))
    # a file may use dashes, as the options do, or underscores
    settings = {key.replace("_", "-"): value for key, value in settings.items()}
    known = [f.encode_name for f in msgspec.structs.fields(Config)]
    for key in settings:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"{path}: unknown key {key!r}", hint)
    try:
        config = msgspec.convert(settings, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from error
    return msgspec.structs.replace(
        config,
        source_roots=_folders(path, "source-roots", config.source_roots),
        rules=_folders(path, "rules", config.rules),
    )


def refuse_twice(table: Mapping[str, Any], where: str) -> None:
    """Refuse a key in two spellings, with dashes and underscores: which should count?

    Raises:
        ConfigError: there is one; the message begins with `where`.
    """
    seen = set()
    for key in table:
        plain = key.replace("_", "-")
        if plain in seen:
            raise ConfigError(f"{where}: {plain!r} is given twice", "once with dashes is enough")
        seen.add(plain)


def _folders(path: Path, key: str, named: list[str] | None) -> list[str] | None:
    """Folders that a configuration names, from the folder it lies in.

    Raises:
        ConfigError: one is not there.
    """
    found = [path.parent / each for each in named or ()]
    for folder in found:
        if not folder.is_dir():
            raise ConfigError(f"{path}: {key}: {folder}: no such folder")
    return [str(folder) for folder in found] if named is not None else None


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_whole(path, LARGEST).decode("utf-8"))
    except (ValueError, RecursionError) as error:  # a TOMLDecodeError is a ValueError
        raise ConfigError(f"{path}: not TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
