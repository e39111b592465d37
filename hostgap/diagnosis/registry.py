"""Which rules there are: the package `hostgap.rules`, and folders that users name."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from hostgap.diagnosis.check import said
from hostgap.diagnosis.rule import Need, Options, Rule, WaitRule
from hostgap.errors import ConfigError, Stopped

_CODE = re.compile(r"[A-Z]{2,5}\d{3}")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_FILE = re.compile(r"[a-z]{2,5}\d{3}_\w+")


@dataclass(frozen=True, slots=True)
class Registry:
    """Rules in order of their codes, and what was wrong with files that held none.

    Attributes:
        rules: code -> rule.
        docs: code -> the docstring of its file.
        problems: a line per file that was skipped, with the reason.
    """

    rules: dict[str, Rule]
    docs: dict[str, str]
    problems: tuple[str, ...] = ()

    def wait_rules(self) -> list[WaitRule]:
        """The rules that share out the waits among them."""
        return [rule for rule in self.rules.values() if isinstance(rule, WaitRule)]

    def chosen(self, select: Sequence[str] = (), ignore: Sequence[str] = ()) -> list[Rule]:
        """The rules whose code begins with one of `select` (all without any) and none of `ignore`.

        Raises:
            ConfigError: no code begins so; the nearest is named.
        """
        for prefix in (*select, *ignore):
            if not any(code.startswith(prefix.upper()) for code in self.rules):
                raise unknown_code(prefix, self.rules)
        taken = tuple(prefix.upper() for prefix in select) or ("",)
        left = tuple(prefix.upper() for prefix in ignore)
        return [
            rule
            for code, rule in self.rules.items()
            if code.startswith(taken) and not (left and code.startswith(left))
        ]


def unknown_code(code: str, known: Iterable[str]) -> ConfigError:
    """The error for a code, or a prefix of codes, that no rule has."""
    codes = sorted(known)
    family = [one for one in codes if one.startswith(code.upper())]
    near = difflib.get_close_matches(code.upper(), codes, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}? " if near else ""
    if len(family) > 1:
        hint = f"{family[0]} to {family[-1]} begin so; "
    return ConfigError(f"no rule {code!r}", f"{hint}all of them: hostgap rules")


def load_rules(folders: Sequence[Path] = ()) -> Registry:
    """The rules of hostgap, and those in `folders` (files such as `my001_slow_thing.py`).

    A user's file that cannot be read, holds no rule, or claims a code that is taken, is skipped
    and named among the problems.

    Raises:
        ConfigError: a folder is not there.
    """
    import hostgap.rules

    rules: dict[str, Rule] = {}
    docs: dict[str, str] = {}
    problems: list[str] = []
    for found in pkgutil.iter_modules(hostgap.rules.__path__):
        if _FILE.fullmatch(found.name):
            module = importlib.import_module(f"hostgap.rules.{found.name}")
            rule = _rule_in(module)
            rules[rule.code] = rule
            docs[rule.code] = module.__doc__ or ""
    for folder in folders:
        if not folder.is_dir():
            what = "no folder" if folder.exists() else "no such folder"
            raise ConfigError(f"--rules {folder}: {what}")
        for path in sorted(folder.glob("*.py")):
            if not _FILE.fullmatch(path.stem):
                continue
            try:
                module = _load_file(path)
                rule = _rule_in(module)
            except (KeyboardInterrupt, Stopped):
                raise
            except BaseException as error:  # noqa: BLE001  somebody's own code may raise anything
                problems.append(f"{path}: skipped: {said(error)}")
                continue
            if rule.code in rules:
                problems.append(f"{path}: skipped: there is a rule {rule.code} already")
                continue
            rules[rule.code] = rule
            docs[rule.code] = module.__doc__ or ""
    order = sorted(rules)
    return Registry({c: rules[c] for c in order}, {c: docs[c] for c in order}, tuple(problems))


def _load_file(path: Path) -> ModuleType:
    name = f"hostgap_user_rules.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and msgspec look their module up there
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is the report's
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _rule_in(module: ModuleType) -> Rule:
    """The one rule that a module defines.

    Raises:
        TypeError: there is none, or several, or it lacks what a rule must have.
    """
    found = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and value.__module__ == module.__name__  # first: Python 3.10 takes NDArray[...] for a class
        and issubclass(value, Rule)
    ]
    if len(found) != 1:
        raise TypeError(f"holds {len(found)} rules instead of one")
    kind = found[0]
    for attribute in ("code", "name", "title", "advice"):
        if not isinstance(getattr(kind, attribute, None), str):
            raise TypeError(f"{kind.__name__} has no {attribute}")
    if not _CODE.fullmatch(kind.code):
        raise TypeError(f"code {kind.code!r}: two to five capitals and three digits")
    if not _NAME.fullmatch(kind.name):
        raise TypeError(f"name {kind.name!r}: at most 40 lower-case letters, digits and dashes")
    needs: Any = kind.needs
    options: Any = kind.options
    if not (isinstance(needs, tuple) and all(isinstance(need, Need) for need in needs)):
        raise TypeError("needs is a tuple of Need")
    if not (inspect.isclass(options) and issubclass(options, Options)):
        raise TypeError("options is a subclass of Options")
    options()
    rule: Rule = kind()
    return rule
