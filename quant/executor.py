"""Where trials run: child processes, threads, or a dask cluster, all as `concurrent.futures.Executor`.

Any other executor may be given as well; functions and arguments are picklable, and workers need no files of ours.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, ParamSpec, TypeVar

from graphkit.errors import GraphkitError, UsageError
from graphkit.quant._worker import receive, send

P = ParamSpec("P")
T = TypeVar("T")

_LOCAL = re.compile(r"(?P<kind>processes|threads)(?::(?P<workers>\d+))?")
_REMOTE = re.compile(r"(tcp|tls|ucx|ws|wss)://\S+")
_CONNECT_SECONDS = 15
_TAIL = 2000  # characters of a dead child's stderr worth showing


class WorkerError(GraphkitError):
    """A worker process ended in the middle of a call."""


class Children(Executor):
    """A pool of child processes, started when first needed; each call gets one to itself.

    Unlike `ProcessPoolExecutor` it forks nothing (onnxruntime's threads do not survive that) and never imports the
    caller's main script, which needs no `if __name__ == "__main__"`. `threads` is how many threads the numeric
    libraries of one child may use. A child that dies fails its call with WorkerError; the next call starts another.
    """

    def __init__(self, workers: int | None = None, threads: int = 1) -> None:
        self.workers = workers or cpu_count()
        self._threads = threads
        self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="graphkit-child")
        self._mine = threading.local()
        self._lock = threading.Lock()
        self._children: list[_Child] = []
        self._closed = False

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a picklable call in a child; see `Executor.submit`."""
        return self._pool.submit(self._call, function, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the children, after their calls when `wait` is true; see `Executor.shutdown`."""
        if not wait:
            self.kill()
        self._pool.shutdown(wait=True, cancel_futures=cancel_futures or not wait)
        self._closed = True
        for child in self._children:
            child.close()

    def kill(self) -> None:
        """End all children at once; calls that run fail with WorkerError."""
        with self._lock:
            self._closed = True
            for child in self._children:
                child.kill()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown(wait=kind is None, cancel_futures=kind is not None)

    def _call(self, function: Callable[..., T], args: Any, kwargs: Any) -> T:
        try:
            message = pickle.dumps((function, args, kwargs), pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UsageError(
                f"a call cannot be sent to another process: {error}",
                hint="define functions in a module, not in a script or notebook; or use threads",
            ) from error
        succeeded, value = pickle.loads(self._child().call(message))
        if not succeeded:
            raise value
        result: T = value
        return result

    def _child(self) -> _Child:
        child: _Child | None = getattr(self._mine, "child", None)
        if child is None or not child.alive:
            with self._lock:
                if self._closed:
                    raise WorkerError("the worker processes were stopped")
                child = self._mine.child = _Child(self._threads)
                self._children.append(child)
        return child


class _Child:
    """One child process and its pipes."""

    def __init__(self, threads: int) -> None:
        counts = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- lives as long as the child
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "graphkit.quant._worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **counts, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the parent, which ends its children
        )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def call(self, message: bytes) -> bytes:
        try:
            send(_open(self._process.stdin), message)
            return receive(_open(self._process.stdout))
        except (OSError, EOFError, ValueError) as error:
            code = self._process.wait()
            ending = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
            raise WorkerError(
                f"a worker process {ending}: {self._last_words()}",
                hint="signal 9 is often a lack of memory: use fewer workers" if code == -9 else None,
            ) from error

    def close(self) -> None:
        """End the child as its stdin ends."""
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                _open(pipe).close()
        self._process.wait()
        self._log.close()

    def kill(self) -> None:
        self._process.kill()

    def _last_words(self) -> str:
        self._log.seek(0)
        text = self._log.read().decode("utf-8", "replace").strip()
        return text[-_TAIL:] or "it said nothing"


def _open(pipe: Any) -> BinaryIO:
    stream: BinaryIO = pipe
    return stream


def cpu_count() -> int:
    """Processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextlib.contextmanager
def open_executor(where: Executor | str | None, calls: int | None = None) -> Iterator[Executor]:
    """An executor from text, closed at the end; one that is given stays the caller's.

    `processes` (the default, one a processor) or `processes:4`; `threads`, `threads:4`; the address of a dask
    scheduler, `tcp://host:8786`, whose workers need graphkit installed. `calls` is how many calls will come: no
    more workers are started. Raises UsageError for other text, when dask is not installed, and when no scheduler
    answers.
    """
    if isinstance(where, Executor):
        yield where
        return
    text = where or "processes"
    local = _LOCAL.fullmatch(text)
    if local is not None and local["workers"] != "0":
        workers = int(local["workers"] or cpu_count())
        workers = max(1, min(workers, workers if calls is None else calls))
        opened: Executor = Children(workers) if local["kind"] == "processes" else ThreadPoolExecutor(workers)
        with opened as executor:
            yield executor
    elif _REMOTE.fullmatch(text):
        with _dask(text) as executor:
            yield executor
    else:
        raise UsageError(
            f"'{text}' is not an executor", hint="examples: processes, processes:4, threads, tcp://host:8786"
        )


@contextlib.contextmanager
def _dask(address: str) -> Iterator[Executor]:
    try:
        distributed = importlib.import_module("distributed")
    except ImportError as error:
        raise UsageError(
            f"'{address}' is a dask scheduler, and dask is not installed", hint="pip install 'dask[distributed]'"
        ) from error
    try:
        client = distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"no dask scheduler answers at {address}: {error}",
            hint="start one with `dask scheduler`, and a `dask worker`",
        ) from error
    with client:
        executor: Executor = client.get_executor(pure=False)
        try:
            yield executor
        except BaseException:
            executor.shutdown(wait=False)
            raise
        executor.shutdown()
