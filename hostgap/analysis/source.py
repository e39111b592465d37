"""The line of a call inside a function, read from the function's source where it is at hand.

A Kineto frame carries its function's first line and no other. Where the source can be read, the
calls by that name inside the function say on which line it must have been.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

MOST_BYTES = 500_000
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def lines_of_call(
    file: str, first_line: int, function: str, called: str, roots: Sequence[Path] = ()
) -> tuple[int, ...]:
    """Lines on which a function calls something by name; () where its source cannot tell.

    Args:
        file: the function's file, as a frame names it.
        first_line: the line of its `def`, or of its first decorator.
        function: its name.
        called: the last part of what it calls: `item` of `loss.item()`.
        roots: folders in which relative files are looked for; the current one always.
    """
    for root in (Path(), *roots):
        path = root / file
        found = _calls_in(path, first_line, function)
        if found is not None:
            return found.get(called, ())
    return ()


def _calls_in(path: Path, first_line: int, function: str) -> dict[str, tuple[int, ...]] | None:
    """Name -> lines of the calls that the function makes itself; None without that function."""
    scope = _functions(path).get((first_line, function.rsplit(".", 1)[-1]))
    if scope is None and function == "<module>":
        scope = _functions(path).get((0, function))
    return scope


@lru_cache(maxsize=64)
def _functions(path: Path) -> dict[tuple[int, str], dict[str, tuple[int, ...]]]:
    """First line and name of every function of a Python file -> what it calls, on which lines."""
    try:
        if path.suffix != ".py" or not path.is_file() or path.stat().st_size > MOST_BYTES:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of somebody else's source
            tree = ast.parse(path.read_bytes())
        found = {(0, "<module>"): _lines(tree)}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                begins = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                found[begins, node.name] = _lines(node)
            elif isinstance(node, ast.Lambda):
                found[node.lineno, "<lambda>"] = _lines(node)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    return found


def _lines(scope: ast.AST) -> dict[str, tuple[int, ...]]:
    """Name -> lines of the calls directly in a scope, not in functions defined inside it."""
    found: dict[str, set[int]] = {}
    stack = list(ast.iter_child_nodes(scope))
    while stack:
        node = stack.pop()
        if isinstance(node, _Function | ast.ClassDef):
            continue
        if isinstance(node, ast.Call):
            target = node.func
            if isinstance(target, ast.Attribute):
                # the line of the name itself: a chain of calls may begin far above it
                found.setdefault(target.attr, set()).add(target.end_lineno or node.lineno)
            elif isinstance(target, ast.Name):
                found.setdefault(target.id, set()).add(node.lineno)
        stack.extend(ast.iter_child_nodes(node))
    return {name: tuple(sorted(lines)) for name, lines in found.items()}
