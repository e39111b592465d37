"""Targets: how they are spelled, imported and built, and what is said of those that cannot be."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from hostgap.errors import ConfigError, TargetError
from hostgap.profiling.target import TargetSpec, checked, load_target

pytest.importorskip("torch", reason="torch is not installed")

import torch

STEPS = """
import torch
from hostgap import Workload

calls = []

def step():
    calls.append(1)

def make():
    x = torch.rand(3)
    return lambda: x * 2

def make_batched(batch):
    return lambda: torch.zeros(batch)

def workload():
    return Workload(body=lambda: None, room=5)

def broken():
    raise RuntimeError("no weights")

def step_of_batch(batch=1):
    return torch.zeros(batch)

async def asynchronous():
    pass

def makes_a_generator():
    def step():
        yield
    return step

ready = Workload(body=lambda: None)
number = 3
"""


@pytest.fixture
def steps(tmp_path: Path) -> str:
    path = tmp_path / "my_steps.py"
    path.write_text(STEPS, encoding="utf-8")
    return str(path)


def test_the_three_kinds(steps: str) -> None:
    assert TargetSpec().kind == "decoder"
    assert TargetSpec(target=steps).kind == "script"
    assert TargetSpec(target=f"{steps}:make").kind == "callable"
    assert TargetSpec(target="package.module:make").kind == "callable"


def test_a_step_function_or_what_returns_one(steps: str) -> None:
    assert load_target(TargetSpec(target=f"{steps}:step")).build().step() is None
    assert load_target(TargetSpec(target=f"{steps}:workload")).build().room == 5
    assert load_target(TargetSpec(target=f"{steps}:ready")).build().room is None
    batched = load_target(TargetSpec(target=f"{steps}:make_batched", batch=4)).build()
    assert batched.step().shape == (4,)
    step = load_target(TargetSpec(target=f"{steps}:step_of_batch", batch=4)).build()
    assert step.step().shape == (4,)


def test_each_build_is_the_same(steps: str) -> None:
    target = load_target(TargetSpec(target=f"{steps}:make"))
    first = target.build().step()
    assert torch.equal(first, target.build().step())


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("nothing", TargetError, "has no 'nothing'"),
        ("number", TargetError, "is int, not a step function"),
        ("asynchronous", TargetError, "a coroutine function"),
        ("makes_a_generator", TargetError, "a generator function"),
        ("broken", TargetError, "cannot be built: RuntimeError: no weights"),
    ],
)
def test_what_a_file_may_lack(steps: str, name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load_target(TargetSpec(target=f"{steps}:{name}")).build()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (TargetSpec(target="nowhere.py"), "no such script"),
        (TargetSpec(target="nowhere.py:step"), "no such file"),
        (TargetSpec(target="decodr"), "no target 'decodr'"),
        (TargetSpec(target=":step"), "no target"),
        (TargetSpec(target="decoder", args=("x",)), "only a script takes arguments"),
        (TargetSpec(target="decoder", step_marker="x"), "--step-marker is for scripts"),
        (TargetSpec(target="decoder", batch=0), "at least 1"),
        (TargetSpec(target="a:b", defects=("eos_read",)), "--defect is for the built-in"),
        (TargetSpec(target="a:b", temperature=0.5), "--temperature is for the built-in"),
        (TargetSpec(target=__file__, batch=8), "a script chooses its own"),
        (TargetSpec(target=__file__, step_marker="["), "unterminated character set"),
        (TargetSpec(temperature=float("nan")), "a number above 0"),
    ],
)
def test_what_can_be_seen_without_running(spec: TargetSpec, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(spec)


def test_imports_that_fail(tmp_path: Path) -> None:
    bad = tmp_path / "bad_target.py"
    bad.write_text("import nowhere_to_be_found\n", encoding="utf-8")
    with pytest.raises(TargetError, match="cannot be imported: ModuleNotFoundError"):
        load_target(TargetSpec(target=f"{bad}:step"))
    bad.write_text("def f(:\n", encoding="utf-8")
    with pytest.raises(TargetError, match="cannot be imported: SyntaxError"):
        load_target(TargetSpec(target=f"{bad}:step"))
    bad.write_text("import sys\nsys.exit('stop')\n", encoding="utf-8")
    with pytest.raises(TargetError, match="cannot be imported: SystemExit: stop"):
        load_target(TargetSpec(target=f"{bad}:step"))
    with pytest.raises(TargetError, match="cannot be imported: ModuleNotFoundError"):
        load_target(TargetSpec(target="no.such.module:step"))


def test_a_batch_for_what_takes_none(steps: str) -> None:
    with pytest.raises(ConfigError, match="takes no argument 'batch'"):
        load_target(TargetSpec(target=f"{steps}:make", batch=2)).build()


def test_defects_are_the_decoders() -> None:
    with pytest.raises(ConfigError, match="no decoder defect 'eos_reed'"):
        load_target(TargetSpec(preset="tiny", defects=("eos_reed",)))
    with pytest.raises(ConfigError, match="no preset 'smal'"):
        load_target(TargetSpec(preset="smal"))
    everything = load_target(TargetSpec(preset="tiny", defects=("all",)))
    assert "eos_read" in everything.defects
    assert load_target(TargetSpec(preset="tiny", defects=())).defects == ()


def test_a_script_owns_its_loop(steps: str) -> None:
    with pytest.raises(ConfigError, match="owns its loop"):
        load_target(TargetSpec(target=steps))


def test_a_file_called_as_a_module_of_pythons_own(tmp_path: Path) -> None:
    path = tmp_path / "types.py"
    path.write_text("def step():\n    return 7\n", encoding="utf-8")
    assert load_target(TargetSpec(target=f"{path}:step")).build().step() == 7
    assert sys.modules["types"] is types
