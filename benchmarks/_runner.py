"""Run jobs in child processes that may crash or hang, and watch their memory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from benchmarks._child import anonymous_bytes

CHILD = Path(__file__).with_name("_child.py")
POLL = 0.02  # seconds between looks at a child
FINE_POLL = 0.001  # the same when its memory is watched


@dataclass(frozen=True)
class Job:
    """One call of a tool of `_calls`, from model file to model file."""

    tool: str
    source: str
    target: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a job cost, or why it failed.

    cpu: user and system seconds of all threads; wall: seconds; anon_peak: largest anonymous resident memory
    seen while it ran, anon_before: the same before it (bytes, None when not watched). failure is empty, an
    exception, a signal or the timeout.
    """

    failure: str = ""
    cpu: float = 0.0
    wall: float = 0.0
    result: Mapping[str, Any] = field(default_factory=dict)
    anon_before: int | None = None
    anon_peak: int | None = None


class Runner:
    """Runs jobs in children that work in `folder`; `timeout` is seconds for one job, start-up included."""

    def __init__(self, folder: Path, warmup: Path | None = None, timeout: float = 120.0) -> None:
        self.folder = folder
        self.warmup = warmup
        self.timeout = timeout

    def one(self, job: Job, *, watch: bool = False) -> Outcome:
        """Do one job in a child of its own; with `watch`, sample its memory every millisecond."""
        return self.run([job], watch=watch)[0]

    def run(self, jobs: Sequence[Job], *, watch: bool = False) -> list[Outcome]:
        """Do jobs in one warm child; after a crash or a hang a new child goes on with the next job."""
        outcomes: list[Outcome] = []
        while len(outcomes) < len(jobs):
            child = _Child(self, jobs[len(outcomes) :], watch)
            outcomes.extend(child.follow())
        return outcomes


class _Child:
    """One child process and what it has told so far."""

    def __init__(self, runner: Runner, jobs: Sequence[Job], watch: bool) -> None:
        self.timeout = runner.timeout
        self.jobs = jobs
        self.watch = watch
        self.folder = runner.folder
        self.events = runner.folder / "events.jsonl"
        self.events.unlink(missing_ok=True)
        self.request = runner.folder / "request.json"
        request = {
            "jobs": [asdict(job) for job in jobs],
            "events": str(self.events),
            "warmup": str(runner.warmup) if runner.warmup else "",
        }
        self.request.write_text(json.dumps(request), encoding="utf-8")

    def follow(self) -> list[Outcome]:
        """Start the child and wait for it; a job that does not end is a failure and the last outcome."""
        with (self.folder / "child.log").open("wb") as log, self._started(log) as process:
            done, since, before, peak = [], time.monotonic(), None, 0
            for event in self._watch(process):
                if event.get("event") == "start":
                    since, before, peak = time.monotonic(), event["anon"], event["anon"] or 0
                elif event.get("event") == "end":
                    done.append(_outcome(event, before, peak if self.watch else None))
                    since = time.monotonic()
                elif "anon" in event:
                    peak = max(peak, event["anon"])
                if time.monotonic() - since > self.timeout:
                    return [*done, Outcome(failure=f"timeout, {self.timeout:g} s")]
        if len(done) == len(self.jobs):
            return done
        return [*done, Outcome(failure=_ending(process.returncode, self.folder / "child.log"))]

    @contextlib.contextmanager
    def _started(self, log: BinaryIO) -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(
            [sys.executable, str(CHILD), str(self.request)],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _watch(self, process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
        """Yield the child's events, and its memory in between, until it has ended."""
        told, running = 0, True
        while running:
            running = process.poll() is None
            lines = self._lines()
            yield from map(json.loads, lines[told:])
            told = len(lines)
            anon = anonymous_bytes(process.pid) if self.watch and running else None
            yield {} if anon is None else {"anon": anon}
            if running:
                time.sleep(FINE_POLL if self.watch else POLL)

    def _lines(self) -> list[str]:
        """Whole lines only: the last one may be half written."""
        with contextlib.suppress(FileNotFoundError):
            return self.events.read_text(encoding="utf-8").split("\n")[:-1]
        return []


def _outcome(event: Mapping[str, Any], before: int | None, peak: int | None) -> Outcome:
    return Outcome(event["failure"], event["cpu"], event["wall"], event["result"], before, peak)


def _ending(code: int, log: Path) -> str:
    """Why a child ended before its jobs were done."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"crash, {signal.Signals(-code).name}"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no output"]
    return f"status {code}: {lines[-1]}"[:160]
