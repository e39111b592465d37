"""What to run: the built-in decoder, a step function, or a script that marks its steps."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import msgspec

from hostgap.decoder.defects import checked_ranks
from hostgap.errors import ConfigError, HostgapError, Stopped, TargetError
from hostgap.profiling.lockstep import here
from hostgap.profiling.workload import Workload

Kind = Literal["decoder", "callable", "script"]


class TargetSpec(msgspec.Struct, frozen=True):
    """A target and how to build it; what a child process is told.

    Attributes:
        target: "decoder", "module:callable", "file.py:callable" or "script.py".
        args: a script's arguments, `sys.argv[1:]`.
        preset, batch, defects, temperature: of the built-in decoder; `defects` None means those
            that it has as written. `temperature` None decodes greedily.
        step_marker: regular expression of the NVTX ranges or record_function blocks that begin a
            script's steps, where it does not call `hostgap.step()`.
        ranks: processes that run it together, a GPU each. A defect of the decoder may be given to
            one of them, as NAME@RANK.
    """

    target: str = "decoder"
    args: tuple[str, ...] = ()
    preset: str = "small"
    batch: int = 1
    defects: tuple[str, ...] | None = None
    temperature: float | None = None
    step_marker: str | None = None
    ranks: int = 1

    @property
    def kind(self) -> Kind:
        """Which of the three it is, by its spelling alone."""
        if self.target == "decoder":
            return "decoder"
        return "script" if self.target.endswith(".py") else "callable"


def checked(spec: TargetSpec) -> TargetSpec:
    """The spec, if what can be seen without running anything allows it.

    Raises:
        ConfigError: no such file, a target of no known spelling, options that do not fit its kind.
    """
    if spec.temperature is not None and not 0 < spec.temperature < 1e6:
        raise ConfigError(f"--temperature {spec.temperature:g}: a number above 0")
    if spec.step_marker is not None:
        try:
            re.compile(spec.step_marker)
        except re.error as error:
            raise ConfigError(f"--step-marker {spec.step_marker!r}: {error}") from error
    if spec.ranks < 1:
        raise ConfigError(f"--ranks {spec.ranks}: at least 1")
    checked_ranks(spec.defects or (), spec.ranks)
    if spec.kind == "script":
        if not Path(spec.target).is_file():
            raise ConfigError(f"{spec.target}: no such script")
        if spec.batch != 1:
            raise ConfigError("--batch: a script chooses its own; give it as an argument after --")
        _only_decoder(spec)
        return spec
    if spec.args:
        raise ConfigError("only a script takes arguments after --")
    if spec.step_marker is not None:
        raise ConfigError("--step-marker is for scripts; a step function is its own step")
    if spec.batch < 1:
        raise ConfigError(f"--batch {spec.batch}: at least 1")
    if spec.kind == "callable":
        _only_decoder(spec)
        file, colon, name = spec.target.rpartition(":")
        if not colon or not file or not name:
            raise ConfigError(
                f"no target {spec.target!r}",
                "one of: decoder, module:callable, file.py:callable, script.py",
            )
        if file.endswith(".py") and not Path(file).is_file():
            raise ConfigError(f"{file}: no such file")
    return spec


def _only_decoder(spec: TargetSpec) -> None:
    if spec.defects:
        raise ConfigError("--defect is for the built-in decoder")
    if spec.temperature is not None:
        raise ConfigError("--temperature is for the built-in decoder")


@dataclass(frozen=True, slots=True)
class Target:
    """A target that can be built as often as one likes, each time the same.

    Attributes:
        spec: what it was made from.
        defects: of its own that are on as it stands; () for a user's step.
        make: defects -> a fresh workload.
    """

    spec: TargetSpec
    defects: tuple[str, ...]
    make: Callable[[tuple[str, ...]], Workload]

    def build(self, defects: tuple[str, ...] | None = None) -> Workload:
        """A fresh workload, from the same random numbers each time.

        Raises:
            TargetError: it cannot be built.
        """
        import torch

        torch.manual_seed(0)
        with told(f"{self.spec.target} cannot be built"):
            return self.make(self.defects if defects is None else defects)


def load_target(spec: TargetSpec) -> Target:
    """Import a target; the decoder or a callable, not a script.

    Raises:
        ConfigError: as `checked`; defects for a target that has none of its own.
        TargetError: it cannot be imported, or has no such callable.
    """
    checked(spec)
    if spec.kind == "decoder":
        return _decoder(spec)
    if spec.kind == "script":
        raise ConfigError(
            f"{spec.target} owns its loop: only `hostgap profile` takes scripts",
            "give a step function instead: file.py:callable",
        )
    found = _callable(spec.target)

    def make(_: tuple[str, ...]) -> Workload:
        return _workload(found, spec)

    return Target(spec, (), make)


def _decoder(spec: TargetSpec) -> Target:
    from hostgap.decoder.defects import RANK_FAULTS, defects_of, of_rank
    from hostgap.decoder.defects import checked as checked_defects
    from hostgap.decoder.model import NAIVE, PRESETS, build_decoder
    from hostgap.decoder.parallel import shard, shared_out
    from hostgap.decoder.sampling import Sampling
    from hostgap.decoder.workload import decoder_workload

    if spec.preset not in PRESETS:
        raise ConfigError(f"no preset {spec.preset!r}", f"presets: {', '.join(PRESETS)}")
    possible = defects_of(spec.preset)
    wanted = spec.defects
    for rank in range(spec.ranks):
        checked_defects(set(of_rank(wanted or (), rank)) - {"all", *RANK_FAULTS}, spec.preset)
    if wanted is None:
        wanted = tuple(name for name in possible if name in NAIVE)
    elif "all" in wanted:
        wanted = (*possible, *(name for name in wanted if "@" in name))
    built: list[Any] = []  # the first decoder, whose weights the others share
    own = here()
    index, ranks = (own.index, own.ranks) if own is not None else (0, 1)
    if ranks > 1:
        shared_out(PRESETS[spec.preset], ranks)

    def make(defects: tuple[str, ...]) -> Workload:
        sampling = None if spec.temperature is None else Sampling(temperature=spec.temperature)
        first = built[0] if built else None
        mine = set(of_rank(defects, index))
        faults = mine & set(RANK_FAULTS)
        model = build_decoder(spec.preset, defects=mine & NAIVE, like=first)
        if first is None:
            built.append(model)
        if ranks > 1:
            model = shard(model, index, ranks)
        return decoder_workload(model, spec.batch, mine - faults, sampling=sampling, faults=faults)

    return Target(spec, wanted, make)


def _callable(target: str) -> Callable[..., Any]:
    module_name, _, name = target.rpartition(":")
    with told(f"{module_name} cannot be imported"):
        module = _module(module_name)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [key for key, value in vars(module).items() if callable(value)]
            raise TargetError(
                f"{module_name} has no {name!r}",
                f"it has: {', '.join(k for k in known if not k.startswith('_')) or 'no callables'}",
            )
        found = getattr(found, part)
    if not callable(found) and not isinstance(found, Workload):
        raise TargetError(f"{target} is {type(found).__name__}, not a step function")
    return found  # type: ignore[no-any-return]


def _module(name: str) -> ModuleType:
    folder = str(Path.cwd())
    if not name.endswith(".py"):
        if folder not in sys.path:
            sys.path.insert(0, folder)
        return importlib.import_module(name)
    path = Path(name).resolve()
    if str(path.parent) not in sys.path:  # as python does for a script
        sys.path.insert(0, str(path.parent))
    # a file may be called as a module that others mean something else by, such as types.py
    taken = path.stem in sys.modules or path.stem in sys.stdlib_module_names
    as_name = f"hostgap_target_{path.stem}" if taken else path.stem
    spec = importlib.util.spec_from_file_location(as_name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[as_name] = module  # dataclasses and pickles of the file look there
    spec.loader.exec_module(module)
    return module


def _workload(found: Any, spec: TargetSpec) -> Workload:
    """What a callable is: a workload, something that makes one, a step, or what returns a step."""
    import inspect

    if isinstance(found, Workload):
        return replace(found, costs={})
    takes_batch = "batch" in inspect.signature(found).parameters
    if spec.batch != 1 and not takes_batch:
        raise ConfigError(f"--batch {spec.batch}: {spec.target} takes no argument 'batch'")
    step = _ordinary(partial(found, batch=spec.batch) if takes_batch else found, spec)
    made = step()
    if isinstance(made, Workload):
        return made
    return Workload(body=_ordinary(made, spec) if callable(made) else step)


def _ordinary(step: Callable[..., Any], spec: TargetSpec) -> Callable[..., Any]:
    """A step function, if a call of it runs it."""
    import inspect

    bare = step.func if isinstance(step, partial) else step
    for is_other, what in (
        (inspect.iscoroutinefunction, "a coroutine function"),
        (inspect.isgeneratorfunction, "a generator function"),
        (inspect.isasyncgenfunction, "a generator function"),
    ):
        if is_other(bare):
            raise TargetError(f"{spec.target} gives {what}, which a call does not run")
    return step


class told:  # noqa: N801  reads as a statement: with told("... cannot be built"): ...
    """Turns whatever a user's code raises into a `TargetError` that says where.

    Errors of hostgap's own pass, as do Ctrl-C and the end of the process by a signal.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, HostgapError | KeyboardInterrupt | Stopped):
            return
        if not isinstance(error, Exception | SystemExit):
            return
        raise TargetError(f"{self._what}: {describe(error)}", where(error)) from error


def describe(error: BaseException) -> str:
    """`ValueError: its first line`; of the out-of-memory error only what was asked for."""
    text = str(error).strip()
    first = text.splitlines()[0] if text else ""
    if type(error).__name__ == "OutOfMemoryError":
        return f"out of GPU memory: {first.split('. GPU')[0]}"
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def where(error: BaseException) -> str | None:
    """`in FUNCTION at FILE:LINE` of the innermost frame of an error that is the user's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = str(Path(__file__).parent.parent)
    for frame in reversed(frames):
        installed = "site-packages" in frame.filename or frame.filename.startswith(("<", own))
        if not installed and "/lib/python" not in frame.filename:
            return f"in {frame.name} at {frame.filename}:{frame.lineno}"
    return None
