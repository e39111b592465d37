"""What HTA says of one trace, for `peers.py`; runs in HTA's own venv.

    peers_hta.py FILE OUT.json

Busy against idle time, idle time by kind, the CPU seconds of these two, and the critical path over
all profiler steps but the first, one row per edge.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path

from hta.trace_analysis import TraceAnalysis


def main(path: str, out: str) -> None:
    logging.disable(logging.WARNING)
    analysis = TraceAnalysis(trace_files={0: path}, trace_dir="", include_last_profiler_step=True)
    breakdown = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    idle, _ = analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
    said = {
        "idle": float(breakdown["idle_time(us)"] / breakdown["kernel_time(us)"]),
        "kinds": {k: float(v) for k, v in idle.groupby("idle_category")["idle_time"].sum().items()},
        "cpu_s": time.process_time(),
        "path": None,
    }
    try:
        steps = len(analysis.get_profiler_steps())
        graph, ok = analysis.critical_path_analysis(0, "ProfilerStep", (1, steps - 1))
        if ok:
            edges = graph.get_critical_path_breakdown().dropna(subset=["s_name"])
            said["path"] = edges[["s_name", "duration"]].values.tolist()
    except Exception as error:  # noqa: BLE001  # whatever stops HTA is a result
        said["path_error"] = f"{type(error).__name__}: {error}"
    Path(out).write_text(json.dumps(said), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:3])
