"""The loop around a step: step functions and scripts, what they may do wrong, and marks."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

import hostgap
from hostgap.errors import TargetError, TargetExited
from hostgap.profiling.loop import Driver, Fresh, Pass, run_script
from hostgap.profiling.target import TargetSpec
from hostgap.profiling.workload import Workload

pytest.importorskip("torch", reason="torch is not installed")


def count(steps: int) -> Pass[str]:
    yield from range(steps, 0, -1)
    return f"{steps} done"


def script(tmp_path: Path, text: str) -> TargetSpec:
    path = tmp_path / "job.py"
    path.write_text(text, encoding="utf-8")
    return TargetSpec(target=str(path), args=("--fast",))


def test_a_driver_runs_one_step_per_yield() -> None:
    ran: list[int] = []
    driver = Driver(Workload(body=lambda: ran.append(1)), "mine")
    assert driver.run(count(7)) == "7 done"
    assert len(ran) == 7


def test_a_driver_starts_over_before_the_room_ends() -> None:
    at, seen = [0], []

    def body() -> None:
        assert at[0] < 10, "wrote past the cache"
        at[0] += 1

    def reset(case: int) -> None:
        seen.append(at[0])
        at[0] = 0

    driver = Driver(Workload(body=body, reset=reset, room=10), "mine")
    for _ in range(5):
        driver.run(count(4))
    assert seen == [0, 8, 8]  # and never within a stretch


def test_what_is_compared_is_measured_over_the_same_steps() -> None:
    at, seen = [0], []

    def body() -> None:
        seen.append(at[0])
        at[0] += 1

    def reset(case: int) -> None:
        at[0] = 0

    def from_the_start(steps: int) -> Pass[None]:
        yield Fresh(steps)
        yield from range(steps - 1, 0, -1)

    driver = Driver(Workload(body=body, reset=reset, room=10), "mine")
    driver.run(count(2))
    driver.run(from_the_start(3))
    driver.run(from_the_start(3))
    assert seen == [0, 1, 0, 1, 2, 0, 1, 2]
    seen.clear()
    ahead = Driver(Workload(body=body), "mine")  # it cannot begin anew: it goes on
    at[0] = 5
    ahead.run(from_the_start(2))
    assert seen == [5, 6]


def test_more_steps_than_there_is_room_for() -> None:
    driver = Driver(Workload(body=lambda: None, room=3), "mine")
    with pytest.raises(TargetError, match="room for 3 steps; 4 are needed"):
        driver.run(count(4))


def test_a_step_that_raises_is_named_with_its_number_and_line() -> None:
    ran: list[int] = []

    def body() -> None:
        ran.append(1)
        if len(ran) == 8:
            raise ValueError("shape [3] is no shape\nwith details")

    with pytest.raises(TargetError) as caught:
        Driver(Workload(body=body), "mine").run(count(20))
    assert caught.value.message == "mine raised in step 7: ValueError: shape [3] is no shape"
    assert caught.value.hint is not None
    assert "test_loop.py:" in caught.value.hint


def test_a_script_is_driven_by_its_marks(tmp_path: Path) -> None:
    before = list(sys.argv)
    spec = script(
        tmp_path,
        "import sys, hostgap, pathlib\n"
        "assert sys.argv[1:] == ['--fast'] and __name__ == '__main__'\n"
        "for i in range(10**9):\n"
        "    hostgap.step()\n"
        "    pathlib.Path(__file__).with_name('ran').write_text(str(i))\n",
    )
    assert run_script(spec, count(12)) == "12 done"
    assert (tmp_path / "ran").read_text() == "11"
    assert sys.argv == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "ended without marking a step"),
        ("import hostgap\nfor i in range(5): hostgap.step()\n", "ended after 5 steps"),
        (
            "import hostgap\nfor i in range(9):\n    hostgap.step()\n    1 / (7 - i)\n",
            "raised in step 7: ZeroDivisionError: division by zero",
        ),
        ("1 / 0\n", "raised before its first step: ZeroDivisionError"),
        ("import sys\nsys.exit(3)\n", "exited with code 3 before its first step"),
        ("import sys\nsys.exit(0)\n", "ended without marking a step"),
        ("import sys\nsys.exit()\n", "ended without marking a step"),
        (
            "import hostgap\nfor i in range(4): hostgap.step()\n"
            "exit('no more data\\nsee the log')\n",
            "exited after 4 steps: no more data",
        ),
        ("def f(:\n", "SyntaxError"),
    ],
)
def test_what_a_script_may_do_wrong(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TargetError) as caught:
        run_script(script(tmp_path, text), count(20))
    assert message in caught.value.message
    assert "\n" not in caught.value.message


def test_a_script_that_exits_with_a_reason_gives_it(tmp_path: Path) -> None:
    spec = script(tmp_path, "import sys\nsys.exit('no checkpoint in /models: set MODEL_DIR')\n")
    with pytest.raises(TargetExited) as caught:
        run_script(spec, count(20))
    said = "exited before its first step: no checkpoint in /models: set MODEL_DIR"
    assert caught.value.message == f"{spec.target} {said}"
    assert caught.value.hint == f"in <module> at {spec.target}:2"


def test_ranges_that_a_script_has_anyway_mark_its_steps(tmp_path: Path) -> None:
    spec = script(
        tmp_path,
        "import torch\n"
        "while True:\n"
        "    with torch.profiler.record_function('decode 3'):\n"
        "        with torch.profiler.record_function('other'):\n"
        "            pass\n",
    )
    marked = TargetSpec(target=spec.target, step_marker="^decode")
    assert run_script(marked, count(6)) == "6 done"
    import torch

    assert torch.profiler.record_function.__enter__.__qualname__.startswith("record_function")


def test_marks_do_nothing_outside_a_profile() -> None:
    hostgap.step()


def test_a_script_finds_the_modules_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text(
        "import hostgap\nmark = hostgap.step\n", encoding="utf-8"
    )
    spec = script(tmp_path, "import beside_it\nwhile True: beside_it.mark()\n")
    before = list(sys.path)
    assert run_script(spec, count(3)) == "3 done"
    assert sys.path == before


def test_room_without_a_reset_is_not_overrun() -> None:
    ran: list[int] = []
    driver = Driver(Workload(body=lambda: ran.append(1), room=4), "mine")
    driver.run(count(3))
    with pytest.raises(TargetError, match="room for 4 steps and no reset"):
        driver.run(count(3))
    assert len(ran) == 3


def test_an_error_of_the_pass_itself_is_one_of_the_target(tmp_path: Path) -> None:
    def fails() -> Pass[None]:
        yield 1
        raise RuntimeError("CUDA error: device lost")

    with pytest.raises(TargetError, match="device lost"):
        Driver(Workload(body=lambda: None), "mine").run(fails())


@pytest.mark.parametrize(
    "loop",
    [
        "try:\n    while True: hostgap.step()\nexcept BaseException: pass\n",
        "def go():\n    try:\n        while True: hostgap.step()\n    finally: return\ngo()\n",
        "try:\n    while True: hostgap.step()\nexcept: sys.exit(1)\n",
        "try:\n    while True: hostgap.step()\nfinally: 1 / 0\n",
        "while True:\n    try: hostgap.step()\n    except BaseException: break\n",
    ],
)
def test_a_script_that_catches_its_own_end_loses_nothing(tmp_path: Path, loop: str) -> None:
    assert run_script(script(tmp_path, f"import sys, hostgap\n{loop}"), count(5)) == "5 done"


def test_a_script_cannot_hide_that_measuring_failed(tmp_path: Path) -> None:
    def fails() -> Pass[None]:
        yield 1
        raise RuntimeError("CUDA error: device lost")

    text = (
        "import hostgap\nfor i in range(9):\n    try: hostgap.step()\n    except Exception: pass\n"
    )
    with pytest.raises(TargetError, match="device lost"):
        run_script(script(tmp_path, text), fails())


def test_what_a_reset_takes_is_no_step_s_host_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from hostgap.profiling import passes
    from tests.profiling.cpu_child import ClockMark

    monkeypatch.setattr(passes, "Mark", ClockMark)
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)

    def busy(seconds: float) -> None:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass

    workload = Workload(body=lambda: busy(1e-3), reset=lambda _: busy(0.7))
    measured = Driver(workload, "mine").run(passes.time_steps(5, 2))
    assert measured.host is not None
    assert 0.9e6 < measured.host.wall_ns < 60e6  # and not 700 ms by 7 steps
