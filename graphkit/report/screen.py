"""The rich console behind a report; its own module, so that rich is imported when something is printed."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from rich.console import Console

_UNBOUNDED = 1000  # columns of a stdout that is no terminal: nothing is cut, tables are as wide as their text


class Screen(Console):
    """A console that leaves a broken pipe to its caller (rich would end the process)."""

    def on_broken_pipe(self) -> None:
        """Raise what happened."""
        raise BrokenPipeError


def screen(*, stderr: bool, quiet: bool = False) -> Screen:
    """A console on stdout or stderr; names from models are never taken for markup."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS", "").isdigit() else _UNBOUNDED
    with suppress(AttributeError):  # a replaced stream may not know how
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    return Screen(stderr=stderr, quiet=quiet, width=width, markup=False, highlight=False, emoji=False)
