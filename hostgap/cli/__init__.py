"""The command line: one file per command, imported only when that command runs.

`hostgap --help` must be instant, so the list of commands and their one-line help stand here and the
command modules (and through them numpy, rich, the readers) are imported by name on use.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

from hostgap import __version__
from hostgap.cli.stderr import unhindered
from hostgap.errors import HostgapError, Stopped

# name -> one-line help. The command lives in hostgap/cli/<name>.py as `command`;
# a test holds these lines against the commands' own help.
COMMANDS: dict[str, str] = {
    "analyze": "Say where a trace's idle GPU time went.",
    "attach": "Trace a running vLLM or SGLang server and diagnose it.",
    "compare": "Put two traces, results or sets of runs side by side.",
    "explain": "Explain a rule or a code.",
    "doctor": "Check what this machine has for profiling.",
    "fix": "Apply fixes, and keep those that help and change nothing.",
    "gate": "Fail when budgets or a baseline are exceeded.",
    "profile": "Measure a step and say where its GPU waits.",
    "redact": "Remove names, paths and environment from a trace.",
    "report": "Make one HTML file of what was found.",
    "rules": "List the rules.",
    "samples": "List or copy the bundled H200 traces.",
    "tables": "Write a trace's tables as Parquet files.",
}

CONFIGURED = {"analyze", "gate"}  # commands whose options a configuration file may set

VARIABLES = {
    "HOSTGAP_API_KEY",
    "HOSTGAP_DEBUG",
    "HOSTGAP_DEVICE",
    "HOSTGAP_FAIL_ON",
    "HOSTGAP_FORMAT",
    "HOSTGAP_GPU_PRICE",
    "HOSTGAP_IGNORE",
    "HOSTGAP_MIN_SAVING",
    "HOSTGAP_RULES",
    "HOSTGAP_SELECT",
    "HOSTGAP_SOURCE_ROOT",
    "HOSTGAP_STEPS",
    "HOSTGAP_STEP_MARKER",
    "HOSTGAP_TOKENS_PER_STEP",
    "HOSTGAP_UNPROFILED_STEP_MS",
    "HOSTGAP_WINDOW",
}

LONGEST_MESSAGE = 500  # characters of a line on stderr

EXIT_USAGE = 2
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130


class LazyGroup(click.Group):
    """A click group whose commands are imported when they run, not when help is printed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"hostgap.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            import difflib

            near = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else " See 'hostgap --help'."
            raise click.UsageError(f"No such command '{name}'.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hostgap")
@click.option("--debug", is_flag=True, help="Show the traceback of an error (works anywhere).")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Find the time a GPU waits for its CPU, and say why.

    Start with: hostgap analyze TRACE
    """
    _note_misspelt_variables()
    if ctx.invoked_subcommand in CONFIGURED:
        from hostgap.config import load_config

        # below the command line and HOSTGAP_* variables, which click looks at first
        config = load_config(Path.cwd())
        ctx.default_map = {ctx.invoked_subcommand: config.options()}
        ctx.obj = config


def _note_misspelt_variables() -> None:
    """A misspelt `HOSTGAP_*` variable would silently do nothing."""
    for name in os.environ:
        if name.startswith("HOSTGAP_") and name not in VARIABLES:
            known = ", ".join(sorted(VARIABLES))
            click.echo(f"hostgap: note: {name} is not a setting; known: {known}", err=True)


def main() -> None:
    """Entry point of the `hostgap` command; turns every error into its exit code."""
    for name in ("SIGTERM", "SIGHUP"):  # so that temporary files are removed on the way out
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _stop)
    if sys.stdout is None:  # `hostgap ... >&-`
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
    sys.stderr = unhindered(sys.stderr)
    # a trace's events live on: looking for garbage takes 3 % of the time and finds none
    gc.set_threshold(100_000)
    args = sys.argv[1:]
    # people add it at the end of the command that failed, so it is taken anywhere
    debug = "--debug" in args or os.environ.get("HOSTGAP_DEBUG", "0") not in ("", "0")
    sys.exit(run([arg for arg in args if arg != "--debug"], debug=debug))


def _stop(number: int, _frame: object) -> None:
    _leave()
    raise Stopped(128 + number)


def _leave() -> None:
    """What was under way on fsspec's event loop is left there: asyncio need not complain of it."""
    import logging

    logging.getLogger("asyncio").setLevel(logging.CRITICAL)


def run(args: list[str], *, debug: bool = False) -> int:
    """Run one command line and return its exit code (see docs/exit-codes.md).

    Args:
        args: the arguments without the program's name.
        debug: let exceptions escape, with their traceback.
    """
    try:
        if "_HOSTGAP_COMPLETE" in os.environ:
            cli.main(args=args, prog_name="hostgap")
        # not cli.main: it makes exit code 1 of a reader that has gone
        with cli.make_context("hostgap", list(args)) as context:
            result: Any = cli.invoke(context)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        if debug and not isinstance(error, click.UsageError):
            raise
        if isinstance(error, click.exceptions.NoArgsIsHelpError):
            error.show()
        else:
            used = getattr(error, "ctx", None)
            hint = f"see: {used.command_path} --help" if used is not None else None
            _complain(error.format_message(), hint)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        _leave()
        click.echo("hostgap: interrupted", err=True)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # `hostgap ... | head`: keep the interpreter from complaining at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if debug:
            raise
        _complain(f"{error.filename or 'standard output'}: {error.strerror or error}")
        return EXIT_USAGE
    except HostgapError as error:
        if debug:
            raise
        _complain(error.message, error.hint)
        return error.exit_code
    except Exception as error:
        if debug:
            raise
        _complain(
            f"internal error: {type(error).__name__}: {error}",
            "Please report it with the output of the same command and --debug.",
        )
        return EXIT_INTERNAL


def _complain(message: str, hint: str | None = None) -> None:
    """One or two lines on stderr. They may hold names from a trace: shown escaped, and cut."""
    from hostgap.output.printable import printable

    internal = message.startswith("internal error: ")
    head = "hostgap: " if internal else "hostgap: error: "
    click.echo(head + printable(message, LONGEST_MESSAGE), err=True)
    if hint:
        click.echo("  " + printable(hint, LONGEST_MESSAGE), err=True)
