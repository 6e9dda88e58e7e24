"""A check that is a command of the user's: 0 good, 1 bad, 125 cannot be told, as for `git bisect run`."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from graphkit._scratch import scratch
from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.verification.bisect._effort import Effort
from graphkit.verification.bisect.search import Answer, Exhausted

PLACE = "{}"  # stands for the model's path in the command
VARIABLE = "GRAPHKIT_MODEL"  # holds that path, for shells: sh -c 'test "$(my-tool "$GRAPHKIT_MODEL")" = 7'
SKIP, NOT_EXECUTABLE, MISSING = 125, 126, 127
_LOG_LINES, _LOG_BYTES = 5, 4096  # of the command's output, for messages


@dataclass(frozen=True)
class Command:
    """A command that is asked about model files.

    words: program and arguments, no shell. Each `{}` in them is replaced by the path of an .onnx file; without one
    the path comes last. It runs in the caller's working directory; the path is in $GRAPHKIT_MODEL too. timeout:
    seconds for each run. effort: when it ends, it ends a run, too, which then raises Exhausted.
    """

    words: tuple[str, ...]
    timeout: float = 600.0
    effort: Effort | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.words:
            raise UsageError("the check command is empty", hint="for example --check 'python check.py {}'")
        if not self.timeout > 0:
            raise UsageError(f"the check's time limit is positive, not {self.timeout}")

    @classmethod
    def parse(cls, text: str, *, timeout: float = 600.0, effort: Effort | None = None) -> Command:
        """A command from one line, quoted as for a shell. Raises UsageError for open quotes and for none."""
        try:
            return cls(tuple(shlex.split(text)), timeout, effort)
        except ValueError as error:
            raise UsageError(f"cannot read the check command: {error}: {text}") from error

    def __str__(self) -> str:
        return shlex.join(self.words)

    def argv(self, path: Path) -> list[str]:
        """The command line for one file."""
        if any(PLACE in word for word in self.words):
            return [word.replace(PLACE, str(path)) for word in self.words]
        return [*self.words, str(path)]

    def __call__(self, model: Model) -> Answer:
        """Ask about a model: False for exit code 0, True for 1 to 124, None for 125.

        Raises UsageError when the command cannot be started, does not end in time, ends by a signal, or ends with
        a code over 125, which a shell gives for a missing program and for signals.
        """
        with scratch("check") as name:
            path = Path(name) / "model.onnx"
            model.save(path)
            return self._answer(*self._run(path, Path(name) / "log.txt"))

    def _run(self, path: Path, log: Path) -> tuple[int | None, str]:
        """The exit code (None when it was not done in time) and the end of the output."""
        with log.open("wb") as sink:
            try:
                child = subprocess.Popen(
                    self.argv(path),
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, VARIABLE: str(path)},
                    start_new_session=True,
                )
            except OSError as error:
                raise self._missing(error) from error
            try:
                code: int | None = child.wait(self._limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(child)
        return code, _tail(log)

    @property
    def _limit(self) -> float:
        return self.timeout if self.effort is None else min(self.timeout, self.effort.left)

    def _missing(self, error: OSError) -> UsageError:
        reason = "there is no such program" if isinstance(error, FileNotFoundError) else str(error.strerror)
        hint = "name a program on the PATH, or a script by its path, such as ./check.sh, that may be executed"
        return UsageError(f"the check '{self.words[0]}' cannot be started: {reason}", hint=hint)

    def _answer(self, code: int | None, log: str) -> Answer:
        said = f"; it printed: {log}" if log else ""
        if code is None and self.effort is not None and self.effort.late:
            raise Exhausted
        if code is None:
            raise UsageError(
                f"the check did not end within {self.timeout:g} s: {self}{said}",
                hint="allow more time, or let it end itself: `timeout 60 CMD` ends with 124, which counts as bad",
            )
        if code < 0 or code > SKIP:
            raise UsageError(f"the check {_ending(code)}: {self}{said}", hint=_OUTSIDE)
        return None if code == SKIP else code != 0


_OUTSIDE = "codes are 0 good, 1 to 124 bad, 125 cannot be told; anything else ends the search"


def _ending(code: int) -> str:
    if code < 0:
        return f"was ended by {_signal_name(-code)}"
    told = {NOT_EXECUTABLE: ": something in it may not be executed", MISSING: ": a program in it was not found"}
    return f"ended with {code}{told.get(code, '')}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one without a name, as most of the real-time ones
        return f"signal {number}"


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the command and what it started; nothing of it may outlive the check."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()
    child.wait()


def _tail(log: Path) -> str:
    with log.open("rb") as source:
        source.seek(max(0, log.stat().st_size - _LOG_BYTES))
        text = source.read().decode("utf-8", errors="replace")
    return " | ".join(line.strip() for line in text.strip().splitlines()[-_LOG_LINES:])
