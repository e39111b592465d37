"""`attach`: from a running server to its trace files in a folder, with what they are."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from hostgap.errors import HostgapError
from hostgap.files import atomic_output, refuse_existing
from hostgap.output.printable import printable
from hostgap.serving.engine import About, Engine, Refused, Role, Session
from hostgap.serving.files import Folder, Found, Waiting, copy_all, listing, wait_for_files
from hostgap.serving.metrics import Load, TokenLatency, load_between, scrape
from hostgap.serving.server import Server, Unreachable
from hostgap.serving.sglang import Sglang
from hostgap.serving.vllm import Vllm

ENGINES: dict[str, Callable[[], Engine]] = {"vllm": Vllm, "sglang": Sglang}
SUMMARY = "serving.json"
LOAD_S = 5.0  # for how long the load is looked at before the recording
_PARTING_S = 10.0  # for a last stop on the way out
_FLUSH_S = 30.0  # for the files of a recording that was stopped
_LOST = 3  # failed looks in a row before a server is said to have gone

Say = Callable[[str], None]


class TraceFile(msgspec.Struct, frozen=True):
    """A file of the recording.

    Attributes:
        file: its name in the folder, printable.
        role: worker, or frontend (CPU only, not to be diagnosed).
        label: which rank.
        bytes: its size.
    """

    file: str
    role: Role
    label: str
    bytes: int


class Serving(msgspec.Struct, frozen=True):
    """What `serving.json` holds.

    Attributes:
        schema: hostgap.serving/1.
        engine: vllm or sglang.
        version: the engine's.
        url: the server.
        steps: how many engine steps were asked for.
        start_step: what was asked for; its meaning is the engine's.
        bounded: whether the server took those two; False where it recorded until it was stopped.
            None where it cannot be told.
        requests_running: before the recording, None where the server does not say.
        inter_token_latency: without a profiler, just before the recording.
        inter_token_latency_missing: why there is none.
        files: the traces.
    """

    schema: Literal["hostgap.serving/1"]
    engine: str
    version: str
    url: str
    steps: int
    start_step: int
    bounded: bool | None
    requests_running: int | None
    inter_token_latency: TokenLatency | None
    inter_token_latency_missing: str | None
    files: list[TraceFile]


@dataclass(frozen=True, slots=True)
class Attached:
    """A finished recording: `serving` and where its files lie, in the same order."""

    serving: Serving
    paths: list[Path]


def attach(
    server: Server,
    engine: Engine,
    out: Path,
    trace_dir: Path,
    *,
    steps: int = 20,
    start_step: int = 5,
    timeout_s: float = 300.0,
    force: bool = False,
    say: Say,
    note: Say,
) -> Attached:
    """Trace a running server and copy its files into `out`, beside `serving.json`.

    Args:
        server: where it listens.
        engine: which engine it is.
        out: the folder to write to; made if it is not there, after everything else has worked.
        trace_dir: the folder that the server writes to, as seen from here and from there.
        steps: how many engine steps to record.
        start_step: see the engine's class.
        timeout_s: how long to wait for the steps, and again for the files, seconds.
        force: replace files in `out`.
        say: told what is being done, often.
        note: told what the user should know, seldom.

    Raises:
        HostgapError: it cannot be reached, is idle, refuses, goes away, or writes no file here.
    """
    folder = _checked(out, trace_dir, force=force)
    before = listing(folder, engine)
    about = engine.about(server)
    load, running = _load(server, engine, say)
    prefix = f"hostgap-{secrets.token_hex(4)}"
    session = Session(steps, start_step, folder, prefix, timeout_s)
    waiting = _record(server, engine, session, about, before, say, note)
    found = _usable(waiting, engine, server, session)
    workers = [one for one in found if one.label.role == "worker"]
    if about.ranks is not None and len(workers) < about.ranks:
        note(f"{len(workers)} of {about.ranks} ranks wrote a trace to {folder}")
    bounded = any(one.path.name.startswith(prefix) for one in workers)
    if not bounded and engine.name == "vllm":
        note("this vLLM takes no number of steps: all it did until it was stopped is in the trace")
    serving = Serving(
        schema="hostgap.serving/1",
        engine=engine.name,
        version=about.version,
        url=server.url,
        steps=steps,
        start_step=start_step,
        bounded=bounded if engine.name == "vllm" else True,
        requests_running=running,
        inter_token_latency=load.latency,
        inter_token_latency_missing=load.why_not,
        files=[
            TraceFile(printable(one.path.name), one.label.role, printable(one.label.text), one.size)
            for one in found
        ],
    )
    summary = msgspec.json.format(msgspec.json.encode(serving), indent=2) + b"\n"
    say("copying the traces")
    out.mkdir(parents=True, exist_ok=True)
    paths = copy_all(found, out, force=force)
    with atomic_output(out / SUMMARY, force=force) as stream:
        stream.write(summary)
    return Attached(serving, paths)


def _checked(out: Path, trace_dir: Path, *, force: bool) -> Path:
    """The trace folder, absolute; says no before anything is asked of the server."""
    if out.exists() and not out.is_dir():
        raise HostgapError(f"{out} is a file", "give -o the name of a folder")
    refuse_existing(out / SUMMARY, force=force)
    folder = trace_dir.resolve()
    if out.resolve() == folder:
        raise HostgapError(
            f"-o and --trace-dir are both {folder}", "give -o a folder that the server has not"
        )
    return folder


def _load(server: Server, engine: Engine, say: Say) -> tuple[Load, int | None]:
    """The server's load over a few seconds, and how many requests run.

    Raises:
        HostgapError: none runs.
    """
    begin = time.monotonic()
    first = scrape(server)
    if first is not None:
        say(f"reading the time between tokens, {LOAD_S:g} s without the profiler")
        time.sleep(LOAD_S)
    last = scrape(server) if first is not None else None
    load = load_between(first, last, engine.histograms, time.monotonic() - begin)
    running = engine.running(server, last)
    # between two requests none may run for a moment, but tokens were made
    if not load.tokens and (running == 0 or (running is None and load.tokens == 0)):
        raise HostgapError(
            f"{server.url}: no request is running: the trace would be empty",
            "send the server its usual load, and attach meanwhile",
        )
    return load, running


def _record(
    server: Server,
    engine: Engine,
    session: Session,
    about: About,
    before: Folder,
    say: Say,
    note: Say,
) -> Waiting:
    """Start, wait for the steps, stop, wait for the files; whatever happens, it is stopped."""
    alive = _Alive(server)
    ours = True  # from before the request: an answer that does not come may have started it
    stopped = False
    try:
        say("starting the profiler")
        engine.start(server, session)
        if engine.wait(server, session, say):
            say("stopping the profiler; the server writes its traces")
            engine.stop(server, session.timeout_s)
            ours = False
            stopped = True

        def files(timeout_s: float) -> Waiting:
            return wait_for_files(
                session.folder,
                engine,
                before,
                prefix=session.prefix,
                ranks=about.ranks,
                timeout_s=timeout_s,
                alive=alive,
                say=say,
            )

        # a server that was stopped has answered when its files are written: they come, or do not
        waiting = files(min(session.timeout_s, _FLUSH_S) if stopped else session.timeout_s)
        if ours and not waiting.found and not waiting.partial:
            stopped = engine.stop(server, session.timeout_s)
            ours = False
            if stopped:
                note(
                    f"the steps were not all made in {session.timeout_s:g} s: taking what there is"
                )
                return files(min(session.timeout_s, _FLUSH_S))
            raise HostgapError(
                f"{server.url}: nothing was recorded in {session.timeout_s:g} s",
                "keep requests coming while it is traced; it may still record its next steps",
            )
        ours = False
        return waiting
    except Refused:
        ours = False
        raise
    except Unreachable as error:
        if error.gone:
            ours = False
            raise HostgapError(
                f"{server.url} went away while it was traced", "see the server's log"
            ) from error
        raise
    finally:
        if ours:
            _part(server, engine, note)


def _part(server: Server, engine: Engine, note: Say) -> None:
    """Stop the profiler on the way out of an error or of Ctrl-C, which is what is reported."""
    try:
        if not engine.stop(server, _PARTING_S):
            note("the server records nothing now; it may still begin, with its next steps")
    except HostgapError as error:
        note(
            f"the profiler may still run ({error.message});"
            f" end it: curl -X POST {server.url}/stop_profile"
        )


class _Alive:
    """Raises once the server has failed to answer several times in a row."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lost = 0

    def __call__(self) -> None:
        self._lost = 0 if self._server.alive() else self._lost + 1
        if self._lost >= _LOST:
            raise Unreachable(f"{self._server.url} does not answer any more")


def _usable(
    waiting: Waiting, engine: Engine, server: Server, session: Session
) -> tuple[Found, ...]:
    """The files, if there is a worker's among them."""
    if waiting.partial:
        names = ", ".join(sorted(path.name for path in waiting.partial))
        raise HostgapError(
            f"{session.folder}: not complete after {waiting.waited_s:g} s: {names}",
            "raise --timeout if the server still writes it; else see the server's log",
        )
    if not waiting.found:
        raise HostgapError(
            f"no trace appeared in {session.folder}: does {server.url} see the same folder?",
            engine.where(session.folder),
        )
    if all(one.label.role == "frontend" for one in waiting.found):
        raise HostgapError(
            f"{session.folder} holds only the frontend's trace, without the GPU",
            "do the workers write to this folder, too? see the server's log",
        )
    return waiting.found
