"""Where a command's words go: results to stdout, errors and progress to stderr, JSON alone on stdout."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphkit.errors import GraphkitError, OutputError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from graphkit.report.table import Grid

Step = Callable[[str], None]


class StreamError(GraphkitError):
    """Standard output cannot be written, for another reason than a reader that went away."""


class Report:
    """The output of one command.

    json: one JSON object on stdout, human text on stderr. verbosity: below 0 errors only, above 0 more.
    command: its name, once it is known. written: files that are in place already, for messages about failures.
    """

    def __init__(self, *, json: bool = False, verbosity: int = 0) -> None:
        self.json = json
        self.verbosity = verbosity
        self.command: str | None = None
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
        with self._printing():
            self.out.print(text, soft_wrap=True)

    def aside(self, text: str) -> None:
        """Print something on stderr, where nobody may listen."""
        with suppress(OSError):
            self.err.print(text, soft_wrap=True)

    def table(self, table: Grid) -> None:
        """Print a table for people, fitted to the terminal; elsewhere lines end where their text does."""
        with self._printing():
            shown = table.fitted(self.out.width)
            if self.out.is_terminal:
                self.out.print(shown, crop=False)
                return
            with self.out.capture() as captured:
                self.out.print(shown, crop=False)
            for line in captured.get().splitlines():
                self.out.print(line.rstrip(), soft_wrap=True)

    def emit(self, data: dict[str, Any]) -> None:
        """Print the JSON object, when it was asked for. Raises StreamError."""
        if self.json:
            with _stdout():
                sys.stdout.write(json_text(data))
                sys.stdout.flush()

    def save(self, data: dict[str, Any], path: Path | None) -> None:
        """Write the JSON object to the file of --report. Raises OutputError."""
        if path is not None:
            from graphkit._write import write_bytes

            try:
                write_bytes(path, json_text(data).encode())
            except OutputError as error:
                error.hint = error.hint and "choose another place with --report"
                raise
            self.written.append(path)

    @contextmanager
    def _printing(self) -> Iterator[None]:
        """People's text goes to stderr with --json, and then nobody needs to read it."""
        with suppress(OSError) if self.json else _stdout():
            yield

    @contextmanager
    def working(self, label: str) -> Iterator[Step]:
        """Show on a terminal what takes longer than a second; the value changes the text. With -vv it is logged.

        What libraries and plugins print meanwhile goes to stderr, so that stdout holds results only.
        """
        with _stdout_to_stderr(), _Log(label) if self.verbosity > 1 else nullcontext(_silent) as log:
            if self.verbosity < 0 or not self.err.is_terminal:
                yield log
                return
            from graphkit.report.spinner import Spinner

            with Spinner(self.err, label) as spinner:

                def step(text: str) -> None:
                    log(text)
                    spinner.update(text)

                yield step


class _Log:
    """The log on stderr: what graphkit's loggers say, each step when it begins, and the seconds it all took."""

    def __init__(self, label: str) -> None:
        import logging

        self.label = label
        self.logger = logging.getLogger("graphkit")
        self.handler = logging.StreamHandler(sys.stderr)
        self.handler.setFormatter(logging.Formatter("%(relativeCreated)7.0f ms  %(message)s"))

    def __enter__(self) -> Step:
        self.before = self.logger.level
        self.logger.setLevel("INFO")
        self.logger.addHandler(self.handler)
        self.logger.info("%s", self.label)
        self.start = time.perf_counter()
        return lambda text: self.logger.info("%s", text)

    def __exit__(self, *error: object) -> None:
        self.logger.info("%s: %.2f s", self.label, time.perf_counter() - self.start)
        self.logger.removeHandler(self.handler)
        self.logger.setLevel(self.before)


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
def _stdout() -> Iterator[None]:
    """Make a StreamError of what keeps stdout from being written; a reader that went away is another matter."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_stdout()
        raise StreamError(f"standard output cannot be written: {error.strerror or error}") from error


def flush_stdout() -> None:
    """Write what is buffered. Raises StreamError, and BrokenPipeError for a reader that went away."""
    with _stdout():
        sys.stdout.flush()


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Send file descriptor 1 and Python's stdout to stderr; libraries in C write to the descriptor."""
    flush_stdout()
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
    """Let what is still buffered go nowhere: nobody can read it any more."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
