"""Servers that speak the profile endpoints of vLLM 0.33.0 and SGLang 0.5.23, and write real traces.

What they check and answer follows those versions' sources; see docs/serving.md. Their steps pass by
the clock. The traces are bundled ones with the engine's own names for the steps.
"""

from __future__ import annotations

import functools
import gzip
import json
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from hostgap import samples

STEP_S = 0.004
TOKEN_S = 0.0125  # what the histogram says a token takes

CPU_ONLY = {
    "schemaVersion": 1,
    "traceEvents": [
        {"ph": "X", "cat": "cpu_op", "name": "x", "pid": 1, "tid": 1, "ts": 1000 + 10 * i, "dur": 5}
        for i in range(20)
    ],
}


@functools.lru_cache
def worker_trace(step: str) -> bytes:
    """A bundled trace whose steps are called as an engine calls them, gzipped."""
    text = gzip.decompress(samples.sample("gpu_bound").read()).decode()
    return gzip.compress(re.sub(r"ProfilerStep#\d+", step, text).encode(), mtime=0)


@functools.lru_cache
def frontend_trace() -> bytes:
    return gzip.compress(json.dumps(CPU_ONLY).encode(), mtime=0)


@dataclass
class Reply:
    status: int = 200
    body: object = ""


@dataclass
class Fake(ABC):
    """What both engines have. `running` 0 means that no step is made."""

    folder: Path
    running: int = 4
    key: str | None = None
    metrics: bool = True
    ranks: int = 1
    damage: str = ""  # to the traces: "cut", "garbage", "text"
    dies_at: str = ""  # a path: hangs up there and is gone
    writes: bool = True
    active: bool = False
    born: float = field(default_factory=time.monotonic)
    asked: list[tuple[str, str, Any]] = field(default_factory=list)  # method, path, payload
    keys: set[str] = field(default_factory=set)
    threads: list[threading.Thread] = field(default_factory=list)
    url: str = ""

    prefix: ClassVar[str]

    def steps(self) -> int:
        return int((time.monotonic() - self.born) / STEP_S) if self.running else 7

    def write(self, name: str, data: bytes) -> None:
        if not self.writes:
            return
        if self.damage == "cut":
            data = data[: len(data) // 2]
        elif self.damage == "garbage":
            middle = len(data) // 2
            data = data[:middle] + bytes(200) + data[middle + 200 :]
        elif self.damage == "text":
            data = gzip.compress(b'{"traceEvents": "none"}')
        with (self.folder / name).open("wb") as stream:  # as gzip does, bit by bit
            for at in range(0, len(data), 4096):
                stream.write(data[at : at + 4096])
                stream.flush()
                time.sleep(0.02)

    def page(self, gauge: str, histogram: str) -> str:
        label = '{engine="0",model_name="a {b} \\"c\\""}'
        tokens = self.steps() * self.running
        return "\n".join(
            [
                "# HELP a b",
                f"# TYPE {histogram} histogram",
                f'{histogram}_bucket{{engine="0",le="+Inf"}} {tokens}',
                f"{histogram}_sum{label} {tokens * TOKEN_S}",
                f"{histogram}_count{label} {float(tokens)}",
                f"{gauge}{label} {float(self.running)}",
                f"vllm:iteration_tokens_total_count{label} {float(self.steps())}",
            ]
        )

    @abstractmethod
    def answer(self, method: str, path: str, payload: Any) -> Reply:
        """What the engine says to a request."""

    def allowed(self, path: str, header: str | None) -> bool:
        return self.key is None or header == f"Bearer {self.key}"


@dataclass
class FakeVllm(Fake):
    profiler: str | None = "torch"
    per_session: bool = True  # False: a server that ignores the body
    frontend: bool = True

    session: dict[str, Any] = field(default_factory=dict)

    def answer(self, method: str, path: str, payload: Any) -> Reply:
        if (method, path) == ("GET", "/version"):
            return Reply(body={"version": "0.33.0"})
        if (method, path) == ("GET", "/metrics") and self.metrics:
            return Reply(
                body=self.page("vllm:num_requests_running", "vllm:inter_token_latency_seconds")
            )
        if path in ("/start_profile", "/stop_profile") and self.profiler is not None:
            if method != "POST":
                return Reply(405, {"detail": "Method Not Allowed"})
            return self.start(payload) if path == "/start_profile" else self.stop()
        return Reply(404, {"detail": "Not Found"})

    def start(self, payload: Any) -> Reply:
        if not self.per_session:
            self.active, self.session = True, {}
            return Reply()
        sent = payload or {}
        kinds = {"profile_prefix": str, "delay_iterations": int, "max_iterations": int}
        for key, kind in kinds.items():  # strict: no text for a number
            if sent.get(key) is not None and type(sent[key]) is not kind:
                return Reply(400, {"error": {"message": f"{key}: wrong type"}})
        if self.active:
            said = "A profiling session is already active. Call /stop_profile before starting"
            return Reply(409, {"error": {"message": said, "type": "Conflict", "code": 409}})
        prefix = sent.get("profile_prefix")
        if prefix is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", prefix):
            return Reply(400, {"error": {"message": "profile_prefix must be"}})
        if min(sent.get("delay_iterations") or 0, sent.get("max_iterations") or 0) < 0:
            return Reply(400, {"error": {"message": "must be greater than or equal to 0"}})
        self.active, self.session = True, sent
        return Reply()

    def stop(self) -> Reply:
        if self.active and self.profiler == "torch":
            prefix = self.session.get("profile_prefix")
            begin = f"{prefix}_" if prefix else ""
            for rank in range(self.ranks):
                name = f"{begin}dp0_pp0_tp{rank}_dcp0_ep{rank}_rank{rank}"
                step = "execute_context_0(0)_generation_4(4)"
                self.write(f"{name}.{time.time_ns()}.pt.trace.json.gz", worker_trace(step))
            if self.frontend:
                name = f"{begin}host_77.async_llm.{time.time_ns()}.pt.trace.json.gz"
                self.write(name, frontend_trace())
        self.active = False
        return Reply()


@dataclass
class FakeSglang(Fake):
    follows_prefix: bool = True
    loads: bool = True
    merges: bool = False
    admin_key: str | None = None
    old_info: bool = False
    sizes: dict[str, Any] = field(default_factory=dict)

    armed: dict[str, Any] | None = None

    def allowed(self, path: str, header: str | None) -> bool:
        if path.startswith(("/health", "/metrics")):
            return True
        if path.endswith("_profile") and self.admin_key is not None:
            return header == f"Bearer {self.admin_key}"
        return super().allowed(path, header)

    def answer(self, method: str, path: str, payload: Any) -> Reply:
        info = {"tp_size": self.ranks, "pp_size": 1, "dp_size": 1, "nnodes": 1, **self.sizes}
        if path == ("/get_server_info" if self.old_info else "/server_info"):
            return Reply(body={**info, "version": "0.5.23"})
        if path == "/v1/loads" and self.loads:
            load = {"dp_rank": 0, "num_running_reqs": self.running}
            return Reply(body={"version": "0.5.23", "loads": [load]})
        if path == "/metrics" and self.metrics:
            return Reply(
                body=self.page("sglang:num_running_reqs", "sglang:inter_token_latency_seconds")
            )
        if path == "/start_profile":
            return self.start(payload or {})
        if path == "/stop_profile":
            if not self.active:
                return Reply(500, "Internal Server Error")
            self.flush()
            return Reply(body="Stop profiling. This will take some time.\n")
        return Reply(404, {"detail": "Not Found"})

    def start(self, sent: dict[str, Any]) -> Reply:
        kinds: dict[str, type] = {
            "output_dir": str,
            "start_step": int,
            "num_steps": int,
            "activities": list,
            "profile_by_stage": bool,
            "merge_profiles": bool,
            "profile_prefix": str,
        }
        for key, value in sent.items():
            if value is not None and type(value) is not kinds[key]:
                return Reply(400, {"message": f"{key}: wrong type", "code": 400})
        if self.active:
            return Reply(500, "Internal Server Error")
        self.armed = sent
        # without start_step the profiler starts at once, else at the next forward pass
        self.active = bool(self.running) or not sent.get("start_step")
        if self.running:
            thread = threading.Thread(target=self.run, args=(sent["num_steps"],))
            self.threads.append(thread)
            thread.start()
        return Reply(body="Start profiling.\n")

    def run(self, steps: int) -> None:
        time.sleep(steps * STEP_S)
        if self.active:
            self.flush()

    def flush(self) -> None:
        sent, self.active = self.armed or {}, False
        assert Path(sent["output_dir"]).is_absolute()
        prefix = f"{sent['profile_prefix']}-" if self.follows_prefix else ""
        begin = f"{prefix}{time.time()}"
        for rank in range(self.ranks):
            name = f"{begin}-TP-{rank}.trace.json.gz"
            self.write(name, worker_trace("step[DECODE bs=4]"))
        if self.merges:
            self.write(f"merged-{begin}-TP-0.trace.json.gz", worker_trace("step[DECODE bs=4]"))


class Handler(BaseHTTPRequestHandler):
    fake: ClassVar[Fake]

    def do_GET(self) -> None:
        self.reply("GET")

    def do_POST(self) -> None:
        self.reply("POST")

    def reply(self, method: str) -> None:
        fake = self.fake
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        payload = json.loads(body) if body else None
        if body:
            assert self.headers["Content-Type"] == "application/json"
        fake.asked.append((method, self.path, payload))
        header = self.headers.get("Authorization")
        fake.keys.add(header or "")
        if self.path == fake.dies_at:
            assert isinstance(self.server, ThreadingHTTPServer)
            self.server.socket.close()
            self.connection.close()
            return
        if not fake.allowed(self.path, header):
            answer = Reply(401, {"error": "Unauthorized"})
        else:
            answer = fake.answer(method, self.path, payload)
        text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
        self.send_response(answer.status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that has gone


@contextmanager
def served(fake: Fake) -> Iterator[Fake]:
    """Let a fake server answer at `fake.url`."""
    handler = type("Bound", (Handler,), {"fake": fake})
    server = _Quiet(("127.0.0.1", 0), handler)
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        for other in fake.threads:
            other.join()
