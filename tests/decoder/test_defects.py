"""The registry of the decoder's defects."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hostgap.decoder.defects import DEFECTS, NAIVE, checked, defects_of
from hostgap.errors import ConfigError


def test_every_defect_says_what_it_is() -> None:
    assert len(DEFECTS) == 13
    for name, defect in DEFECTS.items():
        assert defect.name == name
        assert defect.what
        assert defect.remedy
        assert defect.seen_in


def test_a_defect_is_fixed_by_its_removal_unless_a_generic_fix_treats_it() -> None:
    other = {name: defect.fix for name, defect in DEFECTS.items() if defect.fix != name}
    assert other == {"output_blocking": "async-output", "input_blocking": "async-input"}


def test_only_presets_with_gelu_can_have_it_unfused() -> None:
    assert "bias_gelu_unfused" in defects_of("gelu")
    assert set(DEFECTS) - set(defects_of("small")) == {"bias_gelu_unfused"}


def test_naive_stands_for_what_the_preset_can_have() -> None:
    assert checked(NAIVE, "small") == NAIVE - {"bias_gelu_unfused"}
    assert checked(NAIVE, "gelu") == NAIVE
    assert checked(["eos_read"], "small") == {"eos_read"}


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("eos_raed", "no decoder defect 'eos_raed'", "Did you mean 'eos_read'?"),
        ("zzz", "no decoder defect 'zzz'", "Defects: rope_unfused, qkv_split"),
        (
            "bias_gelu_unfused",
            "decoder preset 'small' cannot have the defect 'bias_gelu_unfused'",
            "Presets that can: gelu, tiny-gelu.",
        ),
    ],
)
def test_a_defect_that_cannot_be_is_refused(name: str, message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(["eos_read", name], "small")
    assert caught.value.message == message
    assert (caught.value.hint or "").startswith(hint)


def test_the_registry_does_not_need_torch() -> None:
    code = "import sys, hostgap.decoder.defects; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
