"""GitHub annotations: read back as the runner reads them, whatever a name holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hostgap.gate.model import Allow, Canary
from hostgap.gate.repository import Repository
from hostgap.output.github import render_github
from tests.gate.sides import check, culprit, result

ROOT = Path(__file__).parents[2]
_COMMAND = re.compile(r"::(\w+) (.*?)::(.*)")
NASTY = [
    "std::vector<int>::at",
    "100%done%0Aand%25more",
    "two\nlines\r\nand ::error file=x,line=1::fake",
    "a,b,c=d:e",
    "::stop-commands::x",
    "\x1b[31mred\x07",
]


def unescaped(text: str, *, prop: bool) -> str:
    """As the runner does it: %25 last."""
    pairs = [("%0D", "\r"), ("%0A", "\n")]
    pairs += [("%3A", ":"), ("%2C", ",")] if prop else []
    for code, char in [*pairs, ("%25", "%")]:
        text = text.replace(code, char)
    return text


def read(output: str) -> list[tuple[str, dict[str, str], str]]:
    """Commands, their properties and messages; every line must be one."""
    found = []
    for line in output.splitlines():
        match = _COMMAND.fullmatch(line)
        assert match, line
        pairs = [pair.split("=", 1) for pair in match[2].split(",")]
        properties = {key: unescaped(value, prop=True) for key, value in pairs}
        found.append((match[1], properties, unescaped(match[3], prop=False)))
    return found


@pytest.mark.parametrize("name", NASTY)
def test_names_survive(name: str, tmp_path: Path) -> None:
    (tmp_path / "a,b%c").mkdir()
    (tmp_path / "a,b%c" / "m:x.py").touch()
    one = culprit(file="a,b%c/m:x.py", title=name, function=name)
    output = render_github(result(check(culprits=[one])), Repository(tmp_path))
    error, outcome = read(output)
    assert error[0] == "error"
    assert error[1]["file"] == "a,b%c/m:x.py"
    assert error[1]["line"] == "67"
    assert set(error[1]) == {"file", "line", "title"}
    shown = name.encode("unicode_escape").decode() if not name.isprintable() else name
    assert shown in error[2]
    assert outcome[0] == "notice"


def test_ten_and_how_many_more() -> None:
    many = [culprit(file=None, line=None, fingerprint=str(i)) for i in range(37)]
    found = read(render_github(result(check(culprits=many)), Repository(ROOT)))
    assert [kind for kind, _, _ in found] == ["error"] * 10 + ["notice"] * 2
    assert found[10][2] == "and 27 more: see the step summary"


def test_no_line_where_there_is_none() -> None:
    lost = culprit(file="/elsewhere/lib.py", line=3)
    (error, _) = read(render_github(result(check(culprits=[lost])), Repository(ROOT)))
    assert "file" not in error[1]
    assert "line" not in error[1]


def test_warnings_stale_entries_and_the_canary() -> None:
    stale = Allow(owner="me", reason="why", function="gone")
    one = result(
        check(status="warning", level="warning"),
        check(metric="step_time", status="inconclusive", text="undecided"),
        stale=[stale],
        canary=Canary(caught=False, by=[]),
    )
    found = read(render_github(one, Repository(ROOT)))
    assert [kind for kind, _, _ in found] == ["warning", "warning", "warning", "error", "notice"]
    assert "gone (owner me: why)" in found[2][2]


def test_a_budget_and_a_baseline_share_their_places() -> None:
    one = culprit()
    both = result(check(culprits=[one]), check(against="baseline", culprits=[one]))
    found = read(render_github(both, Repository(ROOT)))
    assert [kind for kind, _, _ in found] == ["error", "notice"]
