"""One place where every way to end becomes a message and an exit code."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from graphkit.errors import GraphkitError, UsageError
from graphkit.report import failure
from graphkit.report.console import Report, drop_stdout

_ENVIRONMENT = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EMFILE,
    errno.ENOMEM,
)
_SIGNALS = 128
_SIGINT, _SIGPIPE = 2, 13


@contextmanager
def guard(report: Report) -> Iterator[None]:
    """Show whatever is raised inside and raise click's Exit with its code: 2, 3, 4 as errors.py has it, 130
    for Ctrl-C, 141 for a reader that went away, 4 for anything unforeseen (the traceback goes to a folder).
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # a reader that went away must show here, not while Python shuts down
    except click.exceptions.Exit:
        raise
    except BrokenPipeError:
        drop_stdout()
        raise click.exceptions.Exit(_SIGNALS + _SIGPIPE) from None
    except (KeyboardInterrupt, click.Abort):
        code = _SIGNALS + _SIGINT
        failure.show_interrupt(report, code)
        raise click.exceptions.Exit(code) from None
    except click.ClickException as error:
        raise click.exceptions.Exit(failure.show(report, usage_error(error))) from None
    except GraphkitError as error:
        raise click.exceptions.Exit(failure.show(report, error)) from None
    except Exception as error:  # noqa: BLE001 - nobody is to see a traceback on the terminal
        raise click.exceptions.Exit(failure.show(report, _unforeseen(error))) from None


def _unforeseen(error: Exception) -> GraphkitError:
    if isinstance(error, OSError) and error.errno in _ENVIRONMENT:
        return GraphkitError(f"{error.strerror}{f': {error.filename}' if error.filename else ''}")
    return failure.crash(error)


def usage_error(error: click.ClickException) -> UsageError:
    """A complaint of click's in our words: lower case, no full stop, one suggestion, a way to the help."""
    if isinstance(error, click.NoSuchOption):
        near = error.possibilities
        message = f"no such option '{error.option_name}'" + (f"; did you mean '{near[0]}'?" if near else "")
    else:
        text = error.format_message().strip()
        message = (text[:1].lower() + text[1:]).rstrip(".")
    ctx = getattr(error, "ctx", None)
    return UsageError(message, hint=f"see `{ctx.command_path} --help`" if ctx is not None else None)
