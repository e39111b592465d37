"""`hostgap.step()`: how a script of the user's says where its steps begin.

Outside `hostgap profile` a mark does nothing, so it may stay in the code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_listener: Callable[[], None] | None = None


def step() -> None:
    """Mark the start of a step. Does nothing unless `hostgap profile` runs this script."""
    if _listener is not None:
        _listener()


@contextmanager
def listening(listener: Callable[[], None], marker: str | None = None) -> Iterator[None]:
    """Call `listener` at each mark while the block runs.

    Args:
        listener: called at the start of each step.
        marker: regular expression; NVTX ranges and record_function blocks whose names it matches
            are marks too.
    """
    global _listener
    _listener = listener
    try:
        if marker is None:
            yield
        else:
            with _ranges(re.compile(marker)):
                yield
    finally:
        _listener = None


@contextmanager
def _ranges(pattern: re.Pattern[str]) -> Iterator[None]:
    """Have ranges with matching names call `step` as they begin."""
    import torch

    def marking(begin: Callable[..., Any], name_of: Callable[..., object]) -> Callable[..., Any]:
        def begin_range(*args: Any, **kwargs: Any) -> Any:
            name = str(name_of(*args, **kwargs))
            # the profiler's own step is a range too, and begins within a mark
            if pattern.search(name) and not name.startswith("ProfilerStep#"):
                step()
            return begin(*args, **kwargs)

        return begin_range

    def first(*args: Any, **kwargs: Any) -> object:
        return args[0] if args else next(iter(kwargs.values()), "")

    places: list[tuple[Any, str, Callable[..., object]]] = [
        (torch.cuda.nvtx, "range_push", first),
        (torch.profiler.record_function, "__enter__", lambda block: block.name),
    ]
    try:
        import nvtx
    except ImportError:
        pass  # then the script has none of its ranges
    else:
        places.append((nvtx, "push_range", first))
        places.append((nvtx.annotate, "__enter__", lambda block: block.init_args[0]))
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    for owner, name, name_of in places:
        setattr(owner, name, marking(getattr(owner, name), name_of))
    try:
        yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)
