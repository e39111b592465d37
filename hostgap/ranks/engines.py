"""Where the jobs run: a pool of processes on this machine, or a Dask cluster.

Both run `run_job`, the same code for each rank, and hand out each outcome once. A worker that dies
(out of memory, mostly) takes only its own job with it: that is tried again, and given up when it
has killed `TRIES` workers.
"""

from __future__ import annotations

import math
import multiprocessing
import re
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from hostgap.cores import usable_cores
from hostgap.errors import HostgapError
from hostgap.ranks.job import Job, Outcome, run_job

TRIES = 2
_ADDRESS = re.compile(r"(?:[a-z+]+://)?[^\s/]+:\d{1,5}(?:/\S*)?|inproc://\S+")
TIMEOUT_S = "10s"  # for a Dask scheduler to answer


class Engine(Protocol):
    """Runs jobs."""

    def outcomes(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """The outcome of each job, once each, as they come.

        Raises:
            HostgapError: the engine itself does not work.
        """


class Local:
    """A pool of processes, each with one rank at a time; with one process, this one.

    Args:
        processes: how many, None for one per core.
    """

    def __init__(self, processes: int | None = None) -> None:
        self.processes = processes or math.ceil(usable_cores())

    def outcomes(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """See `Engine`."""
        n = min(self.processes, len(jobs))
        if n <= 1:
            for job in jobs:
                yield run_job(job)
            return
        # the longest first, so that none is left over at the end
        todo = deque(sorted(jobs, key=lambda job: -job.size))
        tries: dict[int, int] = {}
        workers: list[_Worker] = []
        try:
            workers += [_Worker() for _ in range(n)]
            for worker in workers:
                worker.give(todo)
            while any(worker.job is not None for worker in workers):
                ready = wait([worker.pipe for worker in workers if worker.job is not None])
                for at, worker in enumerate(workers):
                    if worker.pipe not in ready or worker.job is None:
                        continue
                    job, outcome = worker.job, worker.take()
                    if outcome is None:  # it died
                        worker.stop()
                        workers[at] = worker = _Worker()
                        tries[job.index] = tries.get(job.index, 0) + 1
                        if tries[job.index] < TRIES:
                            todo.append(job)
                        else:
                            yield _killed(job)
                    else:
                        yield outcome
                    worker.give(todo)
        finally:
            for worker in workers:
                worker.stop()


def _killed(job: Job) -> Outcome:
    return Outcome(
        job.index,
        error=f"{job.name}: the process that read it was killed, each time it was tried",
        hint="out of memory? run fewer at once (--jobs), or fewer steps (--steps)",
    )


class _Worker:
    """A process that runs one job after another."""

    def __init__(self) -> None:
        # fresh processes: a fork of one with threads (a progress bar's) may hang
        context = multiprocessing.get_context("spawn")
        self.pipe: Connection
        self.pipe, theirs = context.Pipe()
        self.job: Job | None = None
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs,), daemon=True)
        # Ctrl-C reaches all processes of a terminal: this one alone is to answer it. What is
        # blocked here stays blocked in the child.
        blocked = _block_interrupt()
        try:
            self.process.start()
        finally:
            if blocked is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        theirs.close()

    def give(self, todo: deque[Job]) -> None:
        """The next job, if there is one."""
        self.job = todo.popleft() if todo else None
        if self.job is not None:
            try:
                self.pipe.send(self.job)
            except OSError:  # it died meanwhile: reading from it will tell
                return

    def take(self) -> Outcome | None:
        """The outcome of its job, None when it has died."""
        try:
            outcome = self.pipe.recv()
        except (EOFError, OSError):
            return None
        self.job = None
        assert isinstance(outcome, Outcome)
        return outcome

    def stop(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join()


def _block_interrupt() -> set[signal.Signals] | None:
    if not hasattr(signal, "pthread_sigmask"):
        return None
    return {
        signal.Signals(number)
        for number in signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    }


def _serve(pipe: Connection) -> None:
    """What a worker process does: jobs in, outcomes out, until the pipe is closed."""
    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            pipe.send(run_job(job))
        except OSError:  # nobody listens any more
            return


class Dask:
    """A Dask cluster, whose workers see the same files.

    Args:
        address: of its scheduler, such as `tcp://host:8786`.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    def outcomes(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """See `Engine`. Dask itself runs again what a lost worker had, results included."""
        try:
            import distributed
        except ImportError as error:
            raise HostgapError(
                "--engine dask needs the distributed package", "pip install 'hostgap[dask]'"
            ) from error
        if not _ADDRESS.fullmatch(self.address):  # Dask would try it for long, and complain twice
            raise HostgapError(
                f"--scheduler {self.address}: that is no address", "such as tcp://HOST:8786"
            )
        try:
            client: Any = distributed.Client(self.address, timeout=TIMEOUT_S, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise HostgapError(
                f"--scheduler {self.address}: no Dask scheduler answers there",
                "start one: dask scheduler, and dask worker ADDRESS on each machine",
            ) from error
        with client:
            if not client.ncores():
                raise HostgapError(
                    f"--scheduler {self.address}: it has no workers",
                    f"start one on each machine: dask worker {self.address}",
                )
            suspects: list[Job] = []
            futures = {
                client.submit(run_job, job, pure=False): job
                for job in sorted(jobs, key=lambda job: -job.size)
            }
            for future in distributed.as_completed(list(futures), loop=client.loop):
                job = futures.pop(future)
                try:
                    outcome = future.result()
                except distributed.KilledWorker:
                    suspects.append(job)
                    continue
                future.release()  # so that neither scheduler nor worker keeps it
                yield outcome
            # Dask suspects all that a lost worker had in hand: alone it shows which one it was
            for job in suspects:
                future = client.submit(run_job, job, pure=False)
                try:
                    yield future.result()
                except distributed.KilledWorker:
                    yield _killed(job)
