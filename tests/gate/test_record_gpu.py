"""The plugin's recorder on a real GPU: an `.item()` is seen, with its function."""

from __future__ import annotations

from pathlib import Path

import pytest

from hostgap.gate.record import TorchRecorder
from hostgap.gate.subject import load_subject
from tests.gate.sides import check_of, judged

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("reads", [False, True])
def test_a_step_with_and_without_an_item(tmp_path: Path, reads: bool) -> None:
    weights = torch.randn(512, 512, device="cuda")

    def step() -> None:
        product = weights @ weights
        if reads:
            product[0, 0].item()

    path = TorchRecorder().record(step, tmp_path / "t.json.gz", steps=5, warmup=3, stacks=True)
    result = judged(load_subject(path), sync_calls_per_step={"max": 0})
    check = check_of(result, "sync_calls_per_step")
    assert result.steps == 5
    assert check.status == ("failed" if reads else "passed")
    if reads:
        assert check.value == 1
        assert check.culprits[0].function == "step"
