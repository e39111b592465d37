"""Moments of the GPU: CUDA events with times in ns, and a kernel that holds the GPU up."""

from __future__ import annotations

from typing import Any

import torch


class Mark:
    """An event recorded in the current stream, here and now."""

    def __init__(self) -> None:
        make: Any = torch.cuda.Event  # its methods have no type hints
        self._event = make(enable_timing=True)
        self._event.record()

    def happened(self) -> bool:
        """Whether the GPU has come so far; does not wait."""
        return bool(self._event.query())

    def until(self, later: Mark) -> float:
        """GPU time from this mark to a later one, ns; waits for that one."""
        later._event.synchronize()
        return float(self._event.elapsed_time(later._event)) * 1e6


def spin(cycles: int) -> None:
    """Hold the current stream up for so many of the GPU's clock cycles; returns at once."""
    sleep: Any = torch.cuda._sleep
    sleep(cycles)
