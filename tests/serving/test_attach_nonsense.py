"""Servers that answer nonsense, and such as do not stop."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hostgap.errors import HostgapError
from tests.serving.fake import Fake, FakeSglang, FakeVllm, Reply
from tests.serving.seen import Run, left

pytestmark = pytest.mark.usefixtures("fast")


@dataclass
class Says:
    """What a server answers to some paths; a body may tell the steps made, as STEPS."""

    says: dict[str, str] = field(default_factory=dict)

    def answer(self, method: str, path: str, payload: Any) -> Reply:
        if path not in self.says:
            return super().answer(method, path, payload)  # type: ignore[misc,no-any-return]
        steps = self.steps()  # type: ignore[attr-defined]
        return Reply(body=self.says[path].replace("STEPS", str(steps)))


@dataclass
class NonsenseVllm(Says, FakeVllm):
    pass


@dataclass
class NonsenseSglang(Says, FakeSglang):
    pass


STEPS = "\nvllm:iteration_tokens_total_count STEPS"
RUNNING = "vllm:num_requests_running"
TOKEN = "vllm:inter_token_latency_seconds"


@pytest.mark.parametrize(
    ("page", "running"),
    [
        (f'{RUNNING}{{a="1"}} 1e308\n{RUNNING}{{a="2"}} 1e308{STEPS}', None),
        (f"{RUNNING} 1e300{STEPS}", None),
        (f"{RUNNING} -4{STEPS}", None),
        (f"{RUNNING} 4\n{TOKEN}_sum STEPSe30\n{TOKEN}_count STEPS{STEPS}", 4),
        (f'{RUNNING} 4\n{TOKEN}_sum{{a="STEPS"}} 1e308\n{TOKEN}_count STEPS{STEPS}', 4),
        (f"{RUNNING} 4\nvllm:iteration_tokens_total_count -STEPS", 4),
        (f"{RUNNING} 4\nvllm:iteration_tokens_total_count -1e308", 4),
    ],
)
def test_counts_that_are_none(folder: Path, run: Run, page: str, running: int | None) -> None:
    serving = run(NonsenseVllm(folder, says={"/metrics": page})).serving
    assert serving.requests_running == running
    assert serving.inter_token_latency is None
    assert serving.inter_token_latency_missing


def test_steps_that_are_counted_backwards(folder: Path, run: Run) -> None:
    class Backwards(NonsenseVllm):
        def steps(self) -> int:
            return 10**9 - super().steps()

    page = f"{RUNNING} 4{STEPS}"
    with pytest.raises(HostgapError, match=r" made 0 steps in 0\.5 s: there is nothing to trace"):
        run(Backwards(folder, says={"/metrics": page}), timeout_s=0.5)


@pytest.mark.parametrize("count", ["-5", "true", "1" * 400, "1" * 18])
def test_loads_of_sglang_that_are_none(folder: Path, run: Run, count: str) -> None:
    loads = f'{{"loads": [{{"num_running_reqs": {count}}}]}}'
    assert run(NonsenseSglang(folder, says={"/v1/loads": loads})).serving.requests_running == 4


@pytest.mark.parametrize("size", ["true", "1" * 30, "1" * 12])
def test_sizes_of_sglang_that_are_none(folder: Path, run: Run, size: str, notes: list[str]) -> None:
    info = f'{{"version": "1", "tp_size": {size}, "pp_size": 1, "dp_size": 1, "nnodes": 1}}'
    run(NonsenseSglang(folder, says={"/server_info": info}))
    assert notes == []


def test_a_version_of_no_text(folder: Path, run: Run, tmp_path: Path) -> None:
    version = r'{"version": "a\ud800b\u001b[2J"}'
    assert run(NonsenseVllm(folder, says={"/version": version})).serving.version == (
        r"a\ud800b\x1b[2J"
    )
    assert "serving.json" in left(tmp_path)


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="names are Unicode there")
def test_a_file_name_of_no_text(folder: Path, run: Run, tmp_path: Path) -> None:
    class Oddly(FakeVllm):
        def write(self, name: str, data: bytes) -> None:
            super().write(f"odd\udcff{name}", data)

    done = run(Oddly(folder, frontend=False))
    assert done.serving.files[0].file.startswith(r"odd\udcff")
    assert len(left(tmp_path)) == 2


class Unstoppable:
    """What a server's `/stop_profile` answers in place of ending the session."""

    status = 500

    def answer(self, method: str, path: str, payload: Any) -> Reply:
        if path == "/stop_profile":
            return Reply(self.status, {"error": {"message": "worker died"}})
        return super().answer(method, path, payload)  # type: ignore[misc,no-any-return]


class UnstoppableVllm(Unstoppable, FakeVllm):
    pass


class UnstoppableSglang(Unstoppable, FakeSglang):
    status = 502  # a proxy before it: 500 is SGLang's own answer when it records nothing


@pytest.mark.parametrize("kind", [UnstoppableVllm, UnstoppableSglang])
def test_a_server_that_does_not_stop(
    kind: type[Fake], folder: Path, run: Run, tmp_path: Path, notes: list[str]
) -> None:
    fake = kind(folder, writes=False)
    with pytest.raises(HostgapError, match=r"/stop_profile: HTTP 50[02]: worker died"):
        run(fake, timeout_s=1.0)
    (note,) = notes
    assert note.startswith("the profiler may still run")
    assert note.endswith(f"curl -X POST {fake.url}/stop_profile")
    assert left(tmp_path) == []


def test_ctrl_c_and_a_server_that_does_not_stop(folder: Path, run: Run, notes: list[str]) -> None:
    def interrupt(text: str) -> None:
        if text.startswith("recording"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(UnstoppableVllm(folder), say=interrupt)
    assert notes[0].startswith("the profiler may still run (")
    armed = FakeSglang(folder)
    with pytest.raises(KeyboardInterrupt):
        run(armed, say=lambda text: setattr(armed, "active", False) or interrupt(text))
    assert notes[1:] == ["the server records nothing now; it may still begin, with its next steps"]
