"""How much each layer's quantization moves the model's outputs, measured on the whole model.

One layer is quantized at a time, with the codes that the method really makes, and the model is run on samples. What
a layer's own output error says is not enough: on MiniLM, mixed precision by it was worse than one width for all.
Bits by sensitivity are an idea of HAWQ (Dong et al. 2019, arXiv:1905.03696), which estimates what is measured here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import onnxruntime

from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.quant._bench import Task, try_settings
from graphkit.quant._jobs import MEMORY, open_job
from graphkit.quant._quantizer import QuantizeLayer, as_hessian, identity_of, quantizer_of
from graphkit.quant._trial_model import overridable
from graphkit.quant.budget import Solution, solve
from graphkit.quant.cache import Cache, digest, model_digest
from graphkit.quant.layers import Layer
from graphkit.quant.metric import Function, Metric
from graphkit.quant.setting import FLOAT, Setting

Array = npt.NDArray[Any]
Sample = Mapping[str, Array]
Progress = Callable[[int, int, str], None]
Feed = Callable[[Sequence[Layer]], Iterable[tuple[Layer, Any]]]
Candidates = Sequence[Setting] | Mapping[str, Sequence[Setting]]

_TABLE_BITS = 8  # a table is stored as bytes, whatever its codes


@dataclass(frozen=True)
class Sensitivity:
    """The error of the whole model with one layer quantized: by the layer's name, by setting.

    An error is the metric's value: 0 for a layer that stays float, infinite where outputs became NaN. `power` is the
    power in which the errors of layers add up. trials: errors measured now; cached: found from before.
    """

    metric: str
    power: int
    samples: int
    errors: dict[str, dict[Setting, float]]
    trials: int = 0
    cached: int = 0
    seconds: float = 0.0

    def solve(
        self,
        costs: Mapping[str, Mapping[Setting, int]],
        *,
        budget: int | None = None,
        max_error: float | None = None,
        fixed: int = 0,
    ) -> Solution[Setting]:
        """The setting of each layer, see `graphkit.quant.budget.solve`; errors and bound are in the metric's units.

        The error is a forecast: what all layers together do is to be measured.
        """
        return solve(costs, self.errors, budget=budget, max_error=max_error, fixed=fixed, power=self.power)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary; infinite errors become the string 'inf'."""
        return {
            "metric": self.metric,
            "power": self.power,
            "samples": self.samples,
            "trials": self.trials,
            "cached": self.cached,
            "seconds": round(self.seconds, 3),
            "errors": {
                name: {str(setting): error if math.isfinite(error) else str(error) for setting, error in of.items()}
                for name, of in self.errors.items()
            },
        }


def measure(
    model: Model,
    layers: Sequence[Layer],
    samples: Sequence[Sample],
    candidates: Candidates,
    *,
    method: QuantizeLayer | str = "rtn",
    hessians: Mapping[str, Any] | Feed | None = None,
    metric: Metric | str | Function = "relative-l2",
    executor: Executor | str | None = None,
    cache: Cache | None = None,
    progress: Progress | None = None,
    memory: int = MEMORY,
) -> Sensitivity:
    """Measure every layer of a float model with every candidate setting, one layer at a time.

    samples: feeds for the model. candidates: for all layers, or by the names of layers; see `settings_for` for what
    becomes of them. method: `rtn`, `mse`, `gptq`, or a picklable function (layer, matrix, setting, Hessian) → Codes.
    hessians: by layer name, what `graphkit.quant.collect` yields (only gptq uses them); or a function that yields
    layers with them as they are needed, such as `partial(collect, model, samples=…)`: then only methods whose
    `identity(layer)` tells of the data are cached. metric: see `Metric`.
    executor: see `open_executor`. cache: where errors are kept by content; in memory only when not given.
    progress: called with the trials done, the trials there are, and a layer's name. memory: bytes of Hessians that
    are with workers at a time.

    Raises UsageError without samples, for metrics and executors that are none, and what running the model raises;
    ModelError, naming the layer, for weights that are NaN or infinite.
    """
    begin = time.perf_counter()
    if not samples:
        raise UsageError("sensitivity is measured on samples, and there are none", hint="give calibration data")
    metric, quantizer, cache = Metric.of(metric), quantizer_of(method), cache or Cache(None)
    settings = settings_for(layers, candidates)
    record = _Record(model, samples, metric, quantizer, {} if hessians is None else hessians, cache)
    errors: dict[str, dict[Setting, float]] = {layer.name: {} for layer in layers}
    tasks = [(layer, todo) for layer in layers if (todo := record.recall(layer, settings[layer.name], errors))]
    trials = sum(len(todo) for _, todo in tasks)
    known = sum(len(of) for of in errors.values())
    if tasks:
        record.measure(tasks, errors, executor, progress or _silent, memory)
    for layer in layers:
        if FLOAT in settings[layer.name]:
            errors[layer.name][FLOAT] = 0.0
        errors[layer.name] = {s: errors[layer.name][s] for s in settings[layer.name]}
    seconds = time.perf_counter() - begin
    return Sensitivity(str(metric), metric.power, len(samples), errors, trials, known, seconds)


