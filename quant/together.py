"""The error of all layers quantized at once, measured: what a forecast from single layers is checked against."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from types import TracebackType
from typing import Any, Self

import numpy.typing as npt

from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.quant._bench import Bench, Task, make_codes
from graphkit.quant._jobs import MEMORY, Job, open_job
from graphkit.quant._quantizer import QuantizeLayer, quantizer_of
from graphkit.quant._trial_model import overridable
from graphkit.quant.cache import digest, model_digest
from graphkit.quant.codes import Codes
from graphkit.quant.layers import Layer
from graphkit.quant.metric import Function, Metric
from graphkit.quant.sensitivity import Feed, fed
from graphkit.quant.setting import Setting

Sample = Mapping[str, npt.NDArray[Any]]
Progress = Callable[[int, int, str], None]


class Together:
    """Measures choices of settings for many layers of a float model on samples; a context manager.

    Codes are made on the executor's workers and kept (a byte a weight), so that a choice which differs little from the
    last one costs little. Arguments are those of `graphkit.quant.sensitivity.measure`; it raises what that raises.
    """

    def __init__(
        self,
        model: Model,
        layers: Sequence[Layer],
        samples: Sequence[Sample],
        *,
        method: QuantizeLayer | str = "rtn",
        hessians: Mapping[str, Any] | Feed | None = None,
        metric: Metric | str | Function = "relative-l2",
        executor: Executor | str | None = None,
        progress: Progress | None = None,
        memory: int = MEMORY,
    ) -> None:
        if not samples:
            raise UsageError("an error is measured on samples, and there are none", hint="give calibration data")
        self._layers = {layer.name: layer for layer in layers}
        self._quantizer = quantizer_of(method)
        self._hessians: Mapping[str, Any] | Feed = {} if hessians is None else hessians
        self._progress, self._memory = progress, memory
        self._codes: dict[tuple[str, Setting], Codes] = {}
        self._bench: Bench | None = None
        trial, self._names = overridable(model, layers)
        key = digest(model_digest(trial), list(samples), Metric.of(metric).identity())
        with contextlib.ExitStack() as stack:
            self._job: Job = stack.enter_context(
                open_job(trial, samples, Metric.of(metric), key, executor, len(self._layers))
            )
            self._stack = stack.pop_all()

    def error(self, choice: Mapping[str, Setting]) -> float:
        """The model's error with these settings, by the names of layers; layers that are not named stay float.

        Raises UsageError for names that no layer has.
        """
        for name in choice:
            if name not in self._layers:
                raise UsageError(f"no layer is called '{name}'")
        wanted = {name: setting for name, setting in choice.items() if not setting.is_float}
        self._make({name: s for name, s in wanted.items() if (name, s) not in self._codes})
        if self._bench is None:
            self._bench = self._job.bench()
        overrides = {}
        for name, setting in wanted.items():
            task = Task(self._layers[name], self._names[name], (setting,), self._quantizer)
            overrides[task.override] = self._bench.restored(task, self._codes[name, setting])
        return self._bench.error(overrides)

    def codes(self, choice: Mapping[str, Setting]) -> dict[str, Codes]:
        """The codes that a choice was measured with, by the names of layers."""
        return {name: self._codes[name, setting] for name, setting in choice.items() if not setting.is_float}

    def _make(self, missing: Mapping[str, Setting]) -> None:
        """Quantize layers on the workers."""
        if not missing:
            return
        tasks = (
            Task(layer, self._names[layer.name], (missing[layer.name],), self._quantizer, hessian)
            for layer, hessian in fed([self._layers[name] for name in missing], self._hessians)
        )
        for done, (task, codes) in enumerate(self._job.run(make_codes, tasks, self._memory), 1):
            self._codes[task.layer.name, task.settings[0]] = codes[0]
            if self._progress is not None:
                self._progress(done, len(missing), task.layer.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bench = None
        self._stack.__exit__(kind, error, trace)
