"""Where a target runs: the GPU and the versions that decide what is measured; no host names."""

from __future__ import annotations

import os
import platform
import subprocess

import hostgap
from hostgap.errors import ConfigError
from hostgap.profiling.measurement import Environment


def environment() -> Environment:
    """This process's environment.

    Raises:
        ConfigError: torch is not installed, or there is no CUDA device that it can use.
    """
    try:
        import torch
    except ImportError as error:
        hint = "pip install 'hostgap[torch]', or see https://pytorch.org/get-started/locally"
        raise ConfigError(f"torch cannot be imported: {error}", hint) from error
    if not torch.cuda.is_available():
        raise ConfigError(
            "no CUDA device that torch can use",
            "`hostgap doctor` says what is missing; `hostgap samples` lists traces of an H200",
        )
    try:
        name = torch.cuda.get_device_name(0)
        torch.zeros(1, device="cuda")
    except RuntimeError as error:  # an old driver, a device that is taken or broken
        first = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"the CUDA device cannot be used: {first}", "see: hostgap doctor"
        ) from error
    driver, sm, memory = _smi(str(torch.cuda.get_device_properties(0).uuid))
    return Environment(
        gpu=name,
        driver=driver,
        torch=str(torch.__version__),
        cuda=torch.version.cuda,
        python=platform.python_version(),
        hostgap=hostgap.__version__,
        cpus=os.cpu_count() or 1,
        sm_mhz=sm,
        memory_mhz=memory,
    )


def _smi(uuid: str) -> tuple[str | None, int | None, int | None]:
    """Driver and clocks of a device now, by nvidia-smi; None where it does not say."""
    command = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem"]
    command += ["--format=csv,noheader,nounits", f"--id=GPU-{uuid}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        driver, sm, memory = (part.strip() for part in done.stdout.split(","))
        return driver, int(sm), int(memory)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None, None, None  # no nvidia-smi, or a GPU that reports no clocks
