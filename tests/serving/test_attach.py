from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hostgap.errors import HostgapError
from hostgap.serving import sglang
from hostgap.serving.attach import ENGINES, attach
from hostgap.serving.server import Server
from tests.serving.fake import TOKEN_S, Fake, FakeSglang, FakeVllm, worker_trace
from tests.serving.seen import Run, left, posts

pytestmark = pytest.mark.usefixtures("fast")


def test_vllm(folder: Path, run: Run, tmp_path: Path, notes: list[str]) -> None:
    (folder / "dp0_pp0_tp0_dcp0_ep0_rank0.1.pt.trace.json.gz").write_bytes(b"of yesterday")
    (folder / "profiler_out_0.txt").write_text("a table")
    fake = FakeVllm(folder, ranks=2)
    done = run(fake)
    serving = done.serving
    assert (serving.engine, serving.version, serving.bounded) == ("vllm", "0.33.0", True)
    assert [(one.role, one.label) for one in serving.files] == [
        ("worker", "rank 0 (dp0 pp0 tp0)"),
        ("worker", "rank 1 (dp0 pp0 tp1)"),
        ("frontend", "frontend (CPU only)"),
    ]
    assert serving.requests_running == 4
    assert serving.inter_token_latency is not None
    assert serving.inter_token_latency.metric == "vllm:inter_token_latency_seconds"
    assert serving.inter_token_latency.mean_ns == pytest.approx(TOKEN_S * 1e9, rel=1e-6)
    assert serving.inter_token_latency.tokens > 0
    assert posts(fake) == ["/start_profile", "/stop_profile"]
    (payload,) = [sent for _, path, sent in fake.asked if path == "/start_profile"]
    prefix = payload.pop("profile_prefix")
    assert payload == {"delay_iterations": 5, "max_iterations": 20}
    assert all(path.name.startswith(prefix) for path in done.paths)
    assert left(tmp_path) == sorted([*(path.name for path in done.paths), "serving.json"])
    assert done.paths[0].read_bytes() == worker_trace("execute_context_0(0)_generation_4(4)")
    assert len(list(folder.iterdir())) == 5  # the server's own stay
    written = json.loads((tmp_path / "out" / "serving.json").read_text())
    assert written["schema"] == "hostgap.serving/1"
    assert [one["file"] for one in written["files"]] == [path.name for path in done.paths]
    assert notes == []


def test_vllm_that_takes_no_bounds(folder: Path, run: Run, notes: list[str]) -> None:
    fake = FakeVllm(folder, per_session=False, frontend=False)
    done = run(fake)
    assert done.serving.bounded is False
    assert [one.label for one in done.serving.files] == ["rank 0 (dp0 pp0 tp0)"]
    assert len(notes) == 1
    assert "takes no number of steps" in notes[0]


def test_vllm_without_metrics(folder: Path, run: Run) -> None:
    serving = run(FakeVllm(folder, metrics=False)).serving
    assert serving.inter_token_latency is None
    assert serving.inter_token_latency_missing == "the server has no /metrics"
    assert serving.requests_running is None


@pytest.mark.parametrize("start_step", [0, 5])
def test_sglang(folder: Path, run: Run, tmp_path: Path, notes: list[str], start_step: int) -> None:
    (folder / "1.5-TP-0.trace.json.gz").write_bytes(b"of yesterday")
    fake = FakeSglang(folder, ranks=2, merges=True)
    done = run(fake, start_step=start_step)
    assert [one.label for one in done.serving.files] == ["TP 0", "TP 1"]
    assert done.serving.version == "0.5.23"
    assert done.serving.inter_token_latency is not None
    assert done.serving.inter_token_latency.metric == "sglang:inter_token_latency_seconds"
    assert posts(fake) == ["/start_profile"]  # it ends by itself
    (payload,) = [sent for _, path, sent in fake.asked if path == "/start_profile"]
    assert payload.pop("profile_prefix").startswith("hostgap-")
    expected = {
        "output_dir": str(folder),
        "num_steps": 20,
        "activities": ["CPU", "GPU"],
        "profile_by_stage": False,
        "merge_profiles": False,
    }
    assert payload == (expected if start_step == 0 else {**expected, "start_step": 5})
    assert len(left(tmp_path)) == 3
    assert notes == []


def test_sglang_that_follows_no_prefix(folder: Path, run: Run, tmp_path: Path) -> None:
    (folder / "1.5-TP-0.trace.json.gz").write_bytes(b"of yesterday")
    fake = FakeSglang(folder, follows_prefix=False, merges=True, old_info=True, loads=False)
    assert len(run(fake).paths) == 1
    assert len(left(tmp_path)) == 2


