"""What HTA does with one trace, for `bench_analyze.py --hta`; runs in a venv of HTA's own.

    hta_analyze.py json FILE    HTA as it comes (json.loads of the whole file)
    hta_analyze.py lean FILE    its iterative parser (ijson, batched), least `args`, no frames

Both parse the trace and ask for the two breakdowns of idle time that HTA has: busy against idle per
GPU, and idle time per stream by kind (host wait, kernel wait, other).
"""

from __future__ import annotations

import logging
import sys

from hta.configs.parser_config import ParserBackend, ParserConfig
from hta.trace_analysis import TraceAnalysis


def main(mode: str, path: str) -> None:
    logging.disable(logging.WARNING)
    if mode == "lean":
        config = ParserConfig(ParserConfig.get_minimum_args())
        config.set_parser_backend(ParserBackend.IJSON_BATCH_AND_COMPRESS)
        ParserConfig.set_default_cfg(config)
    analysis = TraceAnalysis(trace_files={0: path}, trace_dir="", include_last_profiler_step=True)
    print(analysis.get_temporal_breakdown(visualize=False).to_string())
    idle, _ = analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
    print(idle.to_string())


if __name__ == "__main__":
    main(*sys.argv[1:3])
