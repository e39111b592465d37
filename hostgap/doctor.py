"""What this machine has for reading traces and for recording them.

Every check answers, whatever state the machine is in: torch is imported in a process of its own,
which may crash or hang, and a check that fails says so instead of raising.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import hostgap
from hostgap.cores import quota_cores

Status = Literal["ok", "warn", "missing", "n/a"]

TORCH_NEEDED = (2, 9)
_TORCH_TIMEOUT_S = 120.0
_TOOL_TIMEOUT_S = 20.0
_CAP_SYS_ADMIN = 21
_INSTALL_TORCH = "pip install 'hostgap[torch]', or see https://pytorch.org/get-started/locally"


_Found = tuple[Status, str, "str | None"]  # a check's status, detail and todo


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at.

    Attributes:
        name: what was looked at.
        status: ok; warn: works badly or not at all; missing: not there; n/a: does not apply here.
        detail: what was found, one line.
        todo: what to do about it, None if nothing.
    """

    name: str
    status: Status
    detail: str
    todo: str | None = None


@dataclass(frozen=True, slots=True)
class Ability:
    """Something hostgap can do, and whether it can do it here.

    Attributes:
        name: the command or the kind of file.
        works: whether it works on this machine.
        detail: why not, or what it was tried with; may be empty.
    """

    name: str
    works: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Report:
    """What `examine` found."""

    checks: tuple[Check, ...]
    abilities: tuple[Ability, ...]


@dataclass(frozen=True, slots=True)
class Ran:
    """What a program did; `code` is None if it was not found or had to be stopped."""

    code: int | None
    out: str
    error: str


def run_program(command: list[str], timeout_s: float) -> Ran:
    """Run a program without input; never raises."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            cwd=tempfile.gettempdir(),  # where no torch.py of the user's can stand in for torch
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Ran(None, "", f"no answer within {timeout_s:.0f} s")
    except (OSError, ValueError) as error:
        return Ran(None, "", str(error))
    out, err = (part.decode("utf-8", "replace") for part in (done.stdout, done.stderr))
    return Ran(done.returncode, out, err)


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True)
class Machine:
    """Where the checks look; tests put another one in its place.

    Attributes:
        root: the root folder of the file system.
        environ: the environment variables.
        run: runs a program: command, timeout in seconds.
        which: finds a program on PATH.
        version: the version of an installed Python package, None if it is not installed.
    """

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    run: Callable[[list[str], float], Ran] = run_program
    which: Callable[[str], str | None] = shutil.which
    version: Callable[[str], str | None] = _installed

    def text(self, path: str) -> str:
        """A small text file below the root, "" if it cannot be read."""
        try:
            return (self.root / path).read_text("utf-8", "replace")
        except OSError:
            return ""


# Prints one line of JSON. Recording one kernel is the only proof that CUPTI works.
_PROBE = """
import json, sys
found = {}
try:
    import torch
    found.update(version=torch.__version__, cuda=torch.version.cuda, hip=torch.version.hip)
    found["kineto"] = torch.autograd.kineto_available()
    found["available"] = torch.cuda.is_available()
    if found["available"]:
        count = range(torch.cuda.device_count())
        found["gpus"] = [torch.cuda.get_device_name(i) for i in count]
        from torch.profiler import ProfilerActivity, profile
        x = torch.ones(1024, device="cuda")
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
            (x + 1).sum().item()
            torch.cuda.synchronize()
        cuda = torch.autograd.DeviceType.CUDA
        found["kernels"] = sum(event.device_type == cuda for event in prof.events())
except (Exception, SystemExit) as error:  # the parent reports it
    found["error"] = f"{type(error).__name__}: {error}".strip().splitlines()[0][:200]
    found["importing"] = "version" not in found
