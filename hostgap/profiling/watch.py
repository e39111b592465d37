"""When a rank comes to each collective, and how long it stays there, without a profiler.

A profiler slows the hosts of ranks by different amounts, so a recording can show waits that are not
there otherwise. Here events in the stream stand around each collective and each graph replay, in
the real loop. All ranks leave a collective together: whoever stays longer came earlier.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch

from hostgap.profiling.events import Mark
from hostgap.profiling.lockstep import here
from hostgap.profiling.loop import Fresh, Pass
from hostgap.profiling.passes import LEAD_IN, replaying
from hostgap.profiling.requests import REPLAY, Stop, WatchedStep

# Those that no rank leaves before the last has come. The root of a broadcast may.
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
)


def watch(steps: int, repeats: int) -> Pass[list[list[WatchedStep]]]:
    """`repeats` blocks of `steps` steps in the real loop, in which no rank is held up or drained.

    Seen are the functions of `torch.distributed` in `COLLECTIVES`, called through the module, and
    graph replays. A call with `async_op` is only counted: where its result is awaited is not known.
    """
    seen = _Watch()
    blocks = []
    with _calling(seen.collective), replaying(seen.replay):
        for _ in range(repeats):
            torch.cuda.synchronize()
            yield Fresh(LEAD_IN + steps)
            yield from range(LEAD_IN + steps - 1, steps, -1)
            for ahead in range(steps, 0, -1):
                seen.begin_step()
                yield ahead
            blocks.append(seen.end_block())
    return blocks


@dataclass(slots=True)
class _Stop:
    what: str
    ranks: tuple[int, ...]
    called_ns: int
    begin: Mark
    end: Mark


@dataclass(slots=True)
class _Step:
    begun_ns: int
    stops: list[_Stop] = field(default_factory=list)
    unwatched: int = 0


class _Watch:
    """Takes down what happens in the steps of a block; nothing between blocks."""

    def __init__(self) -> None:
        rank = here()
        self._all = tuple(range(rank.ranks if rank is not None else 1))
        self._teams: dict[int, tuple[Any, tuple[int, ...]]] = {}
        self._capturing: Callable[[], bool] = (
            torch.cuda.is_current_stream_capturing
            if torch.cuda.is_available()
            else lambda: False  # a torch without CUDA cannot even be asked
        )
        self._steps: list[_Step] = []

    def begin_step(self) -> None:
        # Linux counts these from one moment for all processes of a machine
        self._steps.append(_Step(time.perf_counter_ns()))

    def end_block(self) -> list[WatchedStep]:
        """What was seen since the block began."""
        steps, self._steps = self._steps, []
        return [
            WatchedStep(
                step.begun_ns,
                [
                    Stop(one.what, one.ranks, one.called_ns, one.begin.until(one.end))
                    for one in step.stops
                ],
                step.unwatched,
            )
            for step in steps
        ]

    def collective(self, name: str, group: Any, asynchronous: bool, call: Callable[[], Any]) -> Any:
        """Make a call of `torch.distributed`, watched."""
        if not self._steps or self._capturing():
            return call()
        if asynchronous:
            self._steps[-1].unwatched += 1
            return call()
        ranks = self._team(group)
        if len(ranks) < 2:
            return call()
        return self._watched(name, ranks, call)

    def replay(self, replay: Callable[[], None]) -> None:
        """Replay a graph, watched."""
        if self._steps:
            self._watched(REPLAY, self._all, replay)
        else:
            replay()

    def _watched(self, what: str, ranks: tuple[int, ...], call: Callable[[], Any]) -> Any:
        called_ns = time.perf_counter_ns()
        begin = Mark()
        result = call()
        end = Mark()
        self._steps[-1].stops.append(_Stop(what, ranks, called_ns, begin, end))
        return result

    def _team(self, group: Any) -> tuple[int, ...]:
        """The ranks of a process group; none where this rank is not in it."""
        import torch.distributed as dist

        if group is None or group is dist.group.WORLD:
            return self._all
        if not isinstance(group, dist.ProcessGroup):
            return ()
        if id(group) not in self._teams:  # kept with it, so that no other takes its id
            self._teams[id(group)] = group, tuple(dist.get_process_group_ranks(group))
        return self._teams[id(group)][1]


@contextmanager
def _calling(around: Callable[[str, Any, bool, Callable[[], Any]], Any]) -> Iterator[None]:
    """Have the functions of `torch.distributed` in `COLLECTIVES` go through `around`."""
    import torch.distributed as dist

    modules: tuple[Any, ...] = (dist, dist.distributed_c10d)
    originals = [
        (module, name, getattr(module, name)) for module in modules for name in COLLECTIVES
    ]
    for module, name, original in originals:
        setattr(module, name, _through(around, name, original))
    try:
        yield
    finally:
        for module, name, original in originals:
            setattr(module, name, original)


def _through(
    around: Callable[[str, Any, bool, Callable[[], Any]], Any],
    name: str,
    original: Callable[..., Any],
) -> Callable[..., Any]:
    parameters = list(inspect.signature(original).parameters)
    at_group, at_async = parameters.index("group"), parameters.index("async_op")

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)  # it becomes part of a compiled graph, as without this
        group = args[at_group] if len(args) > at_group else kwargs.get("group")
        later = args[at_async] if len(args) > at_async else kwargs.get("async_op", False)
        return around(name, group, bool(later), lambda: original(*args, **kwargs))

    return call
