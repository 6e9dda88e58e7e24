"""Executors: child processes that may die, threads, and a real dask cluster on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from graphkit.errors import ModelError, UsageError
from graphkit.quant.executor import Children, WorkerError, cpu_count, open_executor


def test_calls_run_in_other_processes_in_any_order() -> None:
    with Children(2) as executor:
        futures = [executor.submit(divmod, number, 7) for number in range(20)]
        assert [future.result() for future in futures] == [divmod(number, 7) for number in range(20)]
        pids = {executor.submit(os.getpid).result() for _ in range(4)}
    assert os.getpid() not in pids
    assert 1 <= len(pids) <= 2


def test_large_arrays_travel() -> None:
    array = np.arange(3_000_000, dtype=np.float32)
    with Children(1) as executor:
        assert np.array_equal(executor.submit(np.negative, array).result(), -array)


def test_errors_come_back_as_they_were() -> None:
    with Children(1) as executor:
        with pytest.raises(ZeroDivisionError) as caught:
            executor.submit(divmod, 1, 0).result()
        assert "in a worker process" in caught.value.__notes__[-1]
        with pytest.raises(ModelError, match="is a directory") as wrong:
            executor.submit(_load, str(Path.cwd())).result()
        assert wrong.value.hint
        assert executor.submit(divmod, 9, 2).result() == (4, 1)


def _load(path: str) -> None:
    from graphkit.model import Model

    Model.load(path)


class _Obstinate(Exception):
    """Cannot be read back from its pickle."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def _raise_obstinate() -> None:
    raise _Obstinate(1, 2)


def test_errors_that_cannot_be_pickled_come_back_as_text() -> None:
    with Children(1) as executor, pytest.raises(RuntimeError, match="_Obstinate: 1 and 2"):
        executor.submit(_raise_obstinate).result()


def _die() -> None:
    os.write(2, b"famous last words\n")
    os.kill(os.getpid(), 9)


def test_a_dead_child_fails_its_call_and_is_replaced() -> None:
    with Children(1) as executor:
        with pytest.raises(WorkerError, match=r"signal 9: famous last words") as caught:
            executor.submit(_die).result()
        assert "memory" in (caught.value.hint or "")
        assert executor.submit(divmod, 9, 2).result() == (4, 1)
        with pytest.raises(WorkerError, match="ended with status 3"):
            executor.submit(os._exit, 3).result()


def test_what_calls_print_does_not_harm() -> None:
    with Children(1) as executor:
        executor.submit(os.write, 1, b"x" * 100_000).result()
        assert executor.submit(divmod, 9, 2).result() == (4, 1)


def test_functions_that_cannot_travel() -> None:
    with Children(1) as executor, pytest.raises(UsageError, match="another process") as caught:
        executor.submit(lambda: 1).result()
    assert "threads" in (caught.value.hint or "")


def test_functions_of_a_script_cannot_travel() -> None:
    script = (
        "from graphkit.quant.executor import Children\n"
        "def f(): pass\n"
        "with Children(1) as e:\n"
        "    try: e.submit(f).result()\n"
        "    except Exception as error: print(type(error).__name__, error.hint)\n"
    )
    done = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("UsageError define functions in a module")


def test_children_are_ended_when_the_caller_fails() -> None:
    begin, pids = time.monotonic(), []

    def fail(executor: Executor) -> None:
        pids.append(executor.submit(os.getpid).result())
        executor.submit(time.sleep, 60)
        time.sleep(0.2)
        raise KeyError

    with pytest.raises(KeyError), Children(1) as executor:
        fail(executor)
    assert time.monotonic() - begin < 20
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_no_main_script_is_imported(tmp_path: Path) -> None:
    """A script without a `__main__` guard works, from a file and from stdin."""
    script = (
        "from graphkit.quant.executor import Children\nwith Children(2) as e: print(e.submit(divmod, 9, 2).result())\n"
    )
    tmp_path.joinpath("s.py").write_text(script)
    for arguments, text in (([str(tmp_path / "s.py")], None), (["-"], script)):
        done = subprocess.run([sys.executable, *arguments], input=text, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "(4, 1)"


def test_one_thread_a_child() -> None:
    with Children(1) as executor:
        assert executor.submit(os.getenv, "OMP_NUM_THREADS").result() == "1"


def test_executors_from_text() -> None:
    with open_executor(None) as executor:
        assert isinstance(executor, Children)
        assert executor.workers == cpu_count()
    with open_executor("processes:3", calls=2) as executor:
        assert isinstance(executor, Children)
        assert executor.workers == 2
    with open_executor("threads:2") as executor:
        assert isinstance(executor, ThreadPoolExecutor)
        assert executor.submit(os.getpid).result() == os.getpid()


def test_an_executor_that_is_given_stays_open() -> None:
    with ThreadPoolExecutor(1) as mine:
        with open_executor(mine) as executor:
            assert executor is mine
        assert mine.submit(divmod, 9, 2).result() == (4, 1)


@pytest.mark.parametrize("text", ["dask", "processes:0", "threads:x", "processes:-1", "http//x", "tcp://"])
def test_text_that_is_no_executor(text: str) -> None:
    with pytest.raises(UsageError, match="is not an executor"), open_executor(text):
        pass


def test_dask_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match="dask is not installed") as caught, open_executor("tcp://127.0.0.1:1"):
        pass
    assert "pip install" in (caught.value.hint or "")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Address of a scheduler with two worker processes."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as made:
        yield made.scheduler_address


def _use(executor: Executor) -> set[int]:
    futures = [executor.submit(divmod, number, 7) for number in range(10)]
    assert [future.result() for future in futures] == [divmod(number, 7) for number in range(10)]
    with pytest.raises(ZeroDivisionError):
        executor.submit(divmod, 1, 0).result()
    return {executor.submit(_slow_pid).result() for _ in range(2)}


def _slow_pid() -> int:
    time.sleep(0.05)
    return os.getpid()


def test_dask(cluster: str) -> None:
    assert cluster.startswith("tcp://")
    with open_executor(cluster) as executor:
        assert os.getpid() not in _use(executor)


def test_no_scheduler_there(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("graphkit.quant.executor._CONNECT_SECONDS", 1)
    with pytest.raises(UsageError, match="no dask scheduler answers at tcp://127"), open_executor("tcp://127.0.0.1:9"):
        pass
