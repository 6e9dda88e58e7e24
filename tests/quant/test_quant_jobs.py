"""Tasks in flight: how many bytes they may hold."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphkit.quant._bench import Task
from graphkit.quant._jobs import Job
from graphkit.quant._quantizer import Quantizer
from graphkit.quant.collect import Hessian
from graphkit.quant.damping import Data
from graphkit.quant.layers import Layer
from graphkit.quant.setting import Setting

LAYER = Layer("layer", "MatMul", "w", (64, 64), 64, 64)
SIZE = 64 * 64 * 4


class Later(Executor):
    """Does a call only when its result is asked for."""

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        found: Future[Any] = Future()
        found.set_result(None)
        return found


@pytest.mark.parametrize(("memory", "most"), [(0, 1), (4 * SIZE, 2), (1 << 30, 16)])
def test_tasks_that_wait_hold_no_more_than_they_may(memory: int, most: int) -> None:
    alive: set[int] = set()
    seen = []

    def tasks() -> Iterator[Task]:
        for number in range(40):
            data = Data(*(Hessian(np.zeros((64, 64), np.float32), 1) for _ in range(2)))
            alive.add(number)
            weakref.finalize(data, alive.discard, number)
            seen.append(len(alive))
            yield Task(LAYER, "w", (Setting(4),), Quantizer(), data)
            del data

    job = Job(Path(), "", Later())
    count = 0
    for _ in job.run(lambda *_: None, tasks(), memory):
        count += 1
        del _
    assert count == 40
    assert max(seen) <= most + 3  # those that wait, and what hands them over and takes them back
    assert max(seen) >= most


def test_a_matrix_that_tasks_share_counts_once() -> None:
    data = Data(Hessian(np.zeros((64, 64), np.float32), 1))
    started = []

    class Counting(Later):
        def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            started.append(1)
            return super().submit(function, *args, **kwargs)

    tasks = (Task(LAYER, "w", (Setting(4),), Quantizer(), data) for _ in range(5))
    next(iter(Job(Path(), "", Counting()).run(lambda *_: None, tasks, 2 * SIZE)))
    assert len(started) == 5
