"""The fused decode step on a GPU: is it right, how fast is it, and which launch shapes are best.

    python benchmarks/bench_fused.py FOLDER [--presets small,8b] [--batch 1] [--position 300]

For every preset: logits against the same weights in float32; one captured step (model and argmax)
timed with events, programmatic dependent launch on and off, and the bits of both compared; the
weights' GB/s as a share of this GPU's own copy bandwidth; the time of every kernel; then launch
shapes, one after the other, judged by the whole step's time. A part that fails is reported and the
rest goes on. Writes FOLDER/bench_fused.json after every part; under 3 minutes in all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hostgap.decoder.fused import GEMVS, FusedStep, Gemv, Plan, default_plan, supported
from hostgap.decoder.model import Decoder, build_decoder

DEVICE = "cuda"
# What is compiled for itself takes longer to compile than everything here to run.
DEFECTS = frozenset({"rope_unfused"})
TOLERANCE = 2e-2  # of the largest logit
ROLES = ("qkv", "attend", "out", "gate_up", "down")


class Report:
    """What was measured, by preset; what failed stays in as text."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "bench_fused.json"
        self.results: dict[str, Any] = {}

    def part(self, name: str, function: Callable[[], Any]) -> Any:
        """Run one part and note its result; None if it failed."""
        began = time.monotonic()
        result = None
        try:
            result = self.results[name] = function()
        except Exception as error:  # noqa: BLE001 (whatever it is, the other parts still count)
            self.results[name] = {"error": f"{type(error).__name__}: {error}"[:2000]}
            print(f"!! {name}: {self.results[name]['error'][:400]}", flush=True)
        print(f"-- {name}: {time.monotonic() - began:.1f} s", flush=True)
        self.path.write_text(json.dumps(self.results, indent=1, default=str))
        return result


