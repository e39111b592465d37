"""Which fixes there are, and how several are applied to one workload."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Mapping, Sequence

from hostgap.errors import ConfigError, FixFailed, TargetError
from hostgap.fixes.equality import tapped
from hostgap.fixes.fix import Fix
from hostgap.profiling.target import told
from hostgap.profiling.workload import Workload


def load_fixes() -> dict[str, Fix]:
    """All fixes by name, in the order in which they are tried where nothing else decides.

    The generic ones are the classes of this package's modules, each in a file of its own; those of
    the built-in decoder's defects are made from its list of them.
    """
    import hostgap.fixes
    from hostgap.fixes.undo_defect import undo_fixes

    found: list[Fix] = [*undo_fixes()]
    for module in pkgutil.iter_modules(hostgap.fixes.__path__):
        loaded = importlib.import_module(f"hostgap.fixes.{module.name}")
        found += [
            kind()
            for kind in vars(loaded).values()
            if inspect.isclass(kind)
            and issubclass(kind, Fix)
            and kind.__module__ == loaded.__name__
            and hasattr(kind, "name")
        ]
    found.sort(key=lambda fix: (fix.rank, fix.name))
    return {fix.name: fix for fix in found}


def chosen(
    fixes: Mapping[str, Fix], only: Sequence[str] = (), skip: Sequence[str] = ()
) -> dict[str, Fix]:
    """The fixes named by `only`, in its order (all without any), and not by `skip`.

    Raises:
        ConfigError: there is no such fix; the nearest is named.
    """
    for name in (*only, *skip):
        if name not in fixes:
            raise unknown_fix(name, fixes)
    return {name: fixes[name] for name in only or fixes if name not in skip}


def unknown_fix(name: str, known: Iterable[str]) -> ConfigError:
    """The error for a fix that is not there."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}? " if near else ""
    return ConfigError(f"no fix {name!r}", f"{hint}all of them: {', '.join(names)}")


def apply_fixes(workload: Workload, names: Sequence[str]) -> Workload:
    """A fresh workload with fixes applied from left to right.

    What the steps deliver can then be recorded too (`hostgap.fixes.equality`), which is why the
    reference without any fix is passed through here as well.

    Raises:
        FixFailed: one of them cannot be applied.
        ConfigError: there is no such fix.
    """
    known = load_fixes() if names else {}
    workload = tapped(workload)
    for name in names:
        if name not in known:
            raise unknown_fix(name, known)
        try:
            with told(f"{name}: the step raised"):
                workload = known[name].apply(workload)
        except TargetError as error:  # it ran as it was, so it is the fix that it does not stand
            raise FixFailed(error.message, error.hint) from error
    return workload