print("\\n" + json.dumps(found))
"""


def examine(machine: Machine | None = None) -> Report:
    """Look at everything; takes as long as importing torch does, at most a few minutes."""
    machine = machine or Machine()
    torch = _probe(machine)
    looks: dict[str, Callable[[], _Found]] = {
        "hostgap": _hostgap,
        "python": _python,
        "system": partial(_system, machine),
        "container": partial(_container, machine),
        "cpu": partial(_cpu, machine),
        "driver": partial(_driver, machine),
        "torch": partial(_torch, torch),
        "torch cuda": partial(_torch_cuda, torch),
        "cupti": partial(_cupti, torch),
        "permission": partial(_permission, machine),
        "nsys": partial(_nsys, machine),
    }
    looks |= {name: partial(_extra, machine, name) for name in _EXTRAS}
    checks = [_guarded(name, look) for name, look in looks.items()]
    return Report(tuple(checks), tuple(_abilities(checks)))


def _guarded(name: str, look: Callable[[], _Found]) -> Check:
    try:
        status, detail, todo = look()
        return Check(name, status, detail if len(detail) <= 300 else f"{detail[:300]} ...", todo)
    except Exception as error:  # noqa: BLE001 - a report of a broken machine must not break
        return Check(name, "warn", f"could not be checked: {type(error).__name__}: {error}")


def _hostgap() -> _Found:
    return "ok", f"{hostgap.__version__}, {_install_kind()}", None


def _install_kind() -> str:
    try:
        found = importlib.metadata.distribution("hostgap")
    except importlib.metadata.PackageNotFoundError:
        return "run from a checkout, not installed"
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        return "editable install of a checkout"
    if "vcs_info" in origin:
        return "installed from a repository"
    return "installed from a file" if origin else "installed from a package index"


def _python() -> _Found:
    version = platform.python_version()
    detail = f"{platform.python_implementation()} {version}"
    detail += ", in a virtual environment" if sys.prefix != sys.base_prefix else ""
    return "ok", detail, None


def _system(machine: Machine) -> _Found:
    kernel = machine.text("proc/version")
    detail = f"{platform.system()} {platform.release()}, {platform.machine()}"
    if "microsoft" in kernel.lower():
        return (
            "warn",
            f"WSL: {detail}",
            "CUPTI in WSL2 needs a recent Windows driver, and GPU performance counters allowed "
            "for all users in the NVIDIA Control Panel",
        )
    return "ok", detail, None


def _container(machine: Machine) -> _Found:
    kind = None
    if machine.environ.get("KUBERNETES_SERVICE_HOST"):
        kind = "Kubernetes"
    elif (machine.root / ".dockerenv").exists():
        kind = "Docker"
    elif (machine.root / "run/.containerenv").exists():
        kind = "Podman"
    elif machine.environ.get("SINGULARITY_NAME") or machine.environ.get("APPTAINER_NAME"):
        kind = "Apptainer"
    elif re.search(r"docker|kubepods|containerd|lxc", machine.text("proc/1/cgroup")):
        kind = "yes"
    if kind is None:
        return "n/a", "none seen", None
    if (machine.root / "dev/nvidiactl").exists() or (machine.root / "dev/dxg").exists():
        return "ok", f"{kind}, with a GPU passed in", None
    return "ok", f"{kind}, no GPU passed in", "if the host has one: docker run --gpus all ..."


def _cpu(machine: Machine) -> _Found:
    have = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else have
    detail = f"{usable} of {have} cores usable" if usable < have else f"{have} cores"
    cores = quota_cores(machine.root)
    if cores is not None:
        detail += f", limited to {cores:.3g} by a quota"
        if cores < 2:
            return "warn", detail, "a throttled host starves the GPU: give it 2 cores or more"
    return "ok", detail, None


def _driver(machine: Machine) -> _Found:
    if machine.which("nvidia-smi") is None:
        if machine.which("rocm-smi") or machine.which("amd-smi"):
            return "n/a", "no NVIDIA driver; AMD tools are here", None
        return "missing", "no nvidia-smi: no NVIDIA driver", "only recording a trace needs a GPU"
    query = ["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"]
    done = machine.run(query, _TOOL_TIMEOUT_S)
    rows = [row.split(", ", 1) for row in done.out.splitlines() if ", " in row]
    if done.code != 0 or not rows:
        why = _last_line(done.error) or _last_line(done.out) or "it lists no GPU"
        return "warn", f"nvidia-smi: {why}", "is the driver loaded? try: nvidia-smi"
    return "ok", f"{rows[0][0]}; {_counted([name for _, name in rows])}", None


def _counted(names: list[str]) -> str:
    kinds = {name: names.count(name) for name in names}
    return ", ".join(f"{n} x {name}" if n > 1 else name for name, n in kinds.items())


def _probe(machine: Machine) -> dict[str, Any]:
    done = machine.run([sys.executable, "-c", _PROBE], _TORCH_TIMEOUT_S)
    answer = _last_line(done.out)
    if answer.startswith('{"') and answer.endswith("}"):
        found: dict[str, Any] = json.loads(answer)
        return found
    why = _last_line(done.error) or "it said nothing"
    if done.code is not None and done.code < 0:
        why = f"it was killed by signal {-done.code}"
    return {"error": why, "importing": True}


def _torch(found: dict[str, Any]) -> _Found:
    if found.get("importing"):
        if "No module named 'torch'" in found["error"]:
            return "missing", "not installed; analysing traces does not need it", _INSTALL_TORCH
        return "warn", f"cannot be imported: {found['error']}", _INSTALL_TORCH
    version = found["version"]
    if _version(version) < TORCH_NEEDED:
        needed = ".".join(map(str, TORCH_NEEDED))
        return "warn", f"{version}; recording needs {needed} or newer", _INSTALL_TORCH
    if not found.get("kineto"):
        return "warn", f"{version}, built without Kineto", _INSTALL_TORCH
    return "ok", version, None


def _version(text: str) -> tuple[int, int]:
    numbers = re.match(r"(\d+)\.(\d+)", text)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def _torch_cuda(found: dict[str, Any]) -> _Found:
    if found.get("importing"):
        return "n/a", "needs torch", None
    build = f"CUDA {found['cuda']}" if found.get("cuda") else None
    build = f"ROCm {found['hip']}" if found.get("hip") else build
    if build is None:
        return "missing", "a build of torch for CPUs only", _INSTALL_TORCH
    if found.get("available"):
        return "ok", f"{build}; {_counted(found.get('gpus', [])) or 'no GPU named'}", None
    why = f": {found['error']}" if found.get("error") else ""
    todo = "is there a GPU, and is its driver new enough for this build of torch?"
    return "missing", f"{build}, but torch finds no GPU{why}", todo


def _cupti(found: dict[str, Any]) -> _Found:
    if found.get("importing") or not found.get("available"):
        return "n/a", "needs a GPU that torch can use", None
    if found.get("error"):
        return "warn", f"recording a kernel failed: {found['error']}", "see the line above it"
    if not found.get("kernels"):
        return (
            "warn",
            "torch.profiler recorded no kernel",
            "another profiler attached (nsys, ncu, DCGM)? one process can have CUPTI at a time",
        )
    return "ok", f"torch.profiler recorded {found['kernels']} GPU operations of a test", None


def _permission(machine: Machine) -> _Found:
    params = machine.text("proc/driver/nvidia/params")
    restricted = re.search(r"RmProfilingAdminOnly: *(\d)", params)
    if restricted is None:
        return "n/a", "no NVIDIA driver parameters to read", None
    if restricted[1] == "0":
        return "ok", "GPU counters are open to all users", None
    effective = re.search(r"CapEff:\s*([0-9a-fA-F]+)", machine.text("proc/self/status"))
    if effective and int(effective[1], 16) >> _CAP_SYS_ADMIN & 1:
        return "ok", "GPU counters are for administrators, and this process is one", None
    return (
        "warn",
        "GPU counters are for administrators only (traces work without them)",
        "set NVreg_RestrictProfilingToAdminUsers=0 for the nvidia module, or --cap-add SYS_ADMIN",
    )


def _nsys(machine: Machine) -> _Found:
    if machine.which("nsys") is None:
        return "missing", "not on PATH (optional)", None
    done = machine.run(["nsys", "--version"], _TOOL_TIMEOUT_S)
    version = re.search(r"\d{4}\.\d+(?:\.\d+)*", done.out)
    if done.code != 0 or version is None:
        return "warn", f"nsys --version failed: {_last_line(done.error) or 'no version'}", None
    return "ok", version[0], None


# package -> what it is for, and the extra of hostgap that brings it
_EXTRAS: dict[str, tuple[str, str]] = {
    "zstandard": ("reads and writes .zst", "zstd"),
    "isal": ("reads and writes .gz faster", "fast"),
    "pyarrow": ("writes tables as Parquet", "tables"),
}


def _extra(machine: Machine, name: str) -> _Found:
    purpose, extra = _EXTRAS[name]
    version = machine.version(name)
    if version is not None:
        return "ok", f"{version}: {purpose}", None
    return "missing", f"optional: {purpose}", f"pip install 'hostgap[{extra}]'"


def _abilities(checks: list[Check]) -> list[Ability]:
    by_name = {check.name: check for check in checks}
    zstd = by_name["zstandard"].status == "ok"
    arrow = by_name["pyarrow"].status == "ok"
    return [
        Ability("analyze", True, "torch.profiler traces, .json and .json.gz"),
        Ability("analyze .zst", zstd, "" if zstd else "needs zstandard"),
        Ability("tables", arrow, "" if arrow else "needs pyarrow"),
        _profile(by_name),
        Ability("analyze .sqlite", True, "Nsight Systems exports"),
    ]


def _profile(checks: dict[str, Check]) -> Ability:
    """Whether torch.profiler can record a trace that hostgap can say something about."""
    gpu = checks["driver"].status == "ok" or checks["torch cuda"].status == "ok"
    if not gpu:
        return Ability("profile", False, "needs a GPU; hostgap samples copies a bundled trace")
    for name, why in (
        ("torch", f"needs torch {'.'.join(map(str, TORCH_NEEDED))} or newer"),
        ("torch cuda", "needs a torch that can use the GPU"),
        ("cupti", "torch.profiler records no GPU work"),
    ):
        if checks[name].status != "ok":
            return Ability("profile", False, why)
    return Ability("profile", True, "record with torch.profiler")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
