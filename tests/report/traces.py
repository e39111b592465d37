"""Small traces as torch.profiler writes them, for the report's tests."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAIN = 100  # the process, and its main thread


@dataclass
class Trace:
    """Events of one process and one GPU; times in us from 0."""

    events: list[dict[str, Any]] = field(default_factory=list)
    correlation: int = 0

    def event(self, cat: str, name: str, ts: float, dur: float, **more: Any) -> None:
        row = {"ph": "X", "cat": cat, "name": name, "pid": MAIN, "tid": MAIN}
        self.events.append({**row, "ts": 1_000_000 + ts, "dur": dur, **more})

    def launch(
        self,
        name: str,
        call: float,
        start: float,
        dur: float,
        *,
        stream: int = 7,
        device: int = 0,
        call_dur: float = 5,
    ) -> None:
        """A kernel and the call that launched it."""
        self.correlation += 1
        link = {"correlation": self.correlation}
        self.event("cuda_runtime", "cudaLaunchKernel", call, call_dur, args=link)
        shape = {"grid": [4, 2, 1], "block": [128, 1, 1], "est. achieved occupancy %": 37}
        args = {**link, **shape, "device": device, "stream": stream, "context": 1}
        self.event("kernel", name, start, dur, pid=device, tid=stream, args=args)

    def sync(self, start: float, dur: float) -> None:
        self.correlation += 1
        args = {"correlation": self.correlation}
        self.event("cuda_runtime", "cudaDeviceSynchronize", start, dur, args=args)

    def write(self, path: Path) -> Path:
        gpus = [{"id": 0, "name": "NVIDIA H200"}, {"id": 1, "name": "NVIDIA H200"}]
        document = {"schemaVersion": 1, "deviceProperties": gpus, "traceEvents": self.events}
        path.write_text(json.dumps(document), encoding="utf-8")
        return path


def steps(
    count: int = 6, kernels: int = 20, *, name: str = "gemm", op: str = "aten::mm", stack: str = ""
) -> Trace:
    """A launch-bound loop: each kernel of 2 us is launched every 20 us, then a synchronize."""
    trace = Trace()
    for step in range(count):
        begin = step * (kernels * 20 + 60)
        trace.event("user_annotation", f"ProfilerStep#{step}", begin, kernels * 20 + 50)
        if stack:
            trace.event("python_function", stack, begin + 0.5, kernels * 20 + 40)
        for k in range(kernels):
            at = begin + 1 + k * 20
            trace.event("cpu_op", op, at, 15)
            trace.launch(f"{name}_{k % 3}", at + 5, at + 14, 2)
        trace.sync(begin + kernels * 20 + 2, 30)
    return trace


# What a name can hold to get out of wherever it is put.
HOSTILE = {
    "script": "</script><script>document.title='pwned'</script>",
    "image": "<img src=x onerror=\"document.title='pwned'\">",
    "quotes": "a\"b'c`d",
    "link": "javascript:document.title='pwned'",
    "bidi": "safe\u202egnp.exe\u2066",
    "comment": "<!-- --> ]]> {{ 7 * 7 }} {% raw %}",
    "long": "k" * 10_000,
    "control": "bell\x07 escape\x1b[31m",
}


def hostile() -> Trace:
    """Hostile names everywhere a trace has names."""
    trace = Trace()
    names = list(HOSTILE.values())
    for step in range(5):
        begin = step * 1_000
        trace.event("user_annotation", f"ProfilerStep#{step}", begin, 990)
        for k, name in enumerate(names * 3):
            at = begin + 5 + k * 35
            trace.event("python_function", f"{name}.py(12): {name}", at, 30)
            trace.event("cpu_op", name, at + 1, 28)
            trace.launch(name, at + 5, at + 25, 2)
        trace.sync(begin + 900, 60)
    return trace


def streams(count: int = 500) -> Trace:
    """Kernels on very many streams."""
    trace = Trace()
    for step in range(3):
        begin = step * (count * 10 + 100)
        trace.event("user_annotation", f"ProfilerStep#{step}", begin, count * 10 + 50)
        for k in range(count):
            trace.launch(f"kernel_{k % 5}", begin + k * 10, begin + k * 10 + 6, 30, stream=k + 7)
        trace.sync(begin + count * 10, 20)
    return trace


def one_kernel() -> Trace:
    trace = Trace()
    trace.launch("lonely", 0, 20, 5)
    return trace


def long_kernel() -> Trace:
    """10 s of one kernel."""
    trace = Trace()
    trace.launch("spin", 0, 20, 10_000_000)
    trace.sync(10, 10_000_020)
    return trace


def two_devices() -> Trace:
    trace = Trace()
    for step in range(5):
        begin = step * 300
        trace.event("user_annotation", f"ProfilerStep#{step}", begin, 290)
        for k in range(10):
            trace.launch("left", begin + k * 20, begin + k * 20 + 8, 6, device=0)
            trace.launch("right", begin + k * 20 + 6, begin + k * 20 + 14, 3, device=1)
        trace.sync(begin + 220, 30)
    return trace
