"""Recording a callable in this process, for the pytest plugin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from hostgap.errors import ConfigError


class Recorder(Protocol):
    """What records the steps of a test."""

    def unavailable(self) -> str | None:
        """Why nothing can be recorded here; None where it can."""
        ...

    def record(
        self,
        step: Callable[[], object],
        path: Path,
        *,
        steps: int,
        warmup: int,
        stacks: bool,
    ) -> Path:
        """Run and record steps.

        Args:
            step: does one step.
            path: a file that may be written, .json.gz.
            steps: to record.
            warmup: to run before.
            stacks: whether Python stacks are wanted.

        Returns:
            The trace.
        """
        ...


class TorchRecorder:
    """torch.profiler, with CPU and CUDA activities."""

    def unavailable(self) -> str | None:
        """No torch, or no device that it can use."""
        try:
            import torch
        except ImportError as error:
            return f"torch cannot be imported ({error})"
        if not torch.cuda.is_available():
            return "no CUDA device that torch can use"
        return None

    def record(
        self,
        step: Callable[[], object],
        path: Path,
        *,
        steps: int,
        warmup: int,
        stacks: bool,
    ) -> Path:
        """See `Recorder.record`.

        Raises:
            ConfigError: a profiler is already on in this process.
        """
        import torch
        from torch.profiler import ProfilerActivity, profile, schedule

        for _ in range(warmup):
            step()
        torch.cuda.synchronize()
        settle = 2  # steps with the profiler on before it keeps anything
        try:
            with profile(
                activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
                # one more: the first that is kept fills the pipeline, and is not counted
                schedule=schedule(wait=0, warmup=settle, active=steps + 1, repeat=1),
                on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
                with_stack=stacks,
                experimental_config=torch._C._profiler._ExperimentalConfig(
                    enable_cuda_sync_events=True
                ),
            ) as profiler:
                for index in range(settle + steps + 1):
                    step()
                    if index == settle - 1:
                        torch.cuda.synchronize()  # or the warm-up's kernels would be in the window
                    profiler.step()
        except RuntimeError as error:
            if "already enabled" in str(error) or "nested" in str(error).lower():
                raise ConfigError(
                    "another profiler is on in this process: the fixture cannot record"
                ) from error
            raise
        torch.cuda.synchronize()
        return path
