"""What HTA says of one trace; runs in an environment of HTA's own.

    hta_analyze.py json FILE OUT.json    HTA as it comes (json.loads of the whole file)
    hta_analyze.py lean FILE OUT.json    its iterative parser (ijson, batched), least `args`, no
                                         Python frames
    ... --critical-path                  and its critical path over all profiler steps but the first

Parses the trace and asks for busy against idle time, idle time per stream by kind (host wait,
kernel wait, other), and the launches of kernels. OUT holds these, and the CPU seconds of the
process after each.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from hta.configs.parser_config import ParserBackend, ParserConfig
from hta.trace_analysis import TraceAnalysis


def main(mode: str, path: str, out: str, *more: str) -> None:
    logging.disable(logging.WARNING)
    if mode == "lean":
        config = ParserConfig(ParserConfig.get_minimum_args())
        config.set_parser_backend(ParserBackend.IJSON_BATCH_AND_COMPRESS)
        ParserConfig.set_default_cfg(config)
    analysis = TraceAnalysis(trace_files={0: path}, trace_dir="", include_last_profiler_step=True)
    cpu_s = {"parsed": time.process_time()}
    breakdown = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    idle, _ = analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
    cpu_s["breakdowns"] = time.process_time()
    launches = analysis.get_cuda_kernel_launch_stats(
        ranks=[0], include_memory_events=False, visualize=False
    )
    cpu_s["launches"] = time.process_time()
    said: dict[str, Any] = {
        "window_us": float(breakdown["kernel_time(us)"]),
        "idle_us": float(breakdown["idle_time(us)"]),
        "kinds": {k: float(v) for k, v in idle.groupby("idle_category")["idle_time"].sum().items()},
        "launches": len(launches[0]),
        "cpu_s": cpu_s,
    }
    if "--critical-path" in more:
        said |= critical_path(analysis)
    Path(out).write_text(json.dumps(said), encoding="utf-8")


def critical_path(analysis: TraceAnalysis) -> dict[str, Any]:
    """The edges of the critical path, name and us; or why there is none."""
    try:
        steps = len(analysis.get_profiler_steps())
        graph, ok = analysis.critical_path_analysis(0, "ProfilerStep", (1, steps - 1))
        if not ok:
            return {"path": None}
        edges = graph.get_critical_path_breakdown().dropna(subset=["s_name"])
        return {"path": edges[["s_name", "duration"]].values.tolist()}
    except Exception as error:  # noqa: BLE001  # whatever stops HTA is a result
        return {"path": None, "path_error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main(*sys.argv[1:])
