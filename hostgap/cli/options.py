"""Types of options, and the ones that several commands have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class StepRange(click.ParamType[tuple[int | None, int | None]]):
    """`3:10`, `3:`, `:10`, `-5:` or a single `3`: a half-open range of step indices."""

    name = "range"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, int | None]:
        """Parse the text; a usage error when it is no range."""
        if isinstance(value, tuple):
            return value
        first, colon, last = str(value).partition(":")
        try:
            start = int(first) if first else None
            if not colon:
                if start is None:
                    raise ValueError
                return start, (start + 1) or None
            return start, int(last) if last else None
        except ValueError:
            self.fail(f"{value!r} is not a range of steps such as 3:10, 3: or -5:", param, ctx)


class Codes(click.ParamType[list[str]]):
    """`HG1,HG201`: codes of rules, or their beginnings."""

    name = "codes"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[str]:
        """Split the text at its commas."""
        parts = value.split(",") if isinstance(value, str) else [str(part) for part in value]
        codes = [part.strip() for part in parts if part.strip()]
        if not codes:
            self.fail("no code given", param, ctx)
        return codes


class Batches(click.ParamType[tuple[int, ...]]):
    """`1,8,64`: batch sizes, each once."""

    name = "batches"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Parse the text; a usage error when it is no list of positive integers."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isascii() and part.isdigit() and 0 < int(part) < 10**6 for part in parts):
            self.fail(f"{value!r} is not a list of batch sizes such as 1,8,64", param, ctx)
        return tuple(dict.fromkeys(int(part) for part in parts))


class PathGiven(click.Path):
    """A path; an empty text, as of a variable that is not set, is none: not the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As click.Path, but refuse what is empty."""
        if not str(value).strip():
            self.fail("an empty text is no path", param, ctx)
        return super().convert(value, param, ctx)


class Amount(click.ParamType[float]):
    """A number above 0, such as 3.5."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse the text; a usage error when it is no such number."""
        try:
            amount = float(value)
        except ValueError:
            amount = -1.0
        if not 1e-6 <= amount <= 1e9:  # nan fails too
            self.fail(f"{value!r} is not a number between 0.000001 and 1000000000", param, ctx)
        return amount


class NumberRange(click.FloatRange):
    """As click.FloatRange, which takes nan for a number in any range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the text; a usage error when it is no number in the range."""
        number = super().convert(value, param, ctx)
        if number != number:
            self.fail("nan is no number", param, ctx)
        return number


class Percentage(click.ParamType[float]):
    """`1%` or `0.01`."""

    name = "share"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse the text; a usage error when it is no share between 0 and 1."""
        text = str(value).strip()
        try:
            share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            self.fail(f"{value!r} is not a share such as 1% or 0.01", param, ctx)
        return share


steps_option = click.option(
    "--steps",
    type=StepRange(),
    metavar="A:B",
    envvar="HOSTGAP_STEPS",
    help="Only these steps, counted from 0; by default all but the first.",
)
step_marker_option = click.option(
    "--step-marker",
    metavar="REGEX",
    envvar="HOSTGAP_STEP_MARKER",
    help="Annotations or ops that begin a step.",
)
device_option = click.option(
    "--device", metavar="ID", envvar="HOSTGAP_DEVICE", help="Only this GPU."
)
source_root_option = click.option(
    "--source-root",
    "source_roots",
    type=PathGiven(path_type=Path, exists=True, file_okay=False),
    multiple=True,
    metavar="DIR",
    envvar="HOSTGAP_SOURCE_ROOT",
    help="Where your source lies, for the exact lines of calls. Repeatable.",
)
step_class_option = click.option(
    "--step-class", metavar="REGEX", help="These steps; the main class otherwise."
)
mismatch_option = click.option(
    "--allow-mismatch", is_flag=True, help="Compare across GPUs and versions all the same."
)
force_option = click.option("--force", is_flag=True, help="Overwrite existing output files.")
preset_option = click.option(
    "--preset", default="small", show_default=True, help="Of the built-in decoder."
)
block_option = click.option(
    "--steps", type=click.IntRange(min=2), default=30, show_default=True, help="In a timed block."
)


def output_option(*extensions: str) -> Decorator:
    """`-o FILE`, as often as one likes; `outputs` in the command."""
    return click.option(
        "-o",
        "--output",
        "outputs",
        type=PathGiven(path_type=Path),
        multiple=True,
        help="Write to a file; the format follows its extension "
        f"({', '.join(extensions)}). Repeatable.",
    )


def format_option(formats: Sequence[str]) -> Decorator:
    """What goes to stdout; `kind` in the command."""
    return click.option(
        "--format",
        "kind",
        type=click.Choice(formats),
        help="What to print on stdout; text unless -o is given.",
    )


rules_option = click.option(
    "--rules",
    "rules",
    type=PathGiven(path_type=Path),
    multiple=True,
    metavar="DIR",
    envvar="HOSTGAP_RULES",
    help="A folder of rules of your own. Repeatable.",
)
