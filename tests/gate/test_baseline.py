"""The baseline file: written whole, read strictly, keyed on what counts are exact for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hostgap.errors import ConfigError
from hostgap.gate.baseline import SCHEMA, read_baseline, updated, write_baseline
from tests.gate.sides import entry, sample


def written(tmp_path: Path) -> Path:
    path = tmp_path / "hostgap.json"
    write_baseline(path, updated(None, entry(sample("eager_item.json.gz"))))
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = written(tmp_path)
    baseline = read_baseline(path)
    assert baseline.schema == SCHEMA
    (one,) = baseline.entries
    assert one.key.gpu == "NVIDIA H200"
    assert one.key.cuda == "13.0"
    assert one.metrics["launches_per_step"] == 1228
    assert one.syncs[0].function == "decode_until_eos"
    assert [each.name for each in tmp_path.iterdir()] == ["hostgap.json"]
    text = path.read_text()
    assert '"line"' not in text
    assert text.endswith("}\n")


def test_entries_are_replaced_by_their_key(tmp_path: Path) -> None:
    baseline = read_baseline(written(tmp_path))
    same = updated(baseline, entry(sample("eager.json.gz")))
    assert len(same.entries) == 1
    assert same.entries[0].metrics["sync_calls_per_step"] == 0
    more = updated(same, entry(sample("eager.json.gz"), gpu="NVIDIA A100"))
    assert [each.key.gpu for each in more.entries] == ["NVIDIA A100", "NVIDIA H200"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "hostgap.baseline/2"}, "hostgap.baseline/2"),
        ({"schema": None}, "this hostgap reads"),
        ({"entries": 3}, "broken baseline"),
        ({"entries": [{}]}, "broken baseline"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = written(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ConfigError, match=said):
        read_baseline(path)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "\x00", "[" * 100_000])
def test_corrupt_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "hostgap.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"hostgap\.json"):
        read_baseline(path)


def test_counts_must_be_counts(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_text(path.read_text().replace("1228.0", "-5"))
    with pytest.raises(ConfigError, match="a count is no count"):
        read_baseline(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such baseline"):
        read_baseline(tmp_path / "hostgap.json")
