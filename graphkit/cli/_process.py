"""What belongs to the process and not to a command: signals, closed and broken standard streams, the exit code.

Imports nothing that takes time: a Ctrl-C while click is imported must end as quietly as one later.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import click

WORDS = {"SIGINT": "interrupted", "SIGTERM": "terminated", "SIGHUP": "hung up"}
_PATIENCE = 2.0  # seconds that a signal waits for an import to end
_RETRY = 0.01
_SIGNALS = 128  # what a shell adds to the number of the signal that ended a command


class Stopped(KeyboardInterrupt):
    """A signal asked us to end: raised where we are, so that temporary files go and children are stopped."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.word = WORDS[signal.Signals(number).name]
        self.code = _SIGNALS + number


def settle() -> None:
    """Open what stands closed among the standard streams, and end at once, in one line, when a signal comes."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # Otherwise the next file we open gets this number, and whatever is printed goes into it.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            mode = "r" if number == 0 else "w"
            setattr(sys, name, open(number, mode, errors="replace", closefd=False))  # noqa: SIM115
    _on_signals(_leave)


def arm() -> None:
    """From here on a signal raises `Stopped`; nothing changes where `settle` was not called."""
    if signal.getsignal(signal.SIGTERM) is _leave:
        _on_signals(_raise)


def run(cli: click.Command) -> NoReturn:
    """Run the command and end the process."""
    import click

    try:
        code = int(cli.main(prog_name="graphkit", standalone_mode=False) or 0)
    except (KeyboardInterrupt, click.Abort) as error:
        stop = next((e for e in (error, error.__cause__) if isinstance(e, Stopped)), Stopped(signal.SIGINT))
        code = stop.code
        _say(stop.word)
    _on_signals(signal.SIG_IGN)  # what is left takes milliseconds
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            drop(stream.fileno())
            code = code or 2
    sys.exit(code)


def drop(descriptor: int) -> None:
    """Let what is still buffered for a descriptor go nowhere: nobody can read it any more."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def _on_signals(handler: signal.Handlers | object) -> None:
    for name in WORDS:
        number = getattr(signal, name, None)
        # One that is ignored from the start stays so: that is what nohup and background jobs are for.
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)  # type: ignore[arg-type]


def _raise(number: int, frame: FrameType | None) -> None:
    _deliver(number, time.monotonic() + _PATIENCE, frame)


def _deliver(number: int, until: float, frame: FrameType | None) -> None:
    """Raise `Stopped`, but not inside an import: extension modules turn it into other errors, or crash."""
    if hasattr(signal, "setitimer") and _importing(frame) and time.monotonic() < until:
        signal.signal(signal.SIGALRM, lambda _, later: _deliver(number, until, later))
        signal.setitimer(signal.ITIMER_REAL, _RETRY)
        return
    raise Stopped(number)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    stop = Stopped(number)
    _say(f"{stop.word}; nothing was written")
    os._exit(stop.code)


def _say(text: str) -> None:
    try:
        os.write(2, f"{text}\n".encode())
    except OSError:
        return
