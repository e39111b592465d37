"""SGLang: `/start_profile`, which ends by itself after `num_steps`.

Read from SGLang 0.5.23: srt/entrypoints/http_server.py and v1_loads.py, srt/managers/io_struct.py
(`ProfileReq`), srt/managers/scheduler_components/profiler_manager.py, srt/managers/
tokenizer_control_mixin.py, srt/utils/auth.py and profile_merger.py, srt/observability/
metrics_collector.py.

The endpoint is always there, and the folder is this request's. The server does not say when it has
written the files: they are waited for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from hostgap.errors import HostgapError
from hostgap.serving.engine import About, Label, Session, busy, not_stopped, refused
from hostgap.serving.metrics import Samples, total, whole
from hostgap.serving.server import Answer, KeyRefused, Server

_RANKS = re.compile(
    r"-TP-(\d+)(?:-DP-(\d+))?(?:-PP-(\d+))?(?:-EP-(\d+))?(-[A-Za-z_]+)?\.trace\.json\.gz$"
)
_MOST_RANKS = 1_000_000


class Sglang:
    """See `hostgap.serving.engine.Engine`.

    `start_step` is SGLang's own: the forward pass, counted since the server started, before which
    it does not begin. On a server that has made more it begins with the next.
    """

    name = "sglang"
    histograms = ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds")
    patterns = ("*-TP-*.trace.json.gz",)

    def about(self, server: Server) -> About:
        """The version, and how many ranks write a file on this node."""
        try:
            answer = _info(server)
        except KeyRefused:
            # with --admin-api-key beside --api-key, the key for profiling does not open this page
            return About("unknown", None)
        info = answer.json()
        version = answer.text("version")
        if answer.status != 200 or version is None:
            raise HostgapError(
                f"{server.url} does not answer as SGLang does:"
                f" /server_info gives HTTP {answer.status}",
                "is it the right URL, and the right --engine?",
            )
        sizes = [whole(info.get(key)) for key in ("tp_size", "pp_size", "dp_size", "nnodes")]
        if not all(sizes):
            return About(version, None)
        tp, pp, dp, nodes = (size or 1 for size in sizes)
        # attention's data parallelism splits the tensor-parallel ranks, and adds none
        ranks = tp * pp * (1 if info.get("enable_dp_attention") else dp)
        return About(version, max(ranks // nodes, 1) if ranks <= _MOST_RANKS else None)

    def running(self, server: Server, samples: Samples | None) -> int | None:
        """/v1/loads, which is live; else the gauge, which follows every few dozen steps."""
        try:
            loads = server.get("/v1/loads").json().get("loads")
        except KeyRefused:  # as for `about`
            loads = None
        if isinstance(loads, list):
            counts = [load.get("num_running_reqs") for load in loads if isinstance(load, dict)]
            known = [count for count in map(whole, counts) if count is not None]
            if known:
                return whole(sum(known))
        running = None if samples is None else total(samples, "sglang:num_running_reqs")
        return None if running is None else round(running)

    def start(self, server: Server, session: Session) -> None:
        """POST /start_profile: 500 when one is in progress, as for every error of a scheduler."""
        payload: dict[str, object] = {
            "output_dir": str(session.folder),
            "num_steps": session.steps,
            "activities": ["CPU", "GPU"],
            "profile_by_stage": False,
            "merge_profiles": False,
            "profile_prefix": session.prefix,
        }
        if session.start_step > 0:
            payload["start_step"] = session.start_step
        answer = server.post("/start_profile", payload, timeout_s=session.timeout_s)
        if answer.status == 500:
            raise busy(
                server,
                f"{server.url}/start_profile: HTTP 500: a profile is in progress already,"
                " or could not be started (see the server's log)",
            )
        if answer.status != 200:
            raise refused(self, server, session, answer)

    def wait(self, server: Server, session: Session, say: Callable[[str], None]) -> bool:
        """Nothing to wait for but the files."""
        say(f"recording {session.steps} steps")
        return False

    def stop(self, server: Server, timeout_s: float) -> bool:
        """POST /stop_profile: 500 when nothing is recorded, also before the first step of it."""
        answer = server.post("/stop_profile", None, timeout_s=timeout_s)
        if answer.status not in (200, 500):
            raise not_stopped(server, answer)
        return answer.status == 200

    def label(self, name: str) -> Label | None:
        """`PREFIX-ID-TP-0[-DP-0][-PP-0][-EP-0][-DECODE].trace.json.gz`; not `merged-ID...`."""
        match = _RANKS.search(name)
        if match is None or name.startswith("merged-"):
            return None
        kinds = ("TP", "DP", "PP", "EP")
        numbers = {
            kind: number
            for kind, number in zip(kinds, match.groups(), strict=False)
            if number is not None
        }
        text = " ".join(f"{kind} {number}" for kind, number in numbers.items())
        stage = (match[5] or "").lstrip("-")
        order = tuple(int(numbers.get(kind, 0)) for kind in ("DP", "PP", "TP", "EP"))
        return Label("worker", f"{text} {stage}".strip(), order)

    def where(self, folder: Path) -> str:
        """Any SGLang server has the endpoint."""
        return f"is this SGLang's own port, and not a router's? It has to see {folder}, too"


def _info(server: Server) -> Answer:
    answer = server.get("/server_info")
    return server.get("/get_server_info") if answer.status == 404 else answer  # its name before
