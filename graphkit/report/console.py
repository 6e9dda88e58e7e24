"""Where a command's words go: results to stdout, errors and progress to stderr, JSON alone on stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Step = Callable[[str], None]


class Report:
    """The output of one command.

    json: one JSON object on stdout, human text on stderr. verbosity: below 0 errors only, above 0 more.
    written: files that are in place already, for the message after Ctrl-C.
    """

    def __init__(self, *, json: bool = False, verbosity: int = 0) -> None:
        self.json = json
        self.verbosity = verbosity
        self.written: list[Path] = []

    @property
    def verbose(self) -> bool:
        """True with -v."""
        return self.verbosity > 0

    @cached_property
    def out(self) -> Console:
        """Where results for people go."""
        from graphkit.report.screen import screen

        return screen(stderr=self.json, quiet=self.verbosity < 0)

    @cached_property
    def err(self) -> Console:
        """Where errors and progress go."""
        from graphkit.report.screen import screen

        return screen(stderr=True)

    def say(self, text: RenderableType = "") -> None:
        """Print a line for people; it is never cut, a terminal wraps it."""
        self.out.print(text, soft_wrap=True)

    def table(self, table: RenderableType) -> None:
        """Print a table for people, fitted to the terminal; elsewhere lines end where their text does."""
        if self.out.is_terminal:
            self.out.print(table)
            return
        with self.out.capture() as captured:
            self.out.print(table)
        for line in captured.get().splitlines():
            self.out.print(line.rstrip(), soft_wrap=True)

    def emit(self, data: dict[str, Any]) -> None:
        """Print the JSON object, when it was asked for."""
        if self.json:
            sys.stdout.write(json_text(data))
            sys.stdout.flush()

    def save(self, data: dict[str, Any], path: Path | None) -> None:
        """Write the JSON object to a file. Raises OutputError."""
        if path is not None:
            from graphkit._write import write_bytes

            write_bytes(path, json_text(data).encode())
            self.written.append(path)

    @contextmanager
    def working(self, label: str) -> Iterator[Step]:
        """Show on a terminal what takes longer than a second; the value changes the text.

        What libraries and plugins print meanwhile goes to stderr, so that stdout holds results only.
        """
        if self.verbosity > 1:
            import logging

            logging.basicConfig(level=logging.DEBUG if self.verbosity > 2 else logging.INFO)
        with _stdout_to_stderr():
            if self.verbosity < 0 or not self.err.is_terminal:
                yield _silent
                return
            from graphkit.report.spinner import Spinner

            with Spinner(self.err, label) as spinner:
                yield spinner.update


def _silent(text: str) -> None:
    return None


def json_text(data: dict[str, Any]) -> str:
    """One JSON object; what JSON has no number for (NaN, infinities) becomes text."""
    import json

    return json.dumps(plain(data), indent=2, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """A value in JSON's types."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    if isinstance(value, float):
        finite = value - value == 0
        return float(value) if finite else str(float(value))
    if isinstance(value, bool | int | str) or value is None:
        return value
    item = getattr(value, "item", None)  # numpy's scalars
    return plain(item()) if callable(item) else str(value)


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Send file descriptor 1 and Python's stdout to stderr; libraries in C write to the descriptor."""
    sys.stdout.flush()
    saved = None
    with suppress(OSError):  # a closed stdout or stderr cannot be moved
        saved = os.dup(1)
        os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if saved is not None:
            os.dup2(saved, 1)
            os.close(saved)


def drop_stdout() -> None:
    """Let what is still buffered go nowhere: the reader of stdout went away."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
