"""`hostgap explain CODE`: what a rule sees, why it costs, and what to do instead."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hostgap.cli.options import rules_option


@click.command(short_help="Explain a rule or a code.")
@click.argument("code")
@rules_option
def command(code: str, rules: tuple[Path, ...]) -> None:
    """Explain a rule or a code.

    CODE is that of a finding (HG101), of a remark on the trace (HG904), or a cause of idle time
    (launch_call).
    """
    from hostgap.diagnosis.explain import explain, wrapped
    from hostgap.diagnosis.registry import load_rules
    from hostgap.output.printable import printable
    from hostgap.output.terminal import width_of

    registry = load_rules(rules)
    for problem in registry.problems:
        click.echo(f"hostgap: warning: {printable(problem, 500)}", err=True)
    page = wrapped(explain(registry, code.strip()), width_of(sys.stdout))
    click.echo("\n".join(printable(line, 1_000) for line in page.splitlines()))
