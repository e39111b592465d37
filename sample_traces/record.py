"""Record the sample traces: one decode step, run in five ways, and a control that is GPU-bound.

    pip install -e '.[torch]'
    python sample_traces/record.py all                      # every trace and samples.json
    python sample_traces/record.py trace eager_item -o out  # one trace
    python sample_traces/record.py time -o out              # step times without a profiler

Needs a CUDA GPU. A profiler changes what it measures, and stays attached to its process once it has
run, so `all` starts a fresh process for every trace and takes the unprofiled times in one that
never profiles. The traces are what `export_chrome_trace` wrote, unedited.
"""

from __future__ import annotations

import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

# Inductor's default cache folder carries the user's name, which would then stand in every frame of
# compiled code. To be set before torch is imported.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / "inductor"))

import click
import torch
from torch.profiler import ProfilerActivity, profile, schedule

from hostgap.decoder.generate import GreedyDecoder
from hostgap.decoder.model import Decoder, build_decoder

PROMPT = torch.arange(1, 17)[None]  # [1, 16]: batch 1
EOS = 2
SETTLE_STEPS = 20  # run before anything is measured: compilation, graph recording, allocator
PROFILER_WARMUP = 3
TRACED_STEPS = 5
TIMED_STEPS = 40  # in one timed block
TIMED_REPEATS = 9  # blocks per variant, interleaved with those of the others
COMPARED_TOKENS = 32
GEMM_SIZE = 8192
GEMMS_PER_STEP = 4

Step = Callable[[], object]


def eager(decoder: GreedyDecoder) -> Step:
    """Every kernel launched on its own; the host never waits."""

    def decode_step() -> None:
        decoder.step()

    return decode_step


def eager_item(decoder: GreedyDecoder) -> Step:
    """The same, and every token is read back to test for the end of the sequence."""

    def decode_until_eos() -> None:
        decoder.step()
        if decoder.tokens.item() == EOS:
            decoder.prefill(PROMPT)  # the next request

    return decode_until_eos


def cuda_graph(decoder: GreedyDecoder) -> Step:
    """The whole step captured once and replayed as one CUDA graph."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # lazy initialisation must happen before the capture
        for _ in range(3):
            decoder.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decoder.step()

    def replay_step() -> None:
        graph.replay()

    return replay_step


def compiled(decoder: GreedyDecoder) -> Step:
    """torch.compile with its defaults: fewer kernels, each still launched on its own."""
    step = torch.compile(decoder.step, dynamic=False)

    def compiled_step() -> None:
        step()

    return compiled_step


def compiled_graphs(decoder: GreedyDecoder) -> Step:
    """torch.compile(mode="reduce-overhead"): fused kernels inside CUDA graphs."""
    step = torch.compile(decoder.step, dynamic=False, mode="reduce-overhead")

    def compiled_graph_step() -> None:
        step()

    return compiled_graph_step


def gpu_bound(_: GreedyDecoder) -> Step:
    """A control with nothing to fix: large matrix products that keep the GPU busy."""
    x = torch.randn(GEMM_SIZE, GEMM_SIZE, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn_like(x) / GEMM_SIZE**0.5

    def multiply() -> None:
        y = x
        for _ in range(GEMMS_PER_STEP):
            y = y @ weight

    return multiply


VARIANTS: dict[str, Callable[[GreedyDecoder], Step]] = {
    "eager": eager,
    "eager_item": eager_item,
    "cuda_graph": cuda_graph,
    "compile": compiled,
    "compile_graphs": compiled_graphs,
    "gpu_bound": gpu_bound,
}


@dataclass(frozen=True, slots=True)
class Runner:
    """One variant, warmed up: `step()` runs a step, `decoder.prefill(PROMPT)` starts it over."""

    step: Step
    decoder: GreedyDecoder

    @classmethod
    def warmed_up(cls, name: str, model: Decoder) -> Runner:
        """Make a variant and run it until it has settled."""
        decoder = GreedyDecoder(model)
        decoder.prefill(PROMPT)
        runner = cls(VARIANTS[name](decoder), decoder)
        runner.timed_block(SETTLE_STEPS)
        return runner

    def timed_block(self, steps: int) -> float:
        """Run `steps` steps from the prompt on, the device drained before and after: ms a step."""
        self.decoder.prefill(PROMPT)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3 / steps

    def decode(self, n_tokens: int) -> list[int]:
        """The first tokens this variant decodes after the prompt."""
        self.decoder.prefill(PROMPT)
        tokens = []
        for _ in range(n_tokens):
            self.step()
            tokens.append(int(self.decoder.tokens))
        return tokens


def step_times(model: Decoder) -> dict[str, dict[str, Any]]:
    """Unprofiled step times of all variants, and how far their tokens agree with eager's."""
    runners = {name: Runner.warmed_up(name, model) for name in VARIANTS}
    blocks: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(TIMED_REPEATS):
        for name, runner in runners.items():
            blocks[name].append(runner.timed_block(TIMED_STEPS))
    expected = runners["eager"].decode(COMPARED_TOKENS)
    figures = {}
    for name, times in blocks.items():
        figures[name] = {
            "unprofiled_step_ms": round(statistics.median(times), 4),
            "unprofiled_range_ms": [round(min(times), 4), round(max(times), 4)],
        }
        if name != "gpu_bound":
            decoded = runners[name].decode(COMPARED_TOKENS)
            same = sum(a == b for a, b in zip(decoded, expected, strict=True))
            figures[name]["tokens_equal_to_eager"] = f"{same} of {COMPARED_TOKENS}"
    return figures


