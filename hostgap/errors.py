"""The errors hostgap raises on purpose.

The library raises them and knows nothing of the command line; `hostgap.cli.main` catches them once,
prints `message` and `hint` (a line each) and exits with `exit_code`.
"""

from __future__ import annotations


class HostgapError(Exception):
    """Something the user can act on: what went wrong, where, and what to do.

    Args:
        message: one line, what and where.
        hint: one line, what to do about it; may be missing.
    """

    exit_code = 2

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class TraceError(HostgapError):
    """A file that cannot be read as a trace, or that is not one."""


class ConfigError(HostgapError):
    """A configuration file or option value that cannot be used."""


class Stopped(SystemExit):
    """A signal asked the program to end; not a `sys.exit` in somebody's code."""


class TargetError(HostgapError):
    """A target that cannot be imported or built, or that raises while it runs."""


class TargetExited(TargetError):
    """A script that ended itself with an error; what it wrote to stderr may say why."""


class FixFailed(HostgapError):
    """A fix that cannot be applied to this step; the step is as it was."""