def copy_bandwidth() -> float:
    """Bytes read and written per second by a device-to-device copy of 4 GB."""
    source = torch.empty(4 << 30, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    seconds = median_ms(lambda: target.copy_(source), samples=9, group=2) / 1e3
    return 2 * source.numel() / seconds


def median_ms(function: Callable[[], object], samples: int = 21, group: int = 10) -> float:
    """Median time of one call, over `samples` groups of calls back to back, after one group."""
    times = []
    for sample in range(samples + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(group):
            function()
        end.record()
        end.synchronize()
        if sample:
            times.append(start.elapsed_time(end) / group)
    return statistics.median(times)


class Captured:
    """One step and the choice of its token, as a CUDA graph."""

    def __init__(self, step: FusedStep, position: int, advance: bool = False) -> None:
        self.step = step
        batch = step.batch
        self.tokens = torch.ones(batch, 1, dtype=torch.int64, device=DEVICE)
        self.positions = torch.full((batch, 1), position, device=DEVICE)

        def once() -> None:
            step(self.tokens, self.positions)
            step.choose(self.tokens)
            if advance:
                self.positions.add_(1)

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            once()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            once()
        self.tokens.fill_(1)
        self.positions.fill_(position)

    def replay(self) -> None:
        self.graph.replay()


def streamed_bytes(model: Decoder) -> int:
    """Bytes of weights that one step reads: all but the embedding table."""
    table = model.embed.weight
    sizes = (weight.numel() * weight.element_size() for weight in model.parameters())
    return sum(sizes) - table.numel() * table.element_size()


def error_of(logits: torch.Tensor, exact: torch.Tensor) -> float:
    difference = (logits.float() - exact.float()).abs().max() / exact.float().abs().max()
    return float(difference)


def check(model: Decoder, batch: int, length: int) -> dict[str, Any]:
    """Errors against the same weights in float32 after a prefill, fused and model; then freed."""
    vocabulary = model.config.vocab_size
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(0, vocabulary, (batch, length), generator=generator).to(DEVICE)
    steps = torch.randint(0, vocabulary, (batch, 4), generator=generator).to(DEVICE)
    positions = torch.arange(length, device=DEVICE).expand(batch, length)
    with torch.device(DEVICE):
        twin = Decoder(model.config, DEFECTS).requires_grad_(False).eval()
    twin.load_state_dict(model.state_dict())
    exact_caches, caches = twin.new_caches(batch), model.new_caches(batch)
    twin(prompt, positions, exact_caches)
    model(prompt, positions, caches)
    own_caches = model.new_caches(batch)
    for own, cache in zip(own_caches, caches, strict=True):
        own.keys.copy_(cache.keys)
        own.values.copy_(cache.values)
    step = FusedStep(model, caches)
    fused, stock = [], []
    for i in range(steps.shape[1]):
        tokens = steps[:, i : i + 1].contiguous()
        at = torch.full((batch, 1), length + i, device=DEVICE)
        exact = twin(tokens, at, exact_caches)[:, -1]
        fused.append(error_of(step(tokens, at), exact))
        stock.append(error_of(model(tokens, at, own_caches)[:, -1], exact))
    worst = max(fused)
    print(f"   error against float32: fused {worst:.4f}, the model in bfloat16 {max(stock):.4f}")
    return {
        "fused": fused,
        "model": stock,
        "ok": worst <= max(TOLERANCE, max(stock)),
        "within_tolerance": worst <= TOLERANCE,
    }


def same_bits(on: FusedStep, off: FusedStep, position: int, steps: int = 64) -> dict[str, Any]:
    """Decode with dependent launch on and off: the same caches, so the same bits are due."""
    runs = []
    for step in (off, on, on):
        captured = Captured(step, position, advance=True)
        tokens, logits = [], []
        for _ in range(steps):
            captured.replay()
            tokens.append(captured.tokens.clone())
            logits.append(step.logits.clone())
        runs.append((torch.cat(tokens), torch.cat(logits)))
    same = [all(map(torch.equal, runs[0], run)) for run in runs[1:]]
    print(f"   bits with dependent launch on equal those with it off: {same}")
    return {"same": same, "distinct_tokens": len(runs[0][0].unique())}


def timed(step: FusedStep, position: int, n_bytes: int, bandwidth: float) -> dict[str, Any]:
    captured = Captured(step, position)
    ms = median_ms(captured.replay)
    share = n_bytes / (ms / 1e3) / bandwidth
    return {"ms": ms, "gb_s": n_bytes / ms / 1e6, "share_of_copy": share}


def kernel_times(step: FusedStep, position: int) -> dict[str, Any]:
    """Median duration of each kernel, and from its start to the next one's, by role.

    With dependent launch a duration holds the wait too: there the second figure is the cost.
    """
    captured = Captured(step, position)
    for _ in range(5):
        captured.replay()
    torch.cuda.synchronize()
    replays = 5
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(replays):
            captured.replay()
        torch.cuda.synchronize()
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.name in ("embed", "gemv", "attend", "pick")
    )
    n_layers = len(step.model.layers)
    roles = ["embed", *ROLES * n_layers, "head", "pick"]
    if len(spans) != replays * len(roles):
        raise RuntimeError(f"{len(spans)} kernels of {replays} replays, not of {len(roles)} each")
    durations: dict[str, list[float]] = {}
    paces: dict[str, list[float]] = {}
    for i, (start, end) in enumerate(spans):
        role = roles[i % len(roles)]
        durations.setdefault(role, []).append(end - start)
        if i + 1 < len(spans) and role != "pick":
            paces.setdefault(role, []).append(spans[i + 1][0] - start)
    return {
        "kernels": len(roles),
        "median_us": {role: statistics.median(values) for role, values in durations.items()},
        "to_next_us": {role: statistics.median(values) for role, values in paces.items()},
    }


def role_weights(model: Decoder) -> dict[str, torch.Tensor]:
    layer = model.layers[0]
    return {
        "qkv": layer.attention.qkv_proj.weight,
        "out": layer.attention.o_proj.weight,
        "gate_up": layer.mlp.gate_up_proj.weight,
        "down": layer.mlp.down_proj.weight,
        "head": model.lm_head.weight,
    }


def candidates(name: str, columns: int, plan: Plan) -> Iterator[Plan]:
    """Other shapes of one kernel: tiles of no more columns than the weight has."""
    most = max(1, 1 << max(0, (columns - 1).bit_length() - 8))  # warps that cover a whole row
    for rows in (8, 4, 16, 32):
        for warps in (8, 4, 16, 2):
            gemv = Gemv(rows, warps)
            several_tiles = columns > gemv.columns
            if warps > most or warps < min(4, most // 4) or (rows == 32 and several_tiles):
                continue
            if gemv != getattr(plan, name):
                yield replace(plan, **{name: gemv})


def attend_candidates(plan: Plan) -> Iterator[Plan]:
    for block, warps in ((16, 4), (32, 4), (32, 8), (64, 4), (64, 8)):
        for splits in {plan.attend_splits, max(1, plan.attend_splits // 2)}:
            changed = replace(plan, attend_block=block, attend_warps=warps, attend_splits=splits)
            if changed != plan:
                yield changed


def sweep(step: FusedStep, position: int, budget_s: float) -> dict[str, Any]:
    """Coordinate descent over a plan, by the time of the whole step, while the budget lasts."""
    deadline = time.monotonic() + budget_s
    model, best = step.model, step.plan
    best_ms = first_ms = median_ms(Captured(step, position).replay, samples=9, group=5)
    columns = {name: weight.shape[1] for name, weight in role_weights(model).items()}
    tried: list[dict[str, Any]] = []
    for name in ("gate_up", "down", "attend", "qkv", "out", "head"):
        plans = (
            attend_candidates(best) if name == "attend" else candidates(name, columns[name], best)
        )
        for plan in list(plans):
            if time.monotonic() > deadline:
                break
            what = describe(plan, name)
            try:
                other = FusedStep(model, step.caches, pdl=step.pdl, plan=plan)
                ms = median_ms(Captured(other, position).replay, samples=7, group=5)
            except Exception as error:  # noqa: BLE001 (one shape that cannot run is a result)
                tried.append({"kernel": name, "shape": what, "error": str(error)[:300]})
                continue
            tried.append({"kernel": name, "shape": what, "ms": ms})
            if ms < best_ms * 0.998:  # less is noise
                best, best_ms = plan, ms
        print(f"   {name}: best {describe(best, name)}, step {best_ms:.4f} ms", flush=True)
    return {"first_ms": first_ms, "best_ms": best_ms, "plan": asdict(best), "tried": tried}


def describe(plan: Plan, name: str) -> str:
    if name == "attend":
        return f"block {plan.attend_block} warps {plan.attend_warps} splits {plan.attend_splits}"
    gemv = getattr(plan, name)
    return f"rows {gemv.rows} warps {gemv.warps}"


def plan_of(fields: dict[str, Any]) -> Plan:
    return Plan(**{k: Gemv(**v) if k in GEMVS else v for k, v in fields.items()})


def bench(report: Report, preset: str, options: argparse.Namespace, bandwidth: float) -> None:
    model = report.part(
        f"{preset}: build",
        lambda: build_decoder(preset, device=DEVICE, dtype=torch.bfloat16, defects=DEFECTS),
    )
    if model is None:
        return
    report.results[f"{preset}: build"] = asdict(model.config)
    reason = supported(model, options.batch)
    if reason is not None:
        print(f"!! {preset}: {reason}")
        report.results[f"{preset}: supported"] = reason
        return
    batch, position, n_bytes = options.batch, options.position, streamed_bytes(model)
    report.part(f"{preset}: check", lambda: check(model, batch, 100))
    torch.cuda.empty_cache()
    caches = model.new_caches(batch)
    for cache in caches:
        cache.keys.normal_()
        cache.values.normal_()

    def step(pdl: bool, plan: Plan | None = None) -> FusedStep:
        return FusedStep(model, caches, pdl=pdl, plan=plan)

    report.part(f"{preset}: same bits", lambda: same_bits(step(True), step(False), position))
    for pdl in (True, False):
        name = "on" if pdl else "off"
        report.part(
            f"{preset}: default plan, pdl {name}",
            lambda pdl=pdl: timed(step(pdl), position, n_bytes, bandwidth),
        )
        report.part(
            f"{preset}: kernels, pdl {name}", lambda pdl=pdl: kernel_times(step(pdl), position)
        )
    print_kernels(report, preset, model)
    found = report.part(f"{preset}: sweep", lambda: sweep(step(True), position, options.budget))
    if found is None:
        return
    best = plan_of(found["plan"])
    for pdl in (True, False):
        report.part(
            f"{preset}: best plan, pdl {'on' if pdl else 'off'}",
            lambda pdl=pdl: timed(step(pdl, best), position, n_bytes, bandwidth),
        )

    def agreement() -> float:
        tokens = torch.ones(batch, 1, dtype=torch.int64, device=DEVICE)
        at = torch.full((batch, 1), position, device=DEVICE)
        first = step(True)(tokens, at).clone()
        return error_of(step(True, best)(tokens, at), first)

    report.part(f"{preset}: best plan against default plan", agreement)
    report.results[f"{preset}: is default"] = best == default_plan(model, batch)
    print(f"   best plan: {best}")


def print_kernels(report: Report, preset: str, model: Decoder) -> None:
    sizes = {role: weight.nbytes for role, weight in role_weights(model).items()}
    for name in ("on", "off"):
        times = report.results.get(f"{preset}: kernels, pdl {name}", {})
        for role, duration in times.get("median_us", {}).items():
            pace = times["to_next_us"].get(role)
            rate = f"{sizes[role] / duration / 1e3:6.0f} GB/s" if role in sizes else ""
            after = "" if pace is None else f"{pace:8.2f} us to the next"
            print(f"   pdl {name:3} {role:8} {duration:8.2f} us {after} {rate}")


def table(report: Report) -> None:
    print("\n| what | ms/step | GB/s of weights | share of copy |\n|---|---|---|---|")
    for name, result in report.results.items():
        if isinstance(result, dict) and "ms" in result:
            share = f"{result['share_of_copy']:.1%}"
            print(f"| {name} | {result['ms']:.4f} | {result['gb_s']:.0f} | {share} |")
        elif isinstance(result, dict) and "error" in result:
            print(f"| {name} | failed: {result['error'][:80]} | | |")
        elif isinstance(result, dict) and "ok" in result:
            verdict = "right" if result["ok"] else "WRONG"
            print(f"| {name} | {verdict}: error {max(result['fused']):.4f} | | |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--presets", default="small,8b")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--position", type=int, default=300)
    parser.add_argument("--budget", type=float, default=50, help="seconds of a preset's sweep")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    report = Report(options.folder)
    properties = torch.cuda.get_device_properties(0)
    report.results["gpu"] = {"name": properties.name, "torch": torch.__version__}
    bandwidth = report.part("copy bandwidth", copy_bandwidth) or 4.3e12
    torch.cuda.empty_cache()
    print(f"{properties.name}: copies at {bandwidth / 1e9:.0f} GB/s")
    with torch.no_grad():
        for preset in options.presets.split(","):
            bench(report, preset, options, bandwidth)
            torch.cuda.empty_cache()
    table(report)


if __name__ == "__main__":
    main()