def record(runner: Runner, path: Path) -> None:
    """Profile `TRACED_STEPS` steady steps into `path` (.json.gz)."""
    config = torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)
    runner.decoder.prefill(PROMPT)
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=0, warmup=PROFILER_WARMUP, active=TRACED_STEPS, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
        with_stack=True,
        experimental_config=config,
    ) as profiler:
        for index in range(PROFILER_WARMUP + TRACED_STEPS):
            runner.step()
            if index == PROFILER_WARMUP - 1:
                torch.cuda.synchronize()  # or kernels of the warm-up would run inside the window
            profiler.step()


def traced_figures(path: Path) -> dict[str, Any]:
    """Steps, kernels per step and step time as a recorded trace has them.

    A step lasts from the end of the last GPU operation of the step before to the end of its own
    last one; operations belong to the step whose host part launched them. The first step has none
    before it and is left out of the time.
    """
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    complete = [event for event in events if event.get("ph") == "X"]
    steps = sorted(
        (event["ts"], event["name"])
        for event in complete
        if event["name"].startswith("ProfilerStep#") and event.get("cat") == "user_annotation"
    )
    called_at = {
        event["args"].get("correlation"): event["ts"]
        for event in complete
        if event.get("cat") in ("cuda_runtime", "cuda_driver")
    }
    kernels: Counter[int] = Counter()
    last_end: dict[int, float] = {}
    for event in complete:
        if event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        launch = called_at[event["args"]["correlation"]]
        step = sum(start <= launch for start, _ in steps) - 1
        kernels[step] += event["cat"] == "kernel"
        last_end[step] = max(last_end.get(step, 0.0), event["ts"] + event["dur"])
    ends = [last_end[step] for step in range(len(steps))]
    periods = [after - before for before, after in pairwise(ends)]
    return {
        "steps": len(steps),
        "kernels_per_step": [kernels[step] for step in range(len(steps))],
        "traced_step_ms": round(statistics.median(periods) / 1e3, 4),
    }


def environment() -> dict[str, str]:
    """The GPU and the versions that matter."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    driver = subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip()
    return {
        "gpu": torch.cuda.get_device_name(0),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "driver": driver,
    }


def write_json(path: Path, value: object) -> None:
    """Write `value` as indented JSON."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    click.echo(f"Wrote {path} ({path.stat().st_size:,} bytes)")


out_option = click.option(
    "-o",
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(__file__).parent,
    help="Folder to write to; by default this script's.",
)


@click.group()
def main() -> None:
    """Record the sample traces (see the head of this file)."""
    if not torch.cuda.is_available():
        raise click.ClickException("no CUDA GPU: the traces can only be recorded on one")


@main.command("time")
@out_option
def time_command(out: Path) -> None:
    """Measure the step times of all variants without a profiler, into times.json."""
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "times.json", step_times(build_decoder("small")))


@main.command("trace")
@click.argument("name", type=click.Choice(list(VARIANTS)))
@out_option
def trace_command(name: str, out: Path) -> None:
    """Record one variant into NAME.json.gz."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.json.gz"
    record(Runner.warmed_up(name, build_decoder("small")), path)
    click.echo(f"Wrote {path} ({path.stat().st_size:,} bytes)")


@main.command("steps")
@click.argument("name", type=click.Choice(list(VARIANTS)))
def steps_command(name: str) -> None:
    """Run the same steps for Nsight Systems: an NVTX range each, in cudaProfilerStart and Stop."""
    runner = Runner.warmed_up(name, build_decoder("small"))
    runner.decoder.prefill(PROMPT)
    for _ in range(PROFILER_WARMUP):
        runner.step()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    for index in range(TRACED_STEPS):
        torch.cuda.nvtx.range_push(f"step#{index}")  # type: ignore[no-untyped-call]
        runner.step()
        torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


@main.command("all")
@out_option
def all_command(out: Path) -> None:
    """Record every trace, measure every step time, and write samples.json."""
    script = [sys.executable, str(Path(__file__))]
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([*script, "time", "-o", scratch], check=True)
        times = json.loads((Path(scratch) / "times.json").read_text(encoding="utf-8"))
    for name in VARIANTS:
        subprocess.run([*script, "trace", name, "-o", str(out)], check=True)
    here = environment()
    samples = [
        {
            "name": name,
            "file": f"{name}.json.gz",
            "what": (make.__doc__ or "").strip(),
            "command": f"python sample_traces/record.py trace {name}",
            **here,
            **traced_figures(out / f"{name}.json.gz"),
            **times[name],
        }
        for name, make in VARIANTS.items()
    ]
    write_json(out / "samples.json", samples)


if __name__ == "__main__":
    main()
