"""Errors as the user sees them: one message, what to do next, the nodes at fault, never a traceback."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from graphkit.errors import GraphkitError, MnnError, OutputError
from graphkit.report.console import Report, StreamError
from graphkit.report.text import clean, listing
from graphkit.version import __version__

_MAX_FAULTS = 20


class InternalError(GraphkitError):
    """Something nobody foresaw; `trace` is the traceback, `folder` holds it."""

    exit_code: ClassVar[int] = 4

    def __init__(self, message: str, trace: str, folder: Path | None, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.trace = trace
        self.reproducer = str(folder) if folder is not None else None


def show(report: Report, error: GraphkitError) -> int:
    """Print an error, as JSON too when that was asked for; returns its exit code."""
    lines = [f"{_red('error:')} {clean(str(error))}", *_details(error, report.verbose)]
    if isinstance(error, OutputError | StreamError):
        lines[0] += f"; {_left(report)}"
    if error.hint:
        lines.append(f"help: {clean(error.hint)}")
    _print(lines)
    _emit(report, to_dict(error, report))
    return error.exit_code


def complain(report: Report, message: str) -> None:
    """Print one line on a check that failed; the result itself is reported elsewhere."""
    _print([f"{_red('error:')} {clean(message)}"])


def show_stop(report: Report, word: str, code: int) -> None:
    """Print what a signal left behind; `word` says which: interrupted, terminated, hung up."""
    error = GraphkitError(f"{word}; {_left(report)}")
    _print([str(error)])
    _emit(report, {**to_dict(error, report), "exit_code": code})


def _left(report: Report) -> str:
    done = [clean(str(path)) for path in report.written]
    return f"{listing(done)} {'was' if len(done) == 1 else 'were'} written before" if done else "nothing was written"


def _emit(report: Report, data: dict[str, Any]) -> None:
    with suppress(StreamError, BrokenPipeError):  # the message on stderr and the exit code still tell
        report.emit(data)


def to_dict(error: GraphkitError, report: Report) -> dict[str, Any]:
    """An error in JSON's types."""
    faults = error.faults if isinstance(error, MnnError) else ()
    return {
        "command": report.command,
        "exit_code": error.exit_code,
        "ok": False,
        "error": str(error),
        "hint": error.hint,
        "faults": [vars(fault) for fault in faults],
        "file": error.file,
        "node": error.node,
        "tensor": error.tensor,
        "reproducer": getattr(error, "reproducer", None),
        "written": [str(path) for path in report.written],
    }


def crash(error: Exception) -> InternalError:
    """Make an error of an unforeseen exception and leave its traceback in a folder in the current one."""
    trace = "".join(traceback.format_exception(error))
    kind = " ".join(f"{type(error).__name__}: {error}".split())
    message = f"graphkit failed in a way nobody foresaw: {kind[:300]}"
    try:
        folder = _crash_folder(trace)
    except OSError:  # a read-only folder: then only -v can show it
        return InternalError(message, trace, None, "run it again with -v to see the traceback, and report it")
    return InternalError(message, trace, folder, f"please report it with {folder}{os.sep}traceback.txt")


def _crash_folder(trace: str) -> Path:
    import shlex
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="graphkit-crash-", dir="."))
    command = shlex.join(["graphkit", *sys.argv[1:]])
    text = f"graphkit {__version__}, Python {sys.version.split()[0]}\n{command}\n\n{trace}"
    (folder / "traceback.txt").write_text(text, encoding="utf-8", errors="replace")
    return folder


def _details(error: GraphkitError, verbose: bool) -> list[str]:
    if isinstance(error, InternalError):
        return [error.trace] if verbose else []
    if not isinstance(error, MnnError):
        return []
    shown = error.faults if verbose else error.faults[:_MAX_FAULTS]
    places = [clean(f"'{fault.node}' ({fault.op})" if fault.node else fault.op) for fault in shown]
    width = min(max(map(len, places), default=0), 60)
    lines = [f"  {place:{width}}  {clean(fault.reason)}" for place, fault in zip(places, shown, strict=True)]
    if len(shown) < len(error.faults):
        lines.append(f"  … {len(error.faults) - len(shown)} more (-v shows all)")
    if verbose and error.log:
        lines += ["MNN's log:", *(f"  {clean(line)}" for line in error.log.splitlines())]
    return lines


def _print(lines: list[str]) -> None:
    try:
        sys.stderr.write("\n".join(lines) + "\n")
        sys.stderr.flush()
    except OSError:  # nobody listens; the exit code still tells
        return


def _red(text: str) -> str:
    colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"\x1b[1;31m{text}\x1b[0m" if colour else text
