"""Tasks on workers: the files they need, what comes back in what order, and faults as messages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from pathlib import Path
from typing import TypeVar

from graphkit._scratch import scratch
from graphkit.errors import GraphkitError
from graphkit.model import Model
from graphkit.quant import _bench
from graphkit.quant._bench import Bench, Files, MissingFiles, Place, Sample, Task
from graphkit.quant.executor import Children, cpu_count, open_executor
from graphkit.quant.metric import Metric

T = TypeVar("T")
Work = Callable[[Place, Task, int, Files | None], T | MissingFiles]

_IN_FLIGHT = 16  # tasks handed out at once
MEMORY = 1 << 29  # bytes of Hessians that they carry


class Job:
    """A model and samples on the workers of an executor.

    `key` is a hash of all files. Workers on this machine read the folder, others are sent its files when they ask.
    """

    def __init__(self, folder: Path, key: str, executor: Executor) -> None:
        self._folder = folder
        self._executor = executor
        here = isinstance(executor, Children | ThreadPoolExecutor | ProcessPoolExecutor)
        self._place = Place(key, str(folder) if here else None)
        self._threads = max(1, cpu_count() // _workers(executor))

    def run(self, work: Work[T], tasks: Iterable[Task], memory: int = MEMORY) -> Iterator[tuple[Task, T]]:
        """Do all tasks; results come as they are done. Raises what a worker raised.

        Tasks are taken as they are needed, while those at work hold less than `memory` bytes.
        """
        waiting = iter(tasks)
        running: dict[Future[T | MissingFiles], Task] = {}
        try:
            while True:
                while len(running) < _IN_FLIGHT and (not running or _held(running.values()) < memory):
                    task = next(waiting, None)
                    if task is None:
                        break
                    running[self._submit(work, task, None)] = task
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    task = running.pop(future)
                    result = _result(future)
                    if isinstance(result, MissingFiles):
                        running[self._submit(work, task, _bench.read_files(self._folder))] = task
                    else:
                        yield task, result
        finally:
            for future in running:
                future.cancel()

    def bench(self) -> Bench:
        """The model and samples in this process."""
        return Bench(self._folder, cpu_count())

    def _submit(self, work: Work[T], task: Task, files: Files | None) -> Future[T | MissingFiles]:
        try:
            return self._executor.submit(work, self._place, task, self._threads, files)
        except (BrokenExecutor, RuntimeError) as error:
            raise GraphkitError(f"the executor takes no more work: {error}") from error


@contextlib.contextmanager
def open_job(
    model: Model, samples: Sequence[Sample], metric: Metric, key: str, where: Executor | str | None, tasks: int
) -> Iterator[Job]:
    """A job with its files and executor; both are gone at the end. Raises what `open_executor` and `save` raise."""
    with scratch("trials") as name:
        _bench.write_files(Path(name), model, samples, metric)
        with open_executor(where, tasks) as executor:
            try:
                yield Job(Path(name), key, executor)
            finally:
                _bench.forget(key)


def _held(tasks: Iterable[Task]) -> int:
    """Bytes of the arrays of all tasks."""
    return sum({id(array): array.nbytes for task in tasks for array in task.arrays}.values())


def _workers(executor: Executor) -> int:
    """How many tasks run at once on this machine."""
    if isinstance(executor, Children):
        return executor.workers
    found = getattr(executor, "_max_workers", None)  # of both pools in the standard library
    return found if isinstance(found, int) and found > 0 else cpu_count()


def _result(future: Future[T]) -> T:
    try:
        return future.result()
    except GraphkitError:
        raise
    except ImportError as error:
        raise GraphkitError(
            f"a worker cannot import what it needs: {error}", hint="install the same graphkit where the workers run"
        ) from error
    except (BrokenExecutor, CancelledError, OSError) as error:
        raise GraphkitError(f"a worker was lost: {type(error).__name__} {error}".rstrip()) from error
    except Exception as error:
        if type(error).__module__.startswith("distributed"):
            raise GraphkitError(f"the dask cluster failed: {error}") from error
        raise
