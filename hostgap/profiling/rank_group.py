"""Several child processes, a rank each, that are asked the same thing at the same time."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from hostgap.errors import ConfigError, HostgapError
from hostgap.profiling import requests as r
from hostgap.profiling.lockstep import Rank
from hostgap.profiling.target import TargetSpec
from hostgap.profiling.worker import TIMEOUT_S, Child

T = TypeVar("T")
GRACE_S = 2.0  # in which the rank that is to blame says what happened, where another said it first
# What a rank says whose partner is gone.
_OF_OTHERS = ("peer", "nccl", "gloo", "distbackend", "connection", "no answer within")


class RankGroup:
    """Child processes that run one target together; use as a context manager.

    Attributes:
        welcomes: of each rank, in order.

    Args:
        spec: what they run; as many ranks as it says.
        devices: the GPU that each sees, of `devices_for`.
        timeout_s: for each request.

    Raises:
        ConfigError: no torch, no CUDA device.
        TargetError: the target cannot be imported; a process died or does not answer.
    """

    def __init__(
        self, spec: TargetSpec, devices: Sequence[str | None], *, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._closing = ExitStack()
        try:
            folder = self._closing.enter_context(tempfile.TemporaryDirectory(prefix="hostgap-"))
            meeting, port = str(Path(folder) / "meeting"), _free_port()
            self._children = [
                self._closing.enter_context(
                    Child(
                        spec,
                        device=device,
                        timeout_s=timeout_s,
                        rank=Rank(index, len(devices), meeting, port),
                    )
                )
                for index, device in enumerate(devices)
            ]
            self._all(Child.greet)
        except BaseException:
            self.close()
            raise
        self.welcomes = [child.welcome for child in self._children]

    def __enter__(self) -> RankGroup:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, whatever they are doing."""
        self._closing.close()

    def ask(self, request: r.Request | Sequence[r.Request], answer: Any) -> list[Any]:
        """Send a request to all ranks, or each its own, and wait for all answers.

        Args:
            request: what to do; all of them must make the same steps of it.
            answer: type of the result.

        Returns:
            The ranks' results, in order.

        Raises:
            HostgapError: what one of them raised, or it died, or took longer than its time. All
                processes have ended then: the others would wait for it for ever.
        """
        each = list(request) if isinstance(request, Sequence) else [request] * len(self._children)
        pairs = {id(child): one for child, one in zip(self._children, each, strict=True)}
        try:
            return self._all(lambda child: child.ask(pairs[id(child)], answer))
        except BaseException:
            self.close()
            raise

    def _all(self, what: Callable[[Child], T]) -> list[T]:
        """Do something with all children at once; the first that cannot ends the others."""
        pool = ThreadPoolExecutor(len(self._children))
        try:
            futures = [pool.submit(what, child) for child in self._children]
            _, left = wait(futures, return_when=FIRST_EXCEPTION)
            if left:  # one failed
                wait(futures, timeout=GRACE_S)
            failures = _failures(futures)
            if failures:
                raise _to_blame(failures, len(futures))
            return [future.result() for future in futures]
        finally:
            if any(not future.done() for future in futures):
                for child in self._children:
                    child.end()
            pool.shutdown()


def _failures(futures: Iterable[Future[T]]) -> dict[int, BaseException]:
    """Rank -> its error, of those that are done and failed."""
    found = {}
    for rank, future in enumerate(futures):
        error = future.exception(timeout=0) if future.done() else None
        if error is not None:
            found[rank] = error
    return found


def _to_blame(failures: dict[int, BaseException], ranks: int) -> BaseException:
    """The error of several ranks' that is the cause of the others, with the rank's number."""

    def is_of_others(rank: int) -> bool:
        return any(word in str(failures[rank]).lower() for word in _OF_OTHERS)

    rank = min(failures, key=lambda rank: (is_of_others(rank), rank))
    error = failures[rank]
    alike = {str(one) for one in failures.values()}
    if isinstance(error, HostgapError) and not (len(failures) == ranks and len(alike) == 1):
        error.message = f"rank {rank}: {error.message}"
        error.args = (error.message,)
    return error


def devices_for(ranks: int, device: str | None = None) -> list[str | None]:
    """The GPU that each of some ranks is to see, as CUDA_VISIBLE_DEVICES takes it.

    Args:
        ranks: how many GPUs are needed.
        device: what the user named, separated by commas; None for those that are there.

    Raises:
        ConfigError: there are fewer.
    """
    named = device if device is not None else os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        found = [one.strip() for one in named.split(",") if one.strip()]
        where = "--device" if device is not None else "CUDA_VISIBLE_DEVICES"
        has = f"{where} names {len(found)}"
    else:
        found = _listed()
        has = f"there {'is' if len(found) == 1 else 'are'} {len(found)}"
        if not found:  # nobody says; the processes see for themselves
            return [str(index) for index in range(ranks)]
    if len(found) < ranks:
        raise ConfigError(f"{ranks} ranks need {ranks} GPUs; {has}", "fewer with --ranks")
    return list(found[:ranks])


def _listed() -> list[str]:
    """Indices of this machine's GPUs; none where nvidia-smi is missing or does not say."""
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    if shutil.which(command[0]) is None:
        return []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []  # no driver: the processes say what is wrong
    return [line.strip() for line in done.stdout.splitlines() if line.strip().isdecimal()]


def _free_port() -> int:
    """A port of localhost that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
