"""`hostgap explain CODE`: what a rule sees, why it costs, and what to do instead."""

from __future__ import annotations

from pathlib import Path

import click

from hostgap.cli.options import rules_option


@click.command(short_help="Explain a rule or a code.")
@click.argument("code")
@rules_option
def command(code: str, rules: tuple[Path, ...]) -> None:
    """Explain a rule or a code.

    CODE is that of a finding (HG101), or of a remark on the trace (HG904).
    """
    from hostgap.diagnosis.explain import explain
    from hostgap.diagnosis.registry import load_rules
    from hostgap.output.printable import printable

    registry = load_rules(rules)
    for problem in registry.problems:
        click.echo(f"hostgap: warning: {printable(problem, 500)}", err=True)
    page = explain(registry, code.strip())
    click.echo("\n".join(printable(line, 1_000) for line in page.splitlines()))