def settings_for(layers: Sequence[Layer], candidates: Candidates) -> dict[str, list[Setting]]:
    """The settings that each layer can have, by name, in the order of the candidates.

    A block that does not divide a layer's input channels becomes one scale a row there. Tables are stored with 8 bits
    a number and one scale a row: of candidates for all layers, that and float are left to them. Raises UsageError
    when there is no candidate, or names that no layer has.
    """
    if isinstance(candidates, Mapping):
        unknown = candidates.keys() - {layer.name for layer in layers}
        if unknown:
            raise UsageError(f"no layer is called '{min(unknown)}'")
        found = {layer.name: list(candidates.get(layer.name, ())) for layer in layers}
    else:
        found = {layer.name: _fitting(layer, candidates) for layer in layers}
    for name, of in found.items():
        if not of:
            raise UsageError(f"there is no setting to try for layer '{name}'")
    return found


def _fitting(layer: Layer, candidates: Sequence[Setting]) -> list[Setting]:
    if layer.kind != "Embedding":
        return list(dict.fromkeys(setting.for_channels(layer.channels) for setting in candidates))
    symmetric = all(setting.symmetric for setting in candidates)
    table = [Setting(_TABLE_BITS, 0, symmetric)] if any(not s.is_float for s in candidates) else []
    return table + [setting for setting in candidates if setting.is_float]


def fed(layers: Sequence[Layer], hessians: Mapping[str, Any] | Feed) -> Iterator[tuple[Layer, Any]]:
    """Every layer with its Hessian; those that have none last where the Hessians come from a function."""
    if isinstance(hessians, Mapping):
        # The largest first: what is left to do at the end is small.
        for layer in sorted(layers, key=lambda layer: -layer.rows * layer.columns):
            yield layer, as_hessian(hessians.get(layer.name))
        return
    left = {layer.name: layer for layer in layers}
    for layer, hessian in hessians(layers):
        if left.pop(layer.name, None) is not None:
            yield layer, as_hessian(hessian)
    yield from ((layer, None) for layer in left.values())


class _Record:
    """Errors of one model on one set of samples, some of them known from before."""

    def __init__(
        self,
        model: Model,
        samples: Sequence[Sample],
        metric: Metric,
        quantizer: QuantizeLayer,
        hessians: Mapping[str, Any] | Feed,
        cache: Cache,
    ) -> None:
        self._model, self._samples, self._metric = model, samples, metric
        self._quantizer, self._hessians, self._cache = quantizer, hessians, cache
        self._context = digest(model_digest(model), list(samples), metric.identity(), onnxruntime.__version__)
        self._keys: dict[str, str] = {}

    def recall(
        self, layer: Layer, settings: Sequence[Setting], errors: dict[str, dict[Setting, float]]
    ) -> list[Setting]:
        """Put what is known into `errors`; returns the settings that must be measured."""
        todo = []
        for setting in settings:
            if setting.is_float:
                continue
            key = self._key(layer, setting)
            known = self._cache.get(self._context, key) if key else None
            if known is None:
                todo.append(setting)
            else:
                errors[layer.name][setting] = known
        return todo

    def measure(
        self,
        tasks: Sequence[tuple[Layer, list[Setting]]],
        errors: dict[str, dict[Setting, float]],
        executor: Executor | str | None,
        progress: Progress,
        memory: int,
    ) -> None:
        """Measure and remember; what is done when something fails is kept."""
        model, names = overridable(self._model, [layer for layer, _ in tasks])
        settings = {layer.name: tuple(todo) for layer, todo in tasks}
        done, total = 0, sum(map(len, settings.values()))
        progress(0, total, "")
        job = digest(self._context, sorted(names.items()))
        work = (
            Task(layer, names[layer.name], settings[layer.name], self._quantizer, hessian)
            for layer, hessian in fed([layer for layer, _ in tasks], self._hessians)
        )
        with open_job(model, self._samples, self._metric, job, executor, len(tasks)) as opened:
            for task, found in opened.run(try_settings, work, memory):
                for setting, error in zip(task.settings, found, strict=True):
                    errors[task.layer.name][setting] = error
                    if key := self._key(task.layer, setting):
                        self._cache.put(self._context, key, error)
                done += len(found)
                progress(done, total, task.layer.name)

    def _key(self, layer: Layer, setting: Setting) -> str:
        """Where an error is kept; nowhere when nothing identifies the method."""
        if layer.name not in self._keys:
            self._keys[layer.name] = self._layer_key(layer)
        return self._keys[layer.name] and f"{self._keys[layer.name]}-{setting}"

    def _layer_key(self, layer: Layer) -> str:
        identity = identity_of(self._quantizer, layer)
        hessian = None
        if isinstance(self._hessians, Mapping):
            hessian = as_hessian(self._hessians.get(layer.name))
        elif not hasattr(self._quantizer, "identity"):
            return ""
        if not identity:
            return ""
        return digest(layer.where, layer.kind, layer.places, layer.outputs, identity, hessian)


def _silent(done: int, total: int, layer: str) -> None:
    """Tell nobody."""
