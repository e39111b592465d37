"""The labelled suite: its labels, its recorder as far as a CPU goes, and its scorer."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hostgap.diagnosis.registry import load_rules

ROOT = Path(__file__).parents[1]
SUITE = ROOT / "benchmarks" / "suite"
SAMPLES = ROOT / "sample_traces"
PROBE_TRUTH = ROOT.parent / "shared" / "cases" / "sync_probe_h200_torch2.11.jsonl"


@pytest.fixture(scope="module")
def suite() -> Any:
    """Imports a module of the suite: they import each other as the scripts do."""
    sys.path.insert(0, str(SUITE))
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(str(SUITE))
        for path in SUITE.glob("*.py"):
            sys.modules.pop(path.stem, None)


# --- labels ----------------------------------------------------------------------------------


def test_there_are_enough_faults_and_controls(suite: Any) -> None:
    labels = [found.label for found in suite("variants").VARIANTS.values()]
    assert sum(label.code is not None for label in labels) >= 30
    assert sum(label.code is None for label in labels) >= 7
    families = {label.code[2] for label in labels if label.code}
    assert families == set("123456")


def test_every_label_is_whole(suite: Any) -> None:
    variants, formats = suite("variants"), set(suite("labelled").FORMATS)
    functions = {}
    for family in variants.FAMILIES:
        path = Path(family.__file__)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        functions[path.name] = [node.name for node in nodes]
    for name, found in variants.VARIANTS.items():
        label = found.label
        assert label.what.endswith("."), name
        assert label.formats, name
        assert set(label.missing) <= formats, name
        assert all(label.missing.values()), name
        for key, why in label.also.items():
            assert re.fullmatch(r"(?:(?:kineto_stack|kineto|nsys):)?HG\d{3}", key), name
            assert why, f"{name}: {key} has no reason"
            assert key != label.code, name
        if label.code is None:
            assert (label.site, label.per_step, label.also, label.missing) == (None, None, {}, {})
        else:
            # a name that two functions shared would say nothing
            assert functions[label.file].count(label.site) == 1, name


def test_codes_are_rules_and_every_rule_has_a_variant_or_a_reason(suite: Any) -> None:
    variants = suite("variants")
    rules = set(load_rules().rules)
    expected = {found.label.code for found in variants.VARIANTS.values()} - {None}
    allowed = {
        key.rpartition(":")[2] for found in variants.VARIANTS.values() for key in found.label.also
    }
    assert expected - rules == set()
    assert allowed - rules == set()
    unlabelled = set(suite("labelled").UNLABELLED)
    assert rules - expected - unlabelled == set()
    assert expected & unlabelled == set()


def test_labels_can_be_written_as_json(suite: Any) -> None:
    labels = json.loads(json.dumps(suite("variants").labels()))
    assert labels["scalar_read"]["site"] == "read_eos"
    assert labels["scalar_read"]["file"] == "hg1_waits.py"
    assert labels["mask_select"]["formats"] == ["kineto_stack", "kineto"]
    assert labels["control_graph_replay"]["code"] is None


# --- the sync probe --------------------------------------------------------------------------


def test_the_rows_of_the_probe_name_rules_that_there_are(suite: Any) -> None:
    rows = suite("probe").ROWS
    assert len(rows) == 71
    codes = {row.code for row in rows.values()} - {None}
    assert codes - set(load_rules().rules) == set()
    for name, row in rows.items():
        # small copies from pageable memory are staged: HG109 sees them, and they do not block
        assert row.blocks == (row.code not in (None, "HG109")), name


@pytest.mark.skipif(not PROBE_TRUTH.exists(), reason="the measured probe is not here")
def test_the_probe_says_what_was_measured(suite: Any) -> None:
    lines = PROBE_TRUTH.read_text(encoding="utf-8").splitlines()
    measured = {row["row"]: row["blocks"] for row in map(json.loads, lines) if "row" in row}
    assert {name: row.blocks for name, row in suite("probe").ROWS.items()} == measured


# --- recording -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bench(suite: Any) -> Any:
    pytest.importorskip("torch")
    return lambda: suite("labelled").Bench("cpu")


@pytest.mark.parametrize(
    "name",
    [
        "scalar_read",
        "nonzero",
        "fragmented_graphs",
        "half_captured",
        "host_metadata",
        "grammar_mask",
    ],
)
def test_steps_run_on_a_cpu(suite: Any, bench: Any, name: str) -> None:
    made = bench()
    step = suite("variants").VARIANTS[name].make(made)
    for _ in range(2):
        step()
    assert int(made.decoder.positions[0, 0]) >= 17  # it did decode
    made.close()


def test_the_mask_of_a_grammar_is_filled(suite: Any) -> None:
    mask = memoryview(bytearray(4))
    allowed = bytes(token % 7 == 0 for token in range(16))
    suite("hg5_host").fill_token_bitmask(mask, allowed)
    assert mask.tolist() == [0b10000001, 0b01000000] * 2


def test_the_busy_thread_rests_between_steps(suite: Any) -> None:
    """Or the profiler would have to stop against it."""
    tokenizer = suite("hg5_host").Tokenizer()
    tokenizer.start()
    tokenizer.end()
    assert not tokenizer._thread.is_alive()


def test_what_starts_threads_and_processes_ends_them(suite: Any, bench: Any) -> None:
    for name in ("queue_wait", "remote_wait"):
        made = bench()
        step = suite("variants").VARIANTS[name].make(made)
        step()
        made.close()


def test_the_rows_of_the_probe_run_on_a_cpu(suite: Any) -> None:
    pytest.importorskip("torch")
    probe = suite("probe")
    shared = probe.fixtures("cpu")
    cuda_only = {"dev_sync", "stream_sync", "event_sync", "event_query", "mem_get_info"}
    cuda_only |= {"pin_memory_new", "empty_cache"}
    for name, row in probe.ROWS.items():
        if name not in cuda_only:
            row.run(shared)


def test_without_a_gpu_the_recorder_says_so(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    command = [sys.executable, str(SUITE / "record.py"), "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1
    assert done.stderr.strip() == "Error: no CUDA GPU: the suite can only be recorded on one"
    assert not (tmp_path / "out").exists()


def test_nsys_records_a_variant_of_each_rule_first(suite: Any) -> None:
    variants, recording = suite("variants"), suite("recording")
    order = recording.nsys_order(["probe", *variants.VARIANTS])
    assert len(set(order)) == len(order)
    labels = {name: found.label for name, found in variants.VARIANTS.items()}
    seen = [name for name, label in labels.items() if not label.code or "nsys" in label.formats]
    assert set(order) == {"probe", *seen}
    codes = {labels[name].code for name in seen} - {None}
    first = [labels[name].code for name in order[: len(codes)]]
    assert set(first) == codes
    assert order[len(codes)].startswith("control_")
    assert recording.nsys_order(["sleep", "scalar_read"]) == ["scalar_read"]


def test_a_command_that_takes_too_long_is_stopped(suite: Any, tmp_path: Path) -> None:
    made = suite("recording").Suite(tmp_path, None, None, None, 1.0, time.monotonic() + 60)
    # the grandchild keeps standard output open for longer than the test may take
    script = "import subprocess; subprocess.run(['sleep', '60'], start_new_session=True)"
    started = time.monotonic()
    said = made.call([sys.executable, "-c", f"print('so far', flush=True); {script}"], 1.0)
    assert said == "so far\n\nstopped after 1 s"
    assert time.monotonic() - started < 10
    assert made.call([sys.executable, "-c", "raise SystemExit(3)"], 20.0) == "\nexit code 3"
    assert made.call([sys.executable, "-c", "print('fine')"], 20.0) == ""


# --- scoring ---------------------------------------------------------------------------------


def label(code: str | None, site: str | None = None, **more: Any) -> dict[str, Any]:
    """A label as labels.json has it."""
    plain: dict[str, Any] = {
        "what": "",
        "code": code,
        "file": "record.py" if site else None,
        "site": site,
        "per_step": None,
        "slack": 0,
        "formats": ["kineto_stack", "kineto", "nsys"],
        "also": {},
        "missing": {},
    }
    return {**plain, **more}


def test_scores_a_fault_that_is_found(suite: Any) -> None:
    score = suite("score").score_trace
    trace = SAMPLES / "eager_item.json.gz"
    truth = label("HG101", "decode_until_eos", per_step=1)
    result = score(trace, "eager_item", "kineto_stack", truth)
    assert (result.status, result.severity, result.site, result.count) == (
        "found",
        "info",
        True,
        True,
    )
    # an eager step has other faults, which this label does not allow
    assert "HG201" in {one.code for one in result.alarms}

    allowing = label("HG101", "decode_until_eos", per_step=1, also={"HG201": "it is eager"})
    result = score(trace, "eager_item", "kineto_stack", allowing)
    assert "HG201" in {one.code for one in result.companions}
    assert "HG201" not in {one.code for one in result.alarms}


def test_scores_what_is_wrong(suite: Any) -> None:
    score = suite("score").score_trace
    trace = SAMPLES / "eager_item.json.gz"
    elsewhere = score(trace, "x", "kineto_stack", label("HG101", "somewhere", per_step=2))
    assert (elsewhere.status, elsewhere.site, elsewhere.count) == ("found", False, False)
    assert elsewhere.where == "record.py: decode_until_eos"
    missed = score(trace, "x", "kineto_stack", label("HG106"))
    assert missed.status == "missed"
    # of the whole window one may lack, or be too many: a share of one a step
    within = label("HG101", "decode_until_eos", per_step=1.1, slack=1)
    assert score(trace, "x", "kineto_stack", within).count
    assert not score(trace, "x", "kineto_stack", {**within, "slack": 0}).count
    assert not score(trace, "x", "kineto_stack", {**within, "per_step": 2}).count
    blind = score(trace, "x", "kineto_stack", label("HG106", formats=["nsys"]))
    assert blind.status == "no evidence"
    bonus = score(trace, "x", "kineto_stack", label("HG101", formats=["nsys"]))
    assert bonus.status == "bonus"


def test_scores_controls(suite: Any) -> None:
    score = suite("score").score_trace
    quiet = score(SAMPLES / "gpu_bound.json.gz", "x", "kineto_stack", label(None))
    assert (quiet.status, quiet.alarms) == ("control", [])
    loud = score(SAMPLES / "eager.json.gz", "x", "kineto_stack", label(None))
    assert "HG201" in {one.code for one in loud.alarms}


def test_companions_may_be_of_one_format(suite: Any) -> None:
    allowed = suite("score").allowed_codes
    truth = label("HG103", also={"HG112": "a", "nsys:HG101": "b"})
    assert allowed(truth, "kineto") == {"HG112"}
    assert allowed(truth, "nsys") == {"HG112", "HG101"}


def test_the_report_of_a_folder(suite: Any, tmp_path: Path) -> None:
    score = suite("score")
    shutil.copy(SAMPLES / "eager_item.json.gz", tmp_path / "scalar_read.kineto_stack.json.gz")
    shutil.copy(SAMPLES / "eager_item.sqlite", tmp_path / "scalar_read.nsys.sqlite")
    shutil.copy(SAMPLES / "gpu_bound.json.gz", tmp_path / "control.kineto_stack.json.gz")
    (tmp_path / "broken.kineto.json.gz").write_bytes(b"nothing")
    labels = {
        "scalar_read": label("HG101", "decode_until_eos", per_step=1),
        "control": label(None),
        "broken": label("HG106"),
        "not_recorded": label("HG106"),
    }
    (tmp_path / "labels.json").write_text(json.dumps(labels), encoding="utf-8")
    # step 1 of the sample reads a scalar; step 99 is not there
    rows = [
        {"step": 1, "row": "item", "code": "HG101", "blocks": True},
        {"step": 99, "row": "full_dev", "code": None, "blocks": False},
        {"step": 2, "row": "wrong", "code": None, "blocks": False},
    ]
    (tmp_path / "probe.json").write_text(json.dumps(rows), encoding="utf-8")
    shutil.copy(SAMPLES / "eager_item.json.gz", tmp_path / "probe.kineto_stack.json.gz")

    scores, probe = score.score_folder(tmp_path)
    assert [(one.variant, one.format, one.status) for one in scores] == [
        ("scalar_read", "kineto_stack", "found"),
        ("scalar_read", "nsys", "found"),
        ("control", "kineto_stack", "control"),
        ("broken", "kineto", "unreadable"),
    ]
    assert [(row.row, row.found, row.right) for row in probe] == [
        ("item", ["HG101"], True),
        ("full_dev", [], True),
        ("wrong", ["HG101"], False),
    ]
    labels["unseen"] = label("HG106", formats=["kineto"], missing={"nsys": "it is so"})
    text = score.report(scores, probe, load_rules(), labels)
    # a trace that cannot be read is a fault that is not found
    assert "| faults found | 1 of 1 (100%) | 0 of 1 (0%) | 1 of 1 (100%) |" in text
    assert "| HG101 scalar-read | scalar_read | 1/1 (1 info) | - | 1/1" in text
    assert "| HG106 device-synchronize | broken | - | 0/1 | - |" in text
    assert "| broken | unreadable | HG106: " in text
    assert "| probe: wrong | probe | HG101 instead of nothing | kineto_stack |" in text
    hidden = "| HG106 device-synchronize | unseen | nsys | it is so | torch.profiler |"
    assert hidden in text
    assert "2 of 3 (67%) rows right; 1 of 1 calls that block found, 1 of 2" in text
    assert "| item | yes | HG101 | HG101 | yes |" in text
    assert "| wrong | no | nothing | HG101 | NO: kineto_stack |" in text


@pytest.mark.skipif("not __import__('importlib.util').util.find_spec('torch')")
def test_recorded_traces_can_be_scored(suite: Any) -> None:
    """The whole way, where there is a GPU."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(SUITE / "record.py"), "-o", folder, "--only", "scalar_read"]
        subprocess.run(command, check=True, cwd=ROOT)
        scores, _ = suite("score").score_folder(Path(folder))
    assert [(one.format, one.status) for one in scores] == [
        ("kineto_stack", "found"),
        ("kineto", "found"),
    ]
