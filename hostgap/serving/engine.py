"""What every serving engine can do for `attach`; one module per engine implements it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from hostgap.errors import HostgapError
from hostgap.serving.metrics import Samples
from hostgap.serving.server import Answer, Server

Role = Literal["worker", "frontend"]


@dataclass(frozen=True, slots=True)
class Session:
    """One recording.

    Attributes:
        steps: how many engine steps to record.
        start_step: see the engine: which step to begin with.
        folder: where the server writes its traces, absolute.
        prefix: what this recording's files begin with, where the server can be told.
        timeout_s: how long to wait for the steps, and again for the files, seconds.
    """

    steps: int
    start_step: int
    folder: Path
    prefix: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class About:
    """What a server says about itself.

    Attributes:
        version: of the engine.
        ranks: how many trace files of workers to wait for; None where it does not say.
    """

    version: str
    ranks: int | None


@dataclass(frozen=True, slots=True)
class Label:
    """What a trace file is.

    Attributes:
        role: a worker's (CPU and GPU) or the frontend's (CPU only).
        text: for people, such as "TP 0" or "rank 3".
        order: sorts ranks as numbers.
    """

    role: Role
    text: str
    order: tuple[int, ...]


class Engine(Protocol):
    """A serving engine's profile endpoints and files."""

    @property
    def name(self) -> str:
        """As `--engine` calls it."""

    @property
    def histograms(self) -> Sequence[str]:
        """Metrics that hold the time between tokens, the best first."""

    @property
    def patterns(self) -> Sequence[str]:
        """Globs of its trace files' names."""

    def about(self, server: Server) -> About:
        """What the server is.

        Raises:
            HostgapError: it cannot be reached or is no such engine.
        """

    def running(self, server: Server, samples: Samples | None) -> int | None:
        """How many requests run at the moment; None where the server does not say."""

    def start(self, server: Server, session: Session) -> None:
        """Ask for a recording.

        Raises:
            Refused: the server does not start one, and nothing has to be stopped.
        """

    def wait(self, server: Server, session: Session, say: Callable[[str], None]) -> bool:
        """Wait for the steps where the server does not end by itself.

        Returns:
            Whether `stop` has to be called for the files to be written.
        """

    def stop(self, server: Server, timeout_s: float) -> bool:
        """End the recording.

        Returns:
            Whether there was one to end.

        Raises:
            HostgapError: the server does not end it; it may go on.
        """

    def label(self, name: str) -> Label | None:
        """What the file of that name is; None for what is no trace of its own."""

    def where(self, folder: Path) -> str:
        """How a server is started so that its traces lie in `folder`; one line."""


class Refused(HostgapError):
    """The server did not start a recording: there is none of ours to stop."""


def refused(engine: Engine, server: Server, session: Session, answer: Answer) -> Refused:
    """The error for a `/start_profile` that did not answer 200."""
    if answer.status == 404:
        return Refused(
            f"{server.url} has no /start_profile: it was started without profiling",
            engine.where(session.folder),
        )
    why = answer.why()
    return Refused(
        f"{server.url}/start_profile: HTTP {answer.status}" + (f": {why}" if why else ""),
        "see the server's log",
    )


def not_stopped(server: Server, answer: Answer) -> HostgapError:
    """The error for a `/stop_profile` that ended nothing."""
    why = answer.why()
    return HostgapError(
        f"{server.url}/stop_profile: HTTP {answer.status}" + (f": {why}" if why else ""),
        "see the server's log",
    )


def busy(server: Server, what: str) -> Refused:
    """The error for a server that somebody else profiles."""
    return Refused(what, f"wait for it, or end it: curl -X POST {server.url}/stop_profile")
