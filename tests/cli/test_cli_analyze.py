"""`hostgap analyze` as a person and a CI job meet it: exit codes, streams, files, options."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ranks.build import Job, document

ROOT = Path(__file__).parents[2]
ITEM = ROOT / "sample_traces" / "eager_item.json.gz"
GRAPH = ROOT / "sample_traces" / "cuda_graph.json.gz"


def hostgap(*args: Any, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[bytes]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HOSTGAP_", "NO_COLOR"))}
    return subprocess.run(
        [sys.executable, "-m", "hostgap", *map(str, args)],
        cwd=cwd,
        env={**clean, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        timeout=60,
        check=False,
    )


def json_of(*args: Any, **kwargs: Any) -> dict[str, Any]:
    done = hostgap("analyze", *args, "--format", "json", **kwargs)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_text_on_stdout_and_nothing_else() -> None:
    done = hostgap("analyze", ITEM)
    assert done.returncode == 0
    assert done.stderr == b""
    assert done.stdout.startswith(b"GPU idle 9")


def test_output_files_by_extension(tmp_path: Path) -> None:
    names = ["r.json", "r.md", "r.txt"]
    outputs = [option for name in names for option in ("-o", tmp_path / name)]
    done = hostgap("analyze", GRAPH, *outputs)
    assert done.returncode == 0
    assert done.stdout == b""  # written to files instead
    assert done.stderr.count(b"Wrote ") == 3
    assert json.loads((tmp_path / "r.json").read_bytes())["schema"] == "hostgap.diagnosis/1"
    assert (tmp_path / "r.md").read_text().startswith("### GPU idle")
    assert (tmp_path / "r.txt").read_text().startswith("GPU idle")


def test_files_and_stdout_together(tmp_path: Path) -> None:
    done = hostgap("analyze", GRAPH, "-o", tmp_path / "r.json", "--format", "text")
    assert done.stdout.startswith(b"GPU idle")
    assert (tmp_path / "r.json").exists()


def test_never_overwrites_without_force(tmp_path: Path) -> None:
    target = tmp_path / "r.json"
    target.write_text("mine")
    done = hostgap("analyze", GRAPH, "-o", target)
    assert done.returncode == 2
    assert b"--force" in done.stderr
    assert target.read_text() == "mine"
    assert hostgap("analyze", GRAPH, "-o", target, "--force").returncode == 0
    assert json.loads(target.read_bytes())["devices"]
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_unknown_extension(tmp_path: Path) -> None:
    done = hostgap("analyze", GRAPH, "-o", tmp_path / "r.docx")
    assert done.returncode == 2
    assert b".json" in done.stderr
    assert not list(tmp_path.iterdir())


def test_standard_input_and_plain_json(tmp_path: Path) -> None:
    plain = tmp_path / "plain.json"
    plain.write_bytes(gzip.decompress(GRAPH.read_bytes()))
    from_file = json_of(plain)
    piped = subprocess.run(
        [sys.executable, "-m", "hostgap", "analyze", "-", "--format", "json"],
        cwd=ROOT,
        input=GRAPH.read_bytes(),
        capture_output=True,
        check=True,
    )
    from_pipe = json.loads(piped.stdout)
    assert from_pipe["trace"].pop("file") == "stdin"
    from_file["trace"].pop("file")
    assert from_pipe == from_file


def test_steps_option_chooses_and_adds_up() -> None:
    whole = json_of(ITEM)
    assert whole["steps"]["first"] == 1  # the first step is fill
    one_by_one = [json_of(ITEM, "--steps", str(k)) for k in range(1, 5)]
    for field in ("window_ns", "idle_ns", "active_ns"):
        total = sum(part["devices"][0][field] for part in one_by_one)
        assert total == whole["devices"][0][field]
    assert json_of(ITEM, "--steps", "-2:")["steps"]["first"] == 3
    assert json_of(ITEM, "--steps", "0:")["steps"]["count"] == 5


@pytest.mark.parametrize("steps", ["9:12", "3:2", "x", "1:2:3", ":", ""])
def test_bad_steps(steps: str) -> None:
    done = hostgap("analyze", ITEM, "--steps", steps)
    if steps == ":":
        assert done.returncode == 0  # all of them, fill included
        return
    assert done.returncode == 2
    assert b"step" in done.stderr
    assert b"Traceback" not in done.stderr


def test_device_option() -> None:
    assert json_of(ITEM, "--device", "0")["devices"][0]["device"] == 0
    done = hostgap("analyze", ITEM, "--device", "7")
    assert done.returncode == 2
    assert b"devices: 0" in done.stderr


def test_step_marker() -> None:
    found = json_of(ITEM, "--step-marker", "^ProfilerStep#[4567]$")
    assert found["steps"]["count"] == 3
    for bad in ("no such thing", "("):
        done = hostgap("analyze", ITEM, "--step-marker", bad)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) <= 2


def test_window_trace_and_steps_exclude_each_other() -> None:
    assert hostgap("analyze", ITEM, "--window", "trace", "--steps", "1:2").returncode == 2
    assert json_of(ITEM, "--window", "trace")["trace"]["window"] == "trace"


def test_unmeasurable_is_3_with_its_json(tmp_path: Path) -> None:
    trace = tmp_path / "cpu.json"
    op = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    trace.write_text(json.dumps({"traceEvents": [op]}))
    done = hostgap("analyze", trace, "--format", "json")
    assert done.returncode == 3
    written = json.loads(done.stdout)
    assert written["trace"]["integrity"]["verdict"] == "unmeasurable"
    assert written["devices"] == []


def test_a_chosen_step_without_gpu_work_is_3(tmp_path: Path) -> None:
    path = tmp_path / "hole.json"
    events = document(Job(1, steps=8), 0)["traceEvents"]
    marks = [event for event in events if event["name"].startswith("ProfilerStep")]
    low, high = (float(marks[at]["ts"]) for at in (4, 5))
    kept = [event for event in events if event in marks or not low <= float(event["ts"]) < high]
    path.write_text(json.dumps({"traceEvents": kept}))
    assert hostgap("analyze", path).returncode == 0
    done = hostgap("analyze", path, "--steps", "4:5")
    assert done.returncode == 3
    assert done.stdout.startswith(b"Nothing can be measured")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", b"empty"),
        (b"hello", b"not JSON"),
        (b"{}", b"no traceEvents"),
        (b'{"traceEvents": []}', b"no events"),
        (b"\x1f\x8b\x08\x00garbage garbage", b"gzip"),
        (b"SQLite format 3\x00", b"nsys export"),
    ],
)
def test_unreadable_is_2_in_two_lines(tmp_path: Path, content: bytes, says: bytes) -> None:
    trace = tmp_path / "input.json"
    trace.write_bytes(content)
    done = hostgap("analyze", trace, "-o", tmp_path / "out.json")
    assert done.returncode == 2
    assert done.stdout == b""
    assert says in done.stderr
    assert 1 <= len(done.stderr.splitlines()) <= 2
    assert not (tmp_path / "out.json").exists()


def test_missing_file_suggests_the_near_one(tmp_path: Path) -> None:
    (tmp_path / "decode.json").write_text("{}")
    done = hostgap("analyze", tmp_path / "decod.json")
    assert done.returncode == 2
    assert b"decode.json" in done.stderr


def test_an_output_without_a_folder_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    done = hostgap("analyze", tmp_path / "missing.json", "-o", tmp_path / "no" / "r.json")
    assert done.returncode == 2
    assert b"no such folder" in done.stderr


def test_options_of_several_traces_are_said_to_be_in_vain() -> None:
    done = hostgap("analyze", GRAPH, "--engine", "dask", "--scheduler", "tcp://h:1")
    assert done.returncode == 0
    assert done.stderr.count(b"is for several traces, and this is one") == 2


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = hostgap("--debug", "analyze", tmp_path / "missing.json")
    assert b"Traceback" in done.stderr


def test_misspelt_command_is_suggested() -> None:
    done = hostgap("analyse")
    assert done.returncode == 2
    assert b"analyze" in done.stderr


def test_closed_pipe_is_no_error() -> None:
    done = subprocess.run(
        f'"{sys.executable}" -m hostgap analyze "{GRAPH}" --format json | head -c 1',
        shell=True,
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"{"
    assert done.stderr == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_full_disk_on_standard_output() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hostgap", "analyze", str(GRAPH)],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 2
    assert b"No space left" in done.stderr
    assert b"internal" not in done.stderr


class TestConfiguration:
    def test_file_then_environment_then_command_line(self, tmp_path: Path) -> None:
        (tmp_path / "hostgap.toml").write_text('window = "trace"\n')
        below = tmp_path / "below"
        below.mkdir()
        assert json_of(ITEM, cwd=below)["trace"]["window"] == "trace"
        from_env = json_of(ITEM, cwd=below, HOSTGAP_WINDOW="steps")
        assert from_env["trace"]["window"] == "steps"
        given = json_of(ITEM, "--window", "trace", cwd=below, HOSTGAP_WINDOW="steps")
        assert given["trace"]["window"] == "trace"

    def test_pyproject(self, tmp_path: Path) -> None:
        (tmp_path / "pyproject.toml").write_text('[tool.hostgap]\nstep-marker = "ProfilerStep#6"\n')
        assert json_of(ITEM, cwd=tmp_path)["steps"]["count"] == 1

    def test_own_file_wins_over_pyproject(self, tmp_path: Path) -> None:
        (tmp_path / "pyproject.toml").write_text('[tool.hostgap]\nwindow = "steps"\n')
        (tmp_path / "hostgap.toml").write_text('window = "trace"\n')
        assert json_of(ITEM, cwd=tmp_path)["trace"]["window"] == "trace"

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ('windw = "trace"\n', b"window"),
            ('window = "tarce"\n', b"window"),
            ("window = \n", b"TOML"),
            ("device = [1]\n", b"device"),
            ("gpu_price = 1\ngpu-price = 2\n", b"'gpu-price' is given twice"),
        ],
    )
    def test_mistakes_are_refused(self, tmp_path: Path, text: str, says: bytes) -> None:
        (tmp_path / "hostgap.toml").write_text(text)
        done = hostgap("analyze", ITEM, cwd=tmp_path)
        assert done.returncode == 2
        assert b"hostgap.toml" in done.stderr
        assert says in done.stderr
        assert len(done.stderr.splitlines()) <= 2

    @pytest.mark.parametrize(
        "text", ['[tool]\nhostgap = "select=HG1"\n', "[[tool.hostgap]]\nselect = 'HG1'\n"]
    )
    def test_a_table_that_is_none_is_refused(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "pyproject.toml").write_text(text)
        done = hostgap("analyze", ITEM, cwd=tmp_path)
        assert done.returncode == 2
        assert b"pyproject.toml: tool.hostgap is no table" in done.stderr

    def test_dotted_keys(self, tmp_path: Path) -> None:
        (tmp_path / "pyproject.toml").write_text('[tool]\nhostgap.window = "trace"\n')
        assert json_of(ITEM, cwd=tmp_path)["trace"]["window"] == "trace"

    def test_what_is_somebody_elses_need_not_be_valid(self, tmp_path: Path) -> None:
        (tmp_path / "pyproject.toml").write_text('dependencies = ["hostgap"]\nbroken\n')
        assert hostgap("analyze", ITEM, cwd=tmp_path).returncode == 0

    def test_misspelt_variable_is_noted(self, tmp_path: Path) -> None:
        done = hostgap("analyze", GRAPH, HOSTGAP_WINDW="trace")
        assert done.returncode == 0
        assert b"HOSTGAP_WINDW" in done.stderr
        assert b"HOSTGAP_WINDOW" in done.stderr

    def test_help_needs_no_readable_configuration(self, tmp_path: Path) -> None:
        (tmp_path / "hostgap.toml").write_text("broken")
        assert hostgap("--help", cwd=tmp_path).returncode == 0


class TestHostileSurroundings:
    def test_closed_standard_output(self, tmp_path: Path) -> None:
        command = f'"{sys.executable}" -m hostgap analyze "{GRAPH}" -o "{tmp_path}/r.json" >&-'
        done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, check=False)
        assert done.returncode == 0
        assert json.loads((tmp_path / "r.json").read_bytes())["devices"]

    @pytest.mark.parametrize("command", [["analyze", str(GRAPH)], ["samples"], ["doctor"]])
    def test_reader_that_is_gone_already(self, command: list[str]) -> None:
        read_end, write_end = os.pipe()
        os.close(read_end)
        with os.fdopen(write_end, "wb") as pipe:
            done = subprocess.run(
                [sys.executable, "-m", "hostgap", *command],
                cwd=ROOT,
                stdout=pipe,
                stderr=subprocess.PIPE,
                check=False,
            )
        assert (done.returncode, done.stderr) == (0, b"")

    @pytest.mark.parametrize("pattern", ["a{99999999999999}", "(" * 5000, "(?a)(?u)x"])
    def test_patterns_python_cannot_compile(self, pattern: str) -> None:
        done = hostgap("analyze", ITEM, "--step-marker", pattern)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) <= 2

    def test_pattern_that_python_warns_of(self) -> None:
        assert hostgap("analyze", ITEM, "--step-marker", "[[P]rofilerStep").stderr == b""

    def test_errors_show_names_escaped_and_cut(self, tmp_path: Path) -> None:
        name = "\x1b[2Jred\u202e\n" + "x" * 5000
        event = {"ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
        events = [
            {**event, "cat": "user_annotation", "name": name},
            {**event, "cat": "kernel", "name": "k"},
        ]
        trace = tmp_path / "names.json"
        trace.write_text(json.dumps({"traceEvents": events}))
        done = hostgap("analyze", trace, "--step-marker", "zzz")
        assert done.returncode == 2
        assert b"\x1b" not in done.stderr
        assert len(done.stderr.splitlines()) == 2
        assert len(done.stderr) < 1500

    @pytest.mark.skipif(os.name != "posix", reason="file names are text elsewhere")
    def test_file_name_that_is_no_text(self, tmp_path: Path) -> None:
        odd = os.fsencode(tmp_path) + b"/\xff.json.gz"
        Path(os.fsdecode(odd)).write_bytes(GRAPH.read_bytes())
        assert json_of(os.fsdecode(odd))["devices"]

    def test_the_trace_is_no_output(self, tmp_path: Path) -> None:
        trace = tmp_path / "t.json"
        trace.write_bytes(gzip.decompress(GRAPH.read_bytes()))
        before = trace.read_bytes()
        assert hostgap("analyze", trace, "-o", trace, "--force").returncode == 2
        assert trace.read_bytes() == before
        twice = ["-o", tmp_path / "a.json", "-o", tmp_path / "a.json"]
        assert hostgap("analyze", trace, *twice).returncode == 2
        assert not (tmp_path / "a.json").exists()

    @pytest.mark.parametrize("text", ["a=" + "[" * 5000, "device=" + "9" * 5000])
    def test_configuration_that_python_cannot_read(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "hostgap.toml").write_text(text)
        done = hostgap("analyze", ITEM, cwd=tmp_path)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) <= 2