def test_sglang_of_which_a_rank_writes_elsewhere(folder: Path, run: Run, notes: list[str]) -> None:
    done = run(FakeSglang(folder, ranks=1, sizes={"tp_size": 2}))
    assert len(done.paths) == 1
    assert notes == [f"1 of 2 ranks wrote a trace to {folder}"]


@pytest.mark.parametrize(
    ("sizes", "ranks"),
    [
        ({"tp_size": 8}, 8),
        ({"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}, 8),
        ({"tp_size": 4, "dp_size": 2}, 8),
        ({"tp_size": 8, "pp_size": 2, "nnodes": 2}, 8),
        ({"tp_size": None}, None),
    ],
)
def test_sglang_says_how_many_files_there_will_be(
    folder: Path, serve: Callable[[Fake], Fake], sizes: dict[str, Any], ranks: int | None
) -> None:
    fake = serve(FakeSglang(folder, sizes=sizes))
    assert sglang.Sglang().about(Server.at(fake.url)).ranks == ranks


def test_keys(folder: Path, run: Run, tmp_path: Path) -> None:
    fake = FakeSglang(folder, key="secret-1")
    with pytest.raises(HostgapError) as caught:
        run(fake)
    assert "refused (HTTP 401)" in caught.value.message
    assert "--api-key or HOSTGAP_API_KEY" in (caught.value.hint or "")
    with pytest.raises(HostgapError) as caught:
        run(fake, key="secret-2")
    assert "secret" not in caught.value.message + (caught.value.hint or "")
    assert left(tmp_path) == []
    run(fake, key="secret-1")
    assert "secret" not in (tmp_path / "out" / "serving.json").read_text()


def test_a_key_for_profiling_only(folder: Path, run: Run) -> None:
    fake = FakeSglang(folder, key="one", admin_key="two")
    assert run(fake, key="two").serving.version == "unknown"


@pytest.mark.parametrize("kind", [FakeVllm, FakeSglang])
def test_an_idle_server(kind: type[Fake], folder: Path, run: Run, tmp_path: Path) -> None:
    fake = kind(folder, running=0)
    with pytest.raises(HostgapError) as caught:
        run(fake)
    assert caught.value.message.endswith("no request is running: the trace would be empty")
    assert posts(fake) == []
    assert left(tmp_path) == []


def test_vllm_without_profiling(folder: Path, run: Run) -> None:
    with pytest.raises(HostgapError) as caught:
        run(FakeVllm(folder, profiler=None))
    assert "has no /start_profile" in caught.value.message
    config = f'{{"profiler": "torch", "torch_profiler_dir": "{folder}"}}'
    assert caught.value.hint == f"start it so: vllm serve MODEL --profiler-config '{config}'"


@pytest.mark.parametrize("kind", [FakeVllm, FakeSglang])
def test_somebody_elses_profile_is_left_alone(kind: type[Fake], folder: Path, run: Run) -> None:
    fake = kind(folder, active=True)
    with pytest.raises(HostgapError) as caught:
        run(fake)
    assert "already" in caught.value.message
    assert caught.value.hint is not None
    assert caught.value.hint.endswith(f"curl -X POST {fake.url}/stop_profile")
    assert posts(fake) == ["/start_profile"]


def test_the_wrong_engine(folder: Path, serve: Callable[[Fake], Fake], tmp_path: Path) -> None:
    pairs = [(FakeVllm(folder), "sglang", "SGLang"), (FakeSglang(folder), "vllm", "vLLM")]
    for fake, name, spelt in pairs:
        serve(fake)
        with pytest.raises(HostgapError, match=f"does not answer as {spelt} does") as caught:
            attach(
                Server.at(fake.url),
                ENGINES[name](),
                tmp_path / "out",
                folder,
                say=str,
                note=str,
            )
        assert "--engine" in (caught.value.hint or "")
        assert posts(fake) == []


@pytest.mark.parametrize("dies_at", ["/start_profile", "/stop_profile"])
def test_vllm_that_dies(folder: Path, run: Run, tmp_path: Path, dies_at: str) -> None:
    with pytest.raises(HostgapError) as caught:
        run(FakeVllm(folder, dies_at=dies_at))
    assert caught.value.message.endswith("went away while it was traced")
    assert left(tmp_path) == []


def test_sglang_that_dies(folder: Path, run: Run, tmp_path: Path) -> None:
    # only the look whether it is alive asks for this
    with pytest.raises(HostgapError) as caught:
        run(FakeSglang(folder, dies_at="/version", writes=False))
    assert caught.value.message.endswith("went away while it was traced")
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    "fake",
    [
        lambda folder: FakeVllm(folder, profiler="cuda"),
        lambda folder: FakeVllm(folder, writes=False),
        lambda folder: FakeSglang(folder, writes=False),
    ],
)
def test_no_file(fake: Callable[[Path], Fake], folder: Path, run: Run, tmp_path: Path) -> None:
    with pytest.raises(HostgapError) as caught:
        run(fake(folder), timeout_s=1.0)
    assert caught.value.hint
    assert left(tmp_path) == []


def test_only_the_frontends_file(folder: Path, run: Run) -> None:
    with pytest.raises(HostgapError, match="holds only the frontend's trace"):
        run(FakeVllm(folder, ranks=0), timeout_s=1.0)


def test_a_cut_file(folder: Path, run: Run, tmp_path: Path) -> None:
    with pytest.raises(HostgapError, match="not complete after 1 s: hostgap-"):
        run(FakeSglang(folder, damage="cut"), timeout_s=1.0)
    assert left(tmp_path) == []


def test_a_damaged_file(folder: Path, run: Run, tmp_path: Path) -> None:
    with pytest.raises(HostgapError, match="is damaged"):
        run(FakeVllm(folder, damage="garbage"))
    assert left(tmp_path) == []


def test_load_that_ends(folder: Path, run: Run, tmp_path: Path) -> None:
    class Ending(FakeVllm):
        def start(self, payload: Any) -> Any:
            self.running = 0
            return super().start(payload)

    fake = Ending(folder)
    with pytest.raises(HostgapError, match="there is nothing to trace") as caught:
        run(fake, timeout_s=0.5)
    assert "keep requests coming" in (caught.value.hint or "")
    assert posts(fake) == ["/start_profile", "/stop_profile"]
    assert left(tmp_path) == []


@pytest.mark.parametrize("start_step", [0, 5])
def test_load_that_ends_at_sglang(
    folder: Path, run: Run, notes: list[str], start_step: int
) -> None:
    class Ending(FakeSglang):
        def start(self, sent: dict[str, Any]) -> Any:
            self.running = 0
            return super().start(sent)

    fake = Ending(folder)
    if start_step:  # armed for the next step, which does not come
        with pytest.raises(HostgapError, match="nothing was recorded in 1 s"):
            run(fake, timeout_s=1.0, start_step=start_step)
    else:
        assert len(run(fake, timeout_s=1.0, start_step=start_step).paths) == 1
        assert notes == ["the steps were not all made in 1 s: taking what there is"]
    assert posts(fake) == ["/start_profile", "/stop_profile"]


@pytest.mark.parametrize("kind", [FakeVllm, FakeSglang])
def test_ctrl_c_stops_the_profiler(
    kind: type[Fake], folder: Path, run: Run, tmp_path: Path
) -> None:
    def interrupt(text: str) -> None:
        if text.startswith("recording"):
            raise KeyboardInterrupt

    fake = kind(folder)
    with pytest.raises(KeyboardInterrupt):
        run(fake, say=interrupt)
    assert posts(fake) == ["/start_profile", "/stop_profile"]
    assert left(tmp_path) == []


def test_ctrl_c_and_a_server_that_has_gone(folder: Path, run: Run, notes: list[str]) -> None:
    def interrupt(text: str) -> None:
        if text.startswith("recording"):
            raise KeyboardInterrupt

    fake = FakeVllm(folder, dies_at="/stop_profile")
    with pytest.raises(KeyboardInterrupt):
        run(fake, say=interrupt)
    (note,) = notes
    assert note.startswith("the profiler may still run")
    assert note.endswith(f"curl -X POST {fake.url}/stop_profile")


def test_nothing_is_overwritten(folder: Path, run: Run, tmp_path: Path) -> None:
    fake = FakeVllm(folder)
    run(fake)
    asked = len(fake.asked)
    with pytest.raises(HostgapError, match=r"serving\.json exists"):
        run(fake)
    assert len(fake.asked) == asked  # before the server was asked for anything
    run(fake, force=True)


def test_folders(folder: Path, run: Run, tmp_path: Path) -> None:
    fake = FakeVllm(tmp_path / "none")
    with pytest.raises(HostgapError, match="no such folder"):
        run(fake)
    fake.folder = tmp_path / "out"
    with pytest.raises(HostgapError, match="are both"):
        run(fake)
    (tmp_path / "out").write_text("")
    with pytest.raises(HostgapError, match="is a file"):
        run(fake)
    assert posts(fake) == []
