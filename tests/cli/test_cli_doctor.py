from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hostgap import doctor
from hostgap.cli import COMMANDS, run
from hostgap.cli.doctor import command
from hostgap.doctor import Machine, Ran, Report, examine

GOOD_TORCH = {
    "version": "2.11.0+cu130",
    "cuda": "13.0",
    "hip": None,
    "kineto": True,
    "available": True,
    "gpus": ["NVIDIA H200", "NVIDIA H200"],
    "kernels": 3,
}
SMI = "580.159.04, NVIDIA H200\n580.159.04, NVIDIA H200\n"


def machine(
    root: Path,
    torch: dict[str, Any] | Ran | None = None,
    *,
    files: dict[str, str] | None = None,
    tools: dict[str, Ran] | None = None,
    environ: dict[str, str] | None = None,
    packages: dict[str, str] | None = None,
) -> Machine:
    """A machine that is what it is said to be; without arguments one that has nothing."""
    tools = tools or {}
    for name, text in (files or {}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    if torch is None:
        torch = {"error": "ModuleNotFoundError: No module named 'torch'", "importing": True}
    answer = torch if isinstance(torch, Ran) else Ran(0, "noise\n" + json.dumps(torch) + "\n", "")

    def run_program(line: list[str], timeout_s: float) -> Ran:
        assert timeout_s > 0
        return answer if line[0] == sys.executable else tools[line[0]]

    return Machine(
        root=root,
        environ=environ or {},
        run=run_program,
        which=lambda name: name if name in tools else None,
        version=lambda name: (packages or {}).get(name),
    )


def found(report: Report, name: str) -> doctor.Check:
    return next(check for check in report.checks if check.name == name)


def works(report: Report, name: str) -> tuple[bool, str]:
    return next((a.works, a.detail) for a in report.abilities if a.name == name)


def test_short_help_is_the_one_in_the_list() -> None:
    assert command.get_short_help_str(limit=200) == COMMANDS["doctor"]
    assert command.help is not None
    assert command.help.startswith(COMMANDS["doctor"])


def test_a_machine_with_everything(tmp_path: Path) -> None:
    report = examine(
        machine(
            tmp_path,
            GOOD_TORCH,
            files={"proc/driver/nvidia/params": "RmProfilingAdminOnly: 0\n"},
            tools={
                "nvidia-smi": Ran(0, SMI, ""),
                "nsys": Ran(0, "NVIDIA Nsight Systems version 2025.3.1.90-253\n", ""),
            },
            packages={"zstandard": "0.25.0", "isal": "1.9.1", "pyarrow": "21.0"},
        )
    )
    assert {c.name for c in report.checks if c.status not in ("ok", "n/a")} == set()
    assert found(report, "driver").detail == "580.159.04; 2 x NVIDIA H200"
    assert found(report, "nsys").detail == "2025.3.1.90"
    assert works(report, "profile") == (True, "record with torch.profiler")
    assert works(report, "analyze .zst") == (True, "")


def test_a_machine_with_nothing(tmp_path: Path) -> None:
    report = examine(machine(tmp_path))
    missing = {c.name for c in report.checks if c.status == "missing"}
    assert missing == {"driver", "torch", "nsys", "zstandard", "isal", "pyarrow"}
    assert found(report, "torch").todo is not None
    assert works(report, "analyze")[0]
    assert works(report, "analyze .zst") == (False, "needs zstandard")
    assert works(report, "tables") == (False, "needs pyarrow")
    assert works(report, "profile")[1].startswith("needs a GPU")


@pytest.mark.parametrize(
    ("torch", "check", "status", "detail", "profile"),
    [
        ({**GOOD_TORCH, "version": "2.8.1"}, "torch", "warn", "needs 2.9", "needs torch 2.9"),
        ({**GOOD_TORCH, "kineto": False}, "torch", "warn", "without Kineto", "needs torch"),
        ({**GOOD_TORCH, "kernels": 0}, "cupti", "warn", "no kernel", "records no GPU work"),
        (
            {**GOOD_TORCH, "error": "RuntimeError: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"},
            "cupti",
            "warn",
            "INSUFFICIENT_PRIVILEGES",
            "records no GPU work",
        ),
        (
            {
                "version": "2.11.0+cpu",
                "cuda": None,
                "hip": None,
                "kineto": True,
                "available": False,
            },
            "torch cuda",
            "missing",
            "CPUs only",
            "can use the GPU",
        ),
        (
            {"version": "2.11.0", "cuda": "13.0", "hip": None, "kineto": True, "available": False},
            "torch cuda",
            "missing",
            "finds no GPU",
            "can use the GPU",
        ),
        (Ran(-11, "", ""), "torch", "warn", "killed by signal 11", "needs torch"),
        (Ran(None, "", "no answer within 120 s"), "torch", "warn", "no answer", "needs torch"),
        (
            Ran(1, "", "x\nImportError: libcudart.so.13"),
            "torch",
            "warn",
            "libcudart",
            "needs torch",
        ),
        ({"error": "OSError: bad libc", "importing": True}, "torch", "warn", "bad libc", "needs"),
    ],
)
def test_what_can_be_wrong_with_torch(
    tmp_path: Path, torch: dict[str, Any] | Ran, check: str, status: str, detail: str, profile: str
) -> None:
    report = examine(machine(tmp_path, torch, tools={"nvidia-smi": Ran(0, SMI, "")}))
    assert found(report, check).status == status
    assert detail in found(report, check).detail
    able, why = works(report, "profile")
    assert not able
    assert profile in why


def test_counters_for_administrators_only(tmp_path: Path) -> None:
    params = {"proc/driver/nvidia/params": "A: 1\nRmProfilingAdminOnly: 1\n"}
    user = {**params, "proc/self/status": "Name: x\nCapEff:\t00000000a80425fb\n"}
    report = examine(machine(tmp_path, files=user))
    assert found(report, "permission").status == "warn"
    admin = {**params, "proc/self/status": "CapEff:\t000001ffffffffff\n"}
    assert found(examine(machine(tmp_path, files=admin)), "permission").status == "ok"


def test_wsl_containers_and_quotas(tmp_path: Path) -> None:
    files = {
        "proc/version": "Linux version 5.15.153.1-microsoft-standard-WSL2",
        ".dockerenv": "",
        "sys/fs/cgroup/cpu.max": "150000 100000\n",
    }
    report = examine(machine(tmp_path, files=files))
    assert found(report, "system").detail.startswith("WSL")
    assert found(report, "container").detail == "Docker, no GPU passed in"
    assert found(report, "cpu").status == "warn"
    assert "limited to 1.5 by a quota" in found(report, "cpu").detail
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("max 100000\n")
    report = examine(machine(tmp_path, environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}))
    assert found(report, "container").detail == "Kubernetes, with a GPU passed in"
    assert found(report, "cpu").status == "ok"


