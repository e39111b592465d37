"""Measurements made by hand."""

from __future__ import annotations

from hostgap.profiling.measurement import (
    SCHEMA,
    Environment,
    Estimate,
    GraphTimes,
    HostTimes,
    Inflation,
    Measurement,
    Pass,
    Timing,
)


def estimate(ns: float, spread: float = 0.01) -> Estimate:
    return Estimate(median_ns=ns, low_ns=ns * (1 - spread), high_ns=ns * (1 + spread))


def measurement() -> Measurement:
    """A step of 3.07 ms unprofiled, 4.6 ms traced, one graph of 2.64 ms."""
    return Measurement(
        schema=SCHEMA,
        target="decoder",
        options={"preset": "small", "batch": 1},
        status="complete",
        problems=[],
        environment=Environment(
            gpu="NVIDIA H200",
            driver="580.159.04",
            torch="2.11.0",
            cuda="13.0",
            python="3.12.3",
            hostgap="0.1.0",
            cpus=16,
            sm_mhz=1980,
            memory_mhz=3201,
        ),
        timing=Timing(step=estimate(3.07e6), steps=30, blocks_ns=[3.06e6, 3.07e6, 3.08e6]),
        span_ns=None,
        graphs=[GraphTimes(call_ns=430_000, span_ns=2.64e6)],
        host=HostTimes(
            wall_ns=3.07e6,
            cpu_ns=3.0e6,
            run_delay_ns=1_000,
            throttled_ns=0,
            involuntary_switches=0.1,
            gc_ns=0,
            gc_collections=0,
            threads=1,
            cores=16,
        ),
        inflation=[
            Inflation(
                what="eager launch",
                nodes=None,
                unprofiled_ns=8_700,
                cuda_ns=9_800,
                cpu_cuda_ns=11_100,
            )
        ],
        sites=[],
        passes=[Pass(mode="cpu+cuda", file="cpu_cuda.json.gz", step=estimate(4.6e6))],
    )
