"""Run tests in a few long-lived child processes; one that dies or hangs costs its test, not the run."""

from __future__ import annotations

import multiprocessing
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

_LIMIT = 300.0  # seconds for one job before its child is killed

Job = Any
Work = Callable[[Any], Any]
Lost = Callable[[Any, str], Any]


def run(work: Work, jobs: Sequence[Job], lost: Lost, processes: int = 2) -> Iterator[Any]:
    """Yield `work(job)` for all jobs as they are done; `lost(job, why)` for one whose child died or hung.

    `work` must be importable (children are spawned, not forked: forking after threads are started can hang).
    """
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    threads = [threading.Thread(target=_serve, args=(work, waiting, done, lost), daemon=True) for _ in range(processes)]
    for thread in threads:
        thread.start()
    for _ in jobs:
        yield done.get()


def _serve(work: Work, waiting: queue.SimpleQueue[Job], done: queue.SimpleQueue[Any], lost: Lost) -> None:
    child: _Child | None = None
    while True:
        try:
            job = waiting.get_nowait()
        except queue.Empty:
            break
        child = child or _Child(work)
        try:
            done.put(child.ask(job))
        except (EOFError, OSError, TimeoutError) as error:
            child.kill()
            child = None
            done.put(lost(job, str(error) or "the process died"))
    if child is not None:
        child.kill()


class _Child:
    def __init__(self, work: Work) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_loop, args=(work, theirs), daemon=False)
        self.process.start()
        theirs.close()

    def ask(self, job: Job) -> Any:
        self.pipe.send(job)
        if not self.pipe.poll(_LIMIT):
            raise TimeoutError(f"no answer within {_LIMIT:.0f} s")
        return self.pipe.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _loop(work: Work, pipe: Connection) -> None:
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        pipe.send(work(job))