def test_a_broken_driver_and_nsys(tmp_path: Path) -> None:
    tools = {
        "nvidia-smi": Ran(9, "NVIDIA-SMI has failed to communicate with the driver\n", ""),
        "nsys": Ran(127, "", "libssl.so: cannot open"),
    }
    report = examine(machine(tmp_path, tools=tools))
    assert "failed to communicate" in found(report, "driver").detail
    assert "libssl" in found(report, "nsys").detail


def test_a_check_that_fails_is_a_line_of_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> str:
        raise RuntimeError("odd")

    monkeypatch.setattr(doctor, "_install_kind", fail)
    check = found(examine(machine(tmp_path)), "hostgap")
    assert (check.status, check.detail) == ("warn", "could not be checked: RuntimeError: odd")


def test_programs_that_are_missing_or_hang_do_not_raise() -> None:
    assert doctor.run_program(["/no/such/program"], 5).code is None
    slow = doctor.run_program([sys.executable, "-c", "import time; time.sleep(30)"], 0.2)
    assert slow.code is None
    assert "no answer" in slow.error
    assert doctor.run_program([sys.executable, "-c", "print('x' + chr(233))"], 20).code == 0


@pytest.fixture
def report_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def put(torch: dict[str, Any] | None = None) -> None:
        report = examine(machine(tmp_path, torch))
        monkeypatch.setattr(doctor, "examine", lambda: report)

    return put


def test_text_at_80_columns(
    report_of: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    report_of({"error": "OSError: [bold]a " + "long " * 30, "importing": True})
    assert run(["doctor"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert max(map(len, captured.out.splitlines())) <= 80
    assert "\x1b" not in captured.out
    assert "[bold]a" in captured.out
    assert "What works here" in captured.out


def test_json(report_of: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    report_of(GOOD_TORCH)
    assert run(["doctor", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "hostgap.doctor/1"
    assert {"name", "status", "detail", "todo"} == set(data["checks"][0])
    assert {"name": "torch", "status": "ok", "detail": "2.11.0+cu130", "todo": None} in data[
        "checks"
    ]
    assert all(isinstance(entry["works"], bool) for entry in data["works"])


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert not [c for c in data["checks"] if "could not be checked" in c["detail"]]
