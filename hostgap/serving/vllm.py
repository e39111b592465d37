"""vLLM: `--profiler-config`, `/start_profile` and `/stop_profile`.

Read from vLLM 0.33.0: entrypoints/serve/profile/api_router.py, config/profiler.py,
profiler/wrapper.py, v1/engine/async_llm.py, v1/worker/gpu_worker.py, v1/metrics/loggers.py.

The folder is the server's (`torch_profiler_dir`), the recording is this request's:
`delay_iterations` and `max_iterations` in the body of `/start_profile`. Servers before that ignore
the body and record until `/stop_profile`, so the steps are counted here too, by
`vllm:iteration_tokens_total`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from hostgap.errors import HostgapError
from hostgap.serving.engine import About, Label, Session, busy, not_stopped, refused
from hostgap.serving.metrics import Samples, scrape, total
from hostgap.serving.server import Server

_STEPS = "vllm:iteration_tokens_total_count"  # one observation per engine step
_POLL_S = 0.2
_BLIND_S = 5.0  # how long to record where the server does not count steps
_MARGIN = 2  # steps: the profiler ends one step after the last that it keeps
_RANK = re.compile(r"(?:dp(\d+)_pp(\d+)_tp(\d+)(?:_dcp\d+)?(?:_ep\d+)?_)?rank(\d+)(?=[._])")


class Vllm:
    """See `hostgap.serving.engine.Engine`; `start_step` is `delay_iterations`: steps to skip."""

    name = "vllm"
    histograms = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
    patterns = ("*.pt.trace.json", "*.pt.trace.json.gz")

    def about(self, server: Server) -> About:
        """The version; vLLM does not say how many workers it has."""
        answer = server.get("/version")
        version = answer.text("version")
        if answer.status != 200 or version is None:
            raise HostgapError(
                f"{server.url} does not answer as vLLM does: /version gives HTTP {answer.status}",
                "is it the right URL, and the right --engine?",
            )
        return About(version, None)

    def running(self, server: Server, samples: Samples | None) -> int | None:
        """The gauge, over all engines."""
        running = None if samples is None else total(samples, "vllm:num_requests_running")
        return None if running is None else round(running)

    def start(self, server: Server, session: Session) -> None:
        """POST /start_profile: 409 when a session is active, 404 without `--profiler-config`."""
        payload = {
            "profile_prefix": session.prefix,
            "delay_iterations": session.start_step,
            "max_iterations": session.steps,
        }
        answer = server.post("/start_profile", payload, timeout_s=session.timeout_s)
        if answer.status == 409:
            raise busy(server, f"{server.url} is being profiled already")
        if answer.status != 200:
            raise refused(self, server, session, answer)

    def wait(self, server: Server, session: Session, say: Callable[[str], None]) -> bool:
        """Count steps until there are enough; True: vLLM's session lasts until it is stopped.

        Raises:
            HostgapError: no step at all was made in time, or the server went away.
        """
        first = _steps(server)
        if first is None:
            say(f"the server does not count its steps: recording for {_BLIND_S:g} s")
            time.sleep(min(_BLIND_S, session.timeout_s))
            return True
        wanted = session.start_step + session.steps + _MARGIN
        begin = time.monotonic()
        done = 0
        while done < wanted:
            if time.monotonic() - begin > session.timeout_s:
                if done <= session.start_step:
                    raise HostgapError(
                        f"{server.url} made {done} steps in {session.timeout_s:g} s:"
                        " there is nothing to trace",
                        "keep requests coming while it is traced, or raise --timeout",
                    )
                say(f"only {done} steps in {session.timeout_s:g} s: taking those")
                return True
            time.sleep(_POLL_S)
            now = _steps(server) or {}
            # engines of a data-parallel server step each on their own: the busiest counts
            done = max([0, *(round(now[key] - first.get(key, 0.0)) for key in now)])
            say(f"recording: step {min(done, wanted)} of {wanted}")
        return True

    def stop(self, server: Server, timeout_s: float) -> bool:
        """POST /stop_profile; it answers when the workers have written their traces."""
        answer = server.post("/stop_profile", None, timeout_s=timeout_s)
        if answer.status != 200:
            raise not_stopped(server, answer)
        return True

    def label(self, name: str) -> Label | None:
        """`PREFIX_dp0_pp0_tp1_dcp0_ep1_rank1.TIME.pt.trace.json.gz`, `HOST_PID.async_llm...`."""
        if ".async_llm." in name:
            return Label("frontend", "frontend (CPU only)", ())
        match = _RANK.search(name)
        if match is None:
            return Label("worker", name.split(".")[0], ())
        place = [
            f"{kind}{number}"
            for kind, number in zip(("dp", "pp", "tp"), match.groups(), strict=False)
            if number is not None
        ]
        text = f"rank {match[4]}" + (f" ({' '.join(place)})" if place else "")
        return Label("worker", text, (int(match[4]),))

    def where(self, folder: Path) -> str:
        """`--profiler-config`, since vLLM 0.13."""
        config = f'{{"profiler": "torch", "torch_profiler_dir": "{folder}"}}'
        return f"start it so: vllm serve MODEL --profiler-config '{config}'"


def _steps(server: Server) -> dict[str, float] | None:
    """Engine -> the steps that it has made; None where the server does not count them."""
    samples = scrape(server)
    if samples is None or _STEPS not in samples:
        return None
    return dict(samples[_STEPS])
