"""One place where every way to end becomes a message and an exit code."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import click

from graphkit.cli._process import Stopped, arm
from graphkit.errors import GraphkitError, UsageError
from graphkit.report import failure
from graphkit.report.console import Report, drop_stdout, flush_stdout

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
_SHARED = ("--json", "-q", "--quiet", "-v", "--verbose", "-vv", "-vvv")


@contextmanager
def guard(report: Report) -> Iterator[None]:
    """Show whatever is raised inside and raise click's Exit with its code: 2, 3, 4 as errors.py has it, 130
    for Ctrl-C (129 and 143 for SIGHUP and SIGTERM), 141 for a reader that went away, 4 for anything unforeseen
    (the traceback goes to a folder).
    """
    arm()
    try:
        try:
            yield
        finally:
            flush_stdout()  # a reader that went away must show here, not while Python shuts down
    except click.exceptions.Exit:
        raise
    except BrokenPipeError:
        drop_stdout()
        raise click.exceptions.Exit(_SIGNALS + _SIGPIPE) from None
    except Stopped as stop:
        failure.show_stop(report, stop.word, stop.code)
        raise click.exceptions.Exit(stop.code) from None
    except (KeyboardInterrupt, click.Abort):
        failure.show_stop(report, "interrupted", _SIGNALS + _SIGINT)
        raise click.exceptions.Exit(_SIGNALS + _SIGINT) from None
    except click.ClickException as error:
        raise click.exceptions.Exit(failure.show(report, usage_error(error))) from None
    except GraphkitError as error:
        raise click.exceptions.Exit(failure.show(report, error)) from None
    except Exception as error:  # noqa: BLE001 - nobody is to see a traceback on the terminal
        raise click.exceptions.Exit(failure.show(report, _unforeseen(error))) from None


def _unforeseen(error: Exception) -> GraphkitError:
    if isinstance(error, MemoryError):
        return GraphkitError(f"out of memory{f': {error}' if str(error) else ''}")
    if isinstance(error, OSError) and error.errno in _ENVIRONMENT:
        return GraphkitError(f"{error.strerror}{f': {error.filename}' if error.filename else ''}")
    return failure.crash(error)


def usage_error(error: click.ClickException) -> UsageError:
    """A complaint of click's in our words: lower case, no full stop, one suggestion, a way to the help."""
    ctx = getattr(error, "ctx", None)
    hint = f"see `{ctx.command_path} --help`" if ctx is not None else None
    if isinstance(error, click.NoSuchOption):
        near = error.possibilities
        message = f"no such option '{error.option_name}'" + (f"; did you mean '{near[0]}'?" if near else "")
        if ctx is not None and ctx.parent is None and error.option_name in _SHARED:
            message = f"'{error.option_name}' is an option of the commands"
            hint = f"put {error.option_name} after the command: graphkit COMMAND {error.option_name}"
    else:
        text = error.format_message().strip()
        message = (text[:1].lower() + text[1:]).rstrip(".")
    return UsageError(message, hint=hint)
