"""`make rule CODE=HG113 NAME=slow-thing`: the two files of a new rule, to be filled in."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from hostgap.diagnosis.registry import load_rules
from hostgap.errors import HostgapError

_RULE = '''"""{code} {name}: what is wrong, in one line.

## What it sees
Which ops, calls and copies, in which order.

## Why it costs
What the GPU or the host waits for.

## Example
    x.item()

## Use instead
    x

## Options
None.

## Sources
Where this was seen, with what it cost.
"""

from __future__ import annotations

from collections.abc import Iterator

from hostgap.diagnosis.context import Context
from hostgap.diagnosis.rule import Match, Options, Rule
from hostgap.trace.model import Role


class {kind}(Rule):
    """What is wrong, in one line."""

    code = "{code}"
    name = "{name}"
    title = "What is wrong, as a report says it"
    advice = "What to do, in one line."

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """One match per place."""
        for site, calls in context.by_site(context.calls_of(Role.SYNC, name="NoSuchCall")):
            yield Match(calls=calls, site=site, edit=context.without(calls))
'''

_TEST = '''"""{code}: what is wrong, in one line."""

from __future__ import annotations

from collections.abc import Iterator

from tests.analysis.build import LAUNCH, Event, call, kernel
from tests.rules.check import findings, repeated


def fault(t: int, i: int) -> Iterator[Event]:
    """A step with the fault."""
    yield call(LAUNCH, t, t + 5_000, i)
    yield kernel(t + 6_000, t + 50_000, i)


def test_fires() -> None:
    (found,) = findings("{code}", repeated(fault, 100_000))
    assert found.count_per_step == 1


def test_silent_on_a_step_without_it() -> None:
    def healthy(t: int, i: int) -> Iterator[Event]:
        yield call(LAUNCH, t, t + 5_000, i)
        yield kernel(t + 6_000, t + 90_000, i)

    assert findings("{code}", repeated(healthy, 100_000)) == []
'''


def write_rule(root: Path, code: str, name: str) -> tuple[Path, Path]:
    """Write the files of a new rule.

    Args:
        root: the repository.
        code: HG and three digits.
        name: a few words with dashes.

    Raises:
        HostgapError: code or name are not of that form, or taken.
    """
    if not re.fullmatch(r"HG\d{3}", code):
        raise HostgapError(f"{code!r} is no code", "HG and three digits, such as HG113")
    if not re.fullmatch(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*", name):
        raise HostgapError(f"{name!r} is no name", "lower-case words with dashes: slow-thing")
    if code in load_rules().rules:
        raise HostgapError(f"there is a rule {code} already", "all of them: hostgap rules")
    stem = f"{code.lower()}_{name.replace('-', '_')}"
    rule, test = root / "rules" / f"{stem}.py", root / "tests" / "rules" / f"test_{stem}.py"
    for path in (rule, test):
        if path.exists():
            raise HostgapError(f"{path} exists already")
    kind = "".join(word.capitalize() for word in name.split("-"))
    rule.write_text(_RULE.format(code=code, name=name, kind=kind), encoding="utf-8")
    test.write_text(_TEST.format(code=code), encoding="utf-8")
    return rule, test


def main() -> None:
    """Run from the command line: the code and the name."""
    if len(sys.argv) != 3 or not all(sys.argv[1:]):
        sys.exit("make rule CODE=HG113 NAME=slow-thing")
    try:
        rule, test = write_rule(Path(), *sys.argv[1:])
    except HostgapError as error:
        sys.exit(f"{error.message}\n  {error.hint or ''}".rstrip())
    sys.stdout.write(f"Wrote {rule} and {test}. Fill them in, then: make docs test\n")


if __name__ == "__main__":
    main()
