"""A line on the terminal that says what is going on, when it takes longer than a second."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from graphkit.report.text import clean

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console
    from rich.status import Status

_DELAY = 1.0  # seconds before anything is shown


class Spinner:
    """A rich status that starts late; a context manager."""

    def __init__(self, console: Console, label: str, delay: float = _DELAY) -> None:
        self.console = console
        self.text = label
        self._lock = threading.Lock()
        self._status: Status | None = None
        self._done = False
        self._timer = threading.Timer(delay, self._start)
        self._timer.daemon = True

    def update(self, text: str) -> None:
        """Change the text."""
        with self._lock:
            self.text = text
            if self._status is not None:
                self._status.update(clean(text))

    def _start(self) -> None:
        with self._lock:
            if not self._done:
                self._status = self.console.status(clean(self.text))
                self._status.start()

    def __enter__(self) -> Spinner:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._done = True
            if self._status is not None:
                self._status.stop()
