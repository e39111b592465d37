"""Options that several commands have: what is no value of theirs."""

from __future__ import annotations

import pytest

from hostgap.cli import run


@pytest.mark.parametrize(
    "command",
    [
        "profile --timeout nan",
        "profile --temperature nan",
        "fix --tolerance nan",
        "fix --time-limit nan",
        "attach http://127.0.0.1:9 --timeout nan",
    ],
)
def test_nan_is_no_number(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command.split()) == 2
    captured = capsys.readouterr()
    assert "nan is no number" in captured.err
    assert captured.out == ""
