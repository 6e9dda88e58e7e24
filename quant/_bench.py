"""What a worker does: quantize one layer in several ways, and measure each on the whole model.

A worker keeps one model open from task to task. It reads the model from the folder that the caller names; where it
cannot (another machine), it says so and is sent the files.
"""

from __future__ import annotations

import pickle
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit._scratch import scratch
from graphkit.errors import GraphkitError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.quant._quantizer import QuantizeLayer
from graphkit.quant.codes import Codes
from graphkit.quant.damping import Data
from graphkit.quant.layers import Layer
from graphkit.quant.metric import Metric
from graphkit.quant.setting import Setting
from graphkit.runtime import Session

Array = npt.NDArray[Any]
Sample = Mapping[str, Array]
Files = Mapping[str, bytes]

MODEL, DATA = "model.onnx", "data.pickle"


@dataclass(frozen=True)
class Place:
    """Where a job's files are: a folder here, or None where workers are to be sent them. `key` is their hash."""

    key: str
    folder: str | None


@dataclass(frozen=True, eq=False)
class Task:
    """One layer, what overrides its weight in the model, the settings to try with a method, and what that needs."""

    layer: Layer
    override: str
    settings: tuple[Setting, ...]
    quantizer: QuantizeLayer
    hessian: Any = None

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The large arrays that it holds, which other tasks may hold, too."""
        if isinstance(self.hessian, Data):
            return tuple(part.matrix for part in (self.hessian.seen, self.hessian.held) if part is not None)
        return (self.hessian,) if isinstance(self.hessian, np.ndarray) else ()


@dataclass(frozen=True)
class MissingFiles:
    """The answer of a worker that has not got the files of a job."""


def write_files(folder: Path, model: Model, samples: Sequence[Sample], metric: Metric) -> None:
    """Write what a bench needs. Raises OutputError when the folder cannot be written."""
    model.save(folder / MODEL)
    data = ([dict(sample) for sample in samples], metric)
    (folder / DATA).write_bytes(pickle.dumps(data, pickle.HIGHEST_PROTOCOL))


def read_files(folder: Path) -> dict[str, bytes]:
    """All files of a bench, to be sent to a worker."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def try_settings(place: Place, task: Task, threads: int, files: Files | None = None) -> list[float] | MissingFiles:
    """The error of the whole model with one layer quantized, for each setting of the task."""
    bench = _bench(place, threads, files)
    if bench is None:
        return MissingFiles()
    return [bench.error({task.override: value}) for value in bench.values(task)]


def make_codes(place: Place, task: Task, threads: int, files: Files | None = None) -> list[Codes] | MissingFiles:
    """The codes of one layer for each setting of the task."""
    bench = _bench(place, threads, files)
    return MissingFiles() if bench is None else list(bench.codes(task))


class Bench:
    """A model with overridable weights, samples, and the outputs of the float model on them.

    `threads` are onnxruntime's. Raises GraphkitError when the model does not run on the samples.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        self._samples, self._metric = _read_data(folder / DATA)
        self._graph = Graph.of(Model.load(folder / MODEL))
        self._session = Session(folder / MODEL, threads=threads)
        self._expected = [self._session.run(sample) for sample in self._samples]
        self._metric.check(self._expected[0])

    def error(self, overrides: Mapping[str, Array]) -> float:
        """The distance of the outputs from the float model's with these weights in the place of its own."""
        return self._metric.distance(self._expected, [self._session.run({**s, **overrides}) for s in self._samples])

    def codes(self, task: Task) -> Iterable[Codes]:
        """Codes of a task's layer, setting by setting. Raises ModelError for weights that are not finite."""
        matrix = task.layer.matrix(self._stored(task))
        for setting in task.settings:
            yield task.quantizer(task.layer, matrix, setting, task.hessian)

    def values(self, task: Task) -> Iterable[Array]:
        """The same as weights in the shape and type that the model has."""
        for codes in self.codes(task):
            yield self.restored(task, codes)

    def restored(self, task: Task, codes: Codes) -> Array:
        """Codes as a weight of the model."""
        # A float16 weight overflows to infinity as it would in the quantized model.
        with np.errstate(over="ignore"):
            return task.layer.restore(codes.values()).astype(self._stored(task).dtype, copy=False)

    def _stored(self, task: Task) -> Array:
        return self._graph.initializers[task.override].array()


_LOCK = threading.Lock()
_OPEN: dict[str, Bench] = {}


def _bench(place: Place, threads: int, files: Files | None) -> Bench | None:
    """The bench of a job, opened in place of the one before when it is not open. None when there are no files."""
    with _LOCK:
        if place.key not in _OPEN:
            if place.folder is None and files is None:
                return None
            _OPEN.clear()  # freed when no thread uses it any more
            _OPEN[place.key] = _opened(place, threads, files or {})
        return _OPEN[place.key]


def _opened(place: Place, threads: int, files: Files) -> Bench:
    if place.folder is not None:
        return Bench(Path(place.folder), threads)
    folder = scratch("bench")
    try:
        for name, data in files.items():
            (Path(folder.name) / name).write_bytes(data)
        bench = Bench(Path(folder.name), threads)
    except BaseException:
        folder.cleanup()
        raise
    weakref.finalize(bench, folder.cleanup)
    return bench


def forget(key: str) -> None:
    """Free the model of a job, if it is open in this process."""
    with _LOCK:
        _OPEN.pop(key, None)


def _read_data(file: Path) -> tuple[list[Sample], Metric]:
    try:
        samples, metric = pickle.loads(file.read_bytes())
    except (AttributeError, ImportError) as error:
        raise GraphkitError(
            f"a worker cannot import the metric: {error}", hint="put it into a file: --metric my_metric.py:function"
        ) from error
    return samples, metric
