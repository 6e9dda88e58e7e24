"""Run MNN in a child process that may crash, hang or print anything without hurting us.

MNN's converter and runtime end the process on bad models (SIGSEGV, SIGABRT, SIGFPE), write files with
fixed names into the working directory and report failures only as text. So every use of MNN is one
child of its own: own process group, own working directory, output in a log file, a time limit.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHILD = Path(__file__).with_name("_child.py")
_READ_LIMIT = 4 << 20  # bytes of a log that are looked at; a converter that loops can print gigabytes


_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ending:
    """How a child ended.

    `code` is its exit status, None when a signal ended it; `signal` is the signal's name, such as
    'SIGSEGV'; `log` is what it printed (stdout and stderr in order); `seconds` is wall time;
    `result` is what the child left in `result.json`, empty when it left nothing readable.
    """

    code: int | None
    signal: str | None
    timed_out: bool
    log: str
    seconds: float
    result: Mapping[str, Any]


def run_child(request: Mapping[str, Any], folder: Path, timeout: float) -> Ending:
    """Run `_child.py` on `request` (JSON-able) with `folder` as its working directory.

    The child and anything it started are killed after `timeout` seconds, and when the caller is
    interrupted. The child sees the caller's import path, so that it finds the same MNN.
    """
    folder.joinpath("request.json").write_text(
        json.dumps({**request, "path": [p for p in sys.path if p]}), encoding="utf-8"
    )
    log = folder / "log.txt"
    start = time.perf_counter()
    with log.open("wb") as sink:
        child = subprocess.Popen(
            [sys.executable, "-I", str(CHILD), "request.json"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with _killed_on_exit(child):
            timed_out = not _wait(child, timeout)
    seconds = time.perf_counter() - start
    code = child.returncode
    _LOG.info("MNN %s: %.2f s, status %s", request.get("task"), seconds, "timeout" if timed_out else code)
    ended_by = None if timed_out or code >= 0 else _signal_name(-code)
    return Ending(code if code >= 0 else None, ended_by, timed_out, _read_log(log), seconds, _read_result(folder))


def shorten(log: str, limit: int = 8192) -> str:
    """Keep the first quarter and the last three quarters of `limit` characters of a log."""
    if len(log) <= limit:
        return log
    head = limit // 4
    return f"{log[:head]}\n[… {len(log) - limit} characters left out …]\n{log[head - limit :]}"


@contextlib.contextmanager
def _killed_on_exit(child: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        if child.poll() is None:
            _kill_group(child)
            child.wait()


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and its process group; where there are no groups, the child."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()


def _wait(child: subprocess.Popen[bytes], timeout: float) -> bool:
    try:
        child.wait(timeout)
    except subprocess.TimeoutExpired:
        return False
    return True


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _read_log(log: Path) -> str:
    with log.open("rb") as source:
        raw = source.read(_READ_LIMIT)
        rest = log.stat().st_size - len(raw)
        if rest > 0:
            source.seek(-min(rest, _READ_LIMIT), os.SEEK_END)
            raw += b"\n" + source.read(_READ_LIMIT)
    return raw.decode("utf-8", errors="replace")


def _read_result(folder: Path) -> Mapping[str, Any]:
    try:
        result = json.loads(folder.joinpath("result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return result if isinstance(result, dict) else {}
