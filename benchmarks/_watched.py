"""Run a command and tell what it cost: CPU seconds and memory of itself and of everything it started."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks._child import anonymous_bytes

_POLL = 0.02  # seconds


@dataclass(frozen=True)
class Ran:
    """code: how it ended. cpu: user and system seconds, children included. peak, tree: the most anonymous resident
    bytes of the command's own process, and of it and all it started together. text: what it printed."""

    code: int
    cpu: float
    wall: float
    peak: int
    tree: int
    text: str

    @property
    def lines(self) -> int:
        """Lines that it printed."""
        return len(self.text.splitlines())


def watched(argv: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> Ran:
    """Run a command in a folder to its end."""
    start = time.perf_counter()
    peak = tree = 0
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            [*argv], cwd=folder, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            sizes = [anonymous_bytes(one) or 0 for one in _family(process.pid)]
            peak, tree = max(peak, *sizes[:1]), max(tree, sum(sizes))
            time.sleep(_POLL)
        process.returncode = os.waitstatus_to_exitcode(status)
        log.seek(0)
        text = log.read()
    cpu = usage.ru_utime + usage.ru_stime
    return Ran(process.returncode, cpu, time.perf_counter() - start, peak, tree, text)


def _family(pid: int) -> list[int]:
    """A process and those below it, itself first."""
    found = [pid]
    for one in found:
        try:
            tasks = Path(f"/proc/{one}/task").iterdir()
            found += [int(child) for task in tasks for child in (task / "children").read_text().split()]
        except OSError:
            continue  # it has ended
    return found
